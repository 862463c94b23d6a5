//! What a session holds at the moment of a fork, kept so until the child counts it too.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use super::core::Core;
use crate::lanes::Topics;
use crate::layout::{limits, row_word};
use crate::memory::Inherited;
use crate::shm::fence;

/// The storages of one chunk that a session holds.
#[derive(Debug)]
pub(super) struct Pins {
    pub(super) of: Inherited,
    /// Whether the chunk is the session's own, so that its entries are not mapped in a child.
    pub(super) own: bool,
    pub(super) storages: Vec<Pin>,
}

/// A storage that the row counts once more than it did.
#[derive(Debug)]
pub(super) struct Pin {
    pub(super) index: u32,
    pub(super) generation: u64,
    /// How many references a child inherits: never too few, and too many only where another thread was
    /// just taking, dropping or sending.
    pub(super) references: u64,
}

impl Core {
    /// Pins all that the session holds but for what its lanes name, which the parent goes on to own, and what
    /// it counts for other children.
    ///
    /// A holding of another thread that is made from here on has a later era: it may not be counted
    /// here, and no child inherits it.
    ///
    /// SYNC era: raised before the row is read, with a full fence between them; a thread that makes a
    /// holding counts up before it reads the era. Either the count is seen here or the holding has the later era.
    pub(super) fn pin_all(&self) -> Vec<Pins> {
        self.memory.era.fetch_add(1, Ordering::Relaxed);
        fence();
        let opening = self.opened();
        let topics = opening.as_ref().and_then(|inner| Topics::of(inner).ok());
        let topics = topics.map_or_else(Vec::new, |topics| topics.all());
        // While these are locked, what the lanes keep is what they count. A sender at work cannot be
        // waited for: then a child inherits what its lane names too, and keeps it until it ends.
        let writers: Vec<_> = topics.iter().filter_map(|t| t.writer.try_lock()).collect();
        let mut kept = HashMap::<u32, u64>::new();
        let for_children = self.legacies.locked();
        for_children.count(&mut kept);
        writers.iter().flat_map(|w| w.kept()).for_each(|index| *kept.entry(index).or_default() += 1);
        let inherited = self.memory.inherited.iter().filter(|i| !self.memory.attached.has(i.chunk, i.serial));
        let chunks = self.memory.attached.grants().chain(inherited.map(|i| (i.chunk, i.serial)));
        chunks.filter_map(|(chunk, serial)| self.pin_chunk(chunk, serial, &kept)).collect()
    }

    fn pin_chunk(&self, chunk: u32, serial: u64, kept: &HashMap<u32, u64>) -> Option<Pins> {
        let row = &self.memory.files.row;
        let mut pins: Option<Pins> = None;
        let first = chunk * limits::CHUNK_INDICES;
        for index in (first..first + limits::CHUNK_INDICES).filter(|i| row.count(*i) > 0) {
            let before = row.take_beside(index);
            // What is counted keeps the attachment.
            let at = self.memory.attached.find(chunk, serial);
            let own = at.is_some_and(|a| a.own);
            let of_parent = || self.memory.inherited.iter().find(|i| (i.chunk, i.serial) == (chunk, serial));
            let of = at.map(|a| Inherited::new(&self.memory.files, chunk, a)).or_else(|| of_parent().cloned());
            // Beyond the limit are only those that other threads are being refused.
            let references = before.min(row_word::LIMIT).saturating_sub(kept.get(&index).copied().unwrap_or(0));
            let Some(of) = of.filter(|_| references > 0) else {
                self.memory.let_go(index, own);
                continue;
            };
            let generation = of.entries.load(index).generation;
            let new = || Pins { of, own, storages: Vec::new() };
            pins.get_or_insert_with(new).storages.push(Pin { index, generation, references });
        }
        pins
    }

    /// Lets go of what was pinned.
    pub(super) fn unpin(&self, pins: &Pins) {
        pins.storages.iter().for_each(|s| self.memory.let_go(s.index, pins.own));
    }
}
