//! What a session holds at the moment of a fork, kept so until the child counts it too, or ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::core::Core;
use super::legacy::{Kept, Legacy};
use crate::lanes::Topics;
use crate::layout::{limits, refcount_word, session_file};
use crate::memory::Inherited;
use crate::shm::fence;
use crate::sys::{self, ForkMark};

/// What a child says of what it has counted; of what it has not it says another word, or none.
pub(super) const COUNTED: u8 = 1;

/// The storages of one chunk that a session holds.
#[derive(Debug)]
pub(super) struct Pins {
    pub(super) of: Inherited,
    /// Whether the chunk is the session's own, so that its entries are not mapped in a child.
    pub(super) own: bool,
    pub(super) storages: Vec<Pin>,
}

/// A storage that the refcounts count once more than they did.
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
    /// SYNC era: raised before the refcounts are read, with a full fence between them; a thread that makes a
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
        let refcounts = &self.memory.files.refcounts;
        let mut pins: Option<Pins> = None;
        let first = chunk * limits::CHUNK_INDICES;
        for index in (first..first + limits::CHUNK_INDICES).filter(|i| refcounts.count(*i) > 0) {
            let before = refcounts.take_beside(index);
            // What is counted keeps the attachment.
            let at = self.memory.attached.find(chunk, serial);
            let own = at.is_some_and(|a| a.own);
            let of_parent = self.memory.inherited.iter().find(|i| (i.chunk, i.serial) == (chunk, serial));
            let new = |a| Inherited::new(&self.memory.files, chunk, a, of_parent);
            let of = at.map(new).or_else(|| of_parent.cloned());
            // Beyond the limit are only those that other threads are being refused.
            let references = before.min(refcount_word::LIMIT).saturating_sub(kept.get(&index).copied().unwrap_or(0));
            let Some(of) = of.filter(|_| references > 0) else {
                self.memory.let_go(index, own);
                continue;
            };
            let generation = of.entries().load(index).generation;
            let new = || Pins { of, own, storages: Vec::new() };
            pins.get_or_insert_with(new).storages.push(Pin { index, generation, references });
        }
        pins
    }

    /// Lets go of what was pinned.
    pub(super) fn unpin(&self, pins: &Pins) {
        pins.storages.iter().for_each(|s| self.memory.let_go(s.index, pins.own));
    }

    /// Has the broker keep the refcounts, should this process end from here on, as long as a child has `alive` mapped.
    pub(super) fn begin_fork(&self) {
        self.legacies.locked().forking = true;
        self.memory.files.session.store(session_file::FORKING, sys::monotonic());
    }

    /// After the fork: lets go of what the child has counted, as it says word by word for what was pinned, and
    /// keeps the rest. Whether there is any.
    pub(super) fn end_fork(&self, pinned: &[Pins], counted: &[u8], mark: Option<&Arc<ForkMark>>) -> bool {
        let mut kept = self.legacies.locked();
        kept.forking = false;
        let (mut counted, mut keeps) = (counted.iter(), false);
        for p in pinned {
            if counted.next() == Some(&COUNTED) {
                self.unpin(p);
            } else {
                keeps = true;
                self.keep(kept.of(mark), p);
            }
        }
        self.note_kept(&kept);
        drop(kept);
        if keeps {
            self.link.thread.wake(); // to look from time to time
        }
        keeps
    }

    fn keep(&self, legacy: &mut Legacy, pins: &Pins) {
        for s in &pins.storages {
            if legacy.storages.insert(s.index, pins.own).is_some() {
                self.memory.let_go(s.index, pins.own); // it was kept already
            }
        }
    }

    /// Lets go of what was kept for children that are gone.
    pub(super) fn end_legacies(&self) {
        let mut kept = self.legacies.locked();
        let before = kept.all.len();
        for gone in kept.all.extract_if(.., |l| l.of.as_ref().is_some_and(|of| of.is_gone())) {
            gone.storages.iter().for_each(|(index, own)| self.memory.let_go(*index, *own));
        }
        if kept.all.len() < before {
            self.note_kept(&kept);
        }
    }

    /// Whether the refcounts may go with this process.
    fn note_kept(&self, kept: &Kept) {
        if kept.all.is_empty() && !kept.forking {
            self.memory.files.session.store(session_file::FORKING, 0);
        }
    }
}
