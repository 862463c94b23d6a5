//! What a session keeps for children that did not count it.
//!
//! A child made by fork has its parent's memory mapped, and arrays and pointers into it, whether it could
//! count that or not: without a broker it cannot. What was pinned for it stays counted in the parent's refcounts as
//! long as the child, or what it forked, has its mapping of the fork's [`ForkMark`]. Should the parent
//! end before that, the broker keeps the refcounts as long as the child has the parent's memfd `alive` mapped: two
//! files, since the parent has that one mapped itself.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::sys::ForkMark;

/// What is kept, mark by mark.
#[derive(Debug, Default)]
pub(super) struct Legacies(Mutex<Kept>);

#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) all: Vec<Legacy>,
    /// Whether a fork is under way.
    pub(super) forking: bool,
}

#[derive(Debug)]
pub(super) struct Legacy {
    /// Which end is waited for. `None`: a fork had none, for lack of descriptors or address space, and what it
    /// left stays as long as the session.
    pub(super) of: Option<Arc<ForkMark>>,
    /// By index, each counted once; whether it is of this session's own memory.
    pub(super) storages: HashMap<u32, bool>,
}

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
    /// What is kept by a mark: another child's too, where there are no more.
    pub(super) fn of(&mut self, mark: Option<&Arc<ForkMark>>) -> &mut Legacy {
        let same = |l: &Legacy| l.of.as_ref().map(Arc::as_ptr) == mark.map(Arc::as_ptr);
        let at = self.all.iter().position(same).unwrap_or_else(|| {
            self.all.push(Legacy { of: mark.cloned(), storages: HashMap::new() });
            self.all.len() - 1
        });
        &mut self.all[at]
    }

    /// Counts what the refcounts count for children: no reference of the process is among that.
    pub(super) fn count(&self, counts: &mut HashMap<u32, u64>) {
        let storages = self.all.iter().flat_map(|l| l.storages.keys());
        storages.for_each(|index| *counts.entry(*index).or_default() += 1);
    }
}
