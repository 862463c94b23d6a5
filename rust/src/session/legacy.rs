//! What a session keeps for children that did not count it.
//!
//! A child made by fork has its parent's memory mapped, and arrays and pointers into it, whether it could
//! count that or not: without a broker it cannot. What was pinned for it stays counted in the parent's row as
//! long as the child, or what it forked, has its mapping of the fork's [`Trace`](sys::Trace). Should the parent
//! end before that, the broker keeps the row as long as the child has the parent's memfd `alive` mapped: two
//! files, since the parent has that one mapped itself.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use super::core::Core;
use super::pin::Pins;
use crate::layout::session_file;
use crate::sys::{self, Trace};

/// What is kept, trace by trace.
#[derive(Debug, Default)]
pub(super) struct Legacies(Mutex<Kept>);

#[derive(Debug, Default)]
pub(super) struct Kept {
    all: Vec<Legacy>,
    /// Whether a fork is under way.
    forking: bool,
}

#[derive(Debug)]
struct Legacy {
    /// Which end is waited for. `None`: a fork had none, for lack of descriptors or address space, and what it
    /// left stays as long as the session.
    of: Option<Arc<Trace>>,
    /// By index, each counted once; whether it is of this session's own memory.
    storages: HashMap<u32, bool>,
}

impl Core {
    /// Has the broker keep the row, should this process end from here on, as long as a child has `alive` mapped.
    pub(super) fn begin_fork(&self) {
        self.legacies.locked().forking = true;
        self.memory.files.session.store(session_file::FORKING, sys::monotonic());
    }

    /// After the fork: lets go of what the child has counted, as it says word by word for what was pinned, and
    /// keeps the rest. Whether there is any.
    pub(super) fn end_fork(&self, pinned: &[Pins], counted: &[u8], trace: Option<&Arc<Trace>>) -> bool {
        let mut kept = self.legacies.locked();
        kept.forking = false;
        let (mut counted, mut keeps) = (counted.iter(), false);
        for p in pinned {
            if counted.next() == Some(&COUNTED) {
                self.unpin(p);
            } else {
                keeps = true;
                self.keep(kept.of(trace), p);
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

    /// Whether the row may go with this process.
    fn note_kept(&self, kept: &Kept) {
        if kept.all.is_empty() && !kept.forking {
            self.memory.files.session.store(session_file::FORKING, 0);
        }
    }
}

/// What a child says of what it has counted; of what it has not it says another word, or none.
pub(super) const COUNTED: u8 = 1;

impl Legacies {
    /// While this is had, nothing is let go of.
    pub(super) fn locked(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(|p| p.into_inner())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.locked().all.is_empty()
    }
}

impl Kept {
    /// What is kept by a trace: another child's too, where there are no more.
    fn of(&mut self, trace: Option<&Arc<Trace>>) -> &mut Legacy {
        let same = |l: &Legacy| l.of.as_ref().map(Arc::as_ptr) == trace.map(Arc::as_ptr);
        let at = self.all.iter().position(same).unwrap_or_else(|| {
            self.all.push(Legacy { of: trace.cloned(), storages: HashMap::new() });
            self.all.len() - 1
        });
        &mut self.all[at]
    }

    /// Counts what the row counts for children: no reference of the process is among that.
    pub(super) fn count(&self, counts: &mut HashMap<u32, u64>) {
        let storages = self.all.iter().flat_map(|l| l.storages.keys());
        storages.for_each(|index| *counts.entry(*index).or_default() += 1);
    }
}
