//! Calls that were given up while a provider had them, and the end of those whose slots are needed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::shm::{GroupLane, Stands};

/// The calls of a lane that were given up while a provider had them: the number of the last one, by slot.
#[derive(Debug, Clone)]
pub(super) struct Unwanted(Arc<[AtomicU64]>);

impl Unwanted {
    /// Those of a lane with so many slots; 0: none is noted.
    pub(super) fn new(slots: u32) -> Unwanted {
        Unwanted((0..slots).map(|_| AtomicU64::new(0)).collect())
    }

    fn slot(&self, i: u64) -> Option<&AtomicU64> {
        self.0.get((i & (self.0.len() as u64).wrapping_sub(1)) as usize)
    }

    /// Relaxed: the number alone is told.
    pub(super) fn add(&self, i: u64) {
        if let Some(slot) = self.slot(i) {
            slot.store(i, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn has(&self, i: u64) -> bool {
        self.slot(i).is_some_and(|slot| slot.load(Ordering::Relaxed) == i)
    }
}

/// Ends a call that was given up in the place of the provider that has it, whose own end of it fails then. Its storages
/// are counted by the provider, and the caller has cancelled it: of the slot the provider needs nothing more. Whether it
/// is over.
///
/// SYNC claim: as `acknowledge` and `finish`, by the caller.
#[cold]
pub(super) fn forsake(claims: &GroupLane, i: u64) -> bool {
    match claims.call(i) {
        Stands::Claimed(member) => drop(claims.acknowledge(i, member)),
        Stands::Begun(member) => drop(claims.finish(i, member)),
        Stands::Open(_) | Stands::Over(_) => {}
    }
    claims.done(i)
}
