//! How many owners a value has, of which the last ends it.

use std::process::abort;

use crate::sync::{AtomicUsize, Ordering, fence};

/// More owners than memory has room for: only a program that forgets them gets there.
const MOST: usize = isize::MAX as usize;

/// The owners of a value. It is the count of an `Arc` without weak references, so that a last owner which is the
/// only one leaves without a locked instruction.
#[derive(Debug)]
pub(crate) struct OwnerCount(AtomicUsize);

impl OwnerCount {
    /// One owner.
    #[inline]
    pub(crate) fn one() -> OwnerCount {
        OwnerCount(AtomicUsize::new(1))
    }

    /// Counts `n` owners more, for an owner: a locked instruction for each would wait for all that was written
    /// before it.
    #[inline]
    pub(crate) fn add(&self, n: usize) {
        // An owner that is made is handed to its thread by what orders that.
        if n > MOST || self.0.fetch_add(n, Ordering::Relaxed) > MOST {
            abort();
        }
    }

    /// Whether there is no other owner. Then none can be made, and what others that are gone did came before.
    #[inline]
    pub(crate) fn is_only(&self) -> bool {
        self.0.load(Ordering::Acquire) == 1
    }

    /// Takes one owner off, and tells whether it was the last: what the others did came before then.
    #[inline]
    pub(crate) fn leave(&self) -> bool {
        // The only owner need not say that it goes.
        if !self.is_only() {
            if self.0.fetch_sub(1, Ordering::Release) != 1 {
                return false;
            }
            fence(Ordering::Acquire);
        }
        true
    }

    /// Takes `n` owners off that are not the last, and that were never taken.
    pub(crate) fn give_up(&self, n: usize) {
        self.0.fetch_sub(n, Ordering::Relaxed);
    }
}
