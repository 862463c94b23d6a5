//! A holding that tensors share. It is an `Arc` without weak references: a last owner that is the only
//! one ends it without a locked instruction, and its memory serves the thread's next one.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::Cell;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;

use super::Opening;
use super::lane::Acknowledge;
use super::references::{Holding, KeptBy, One};
use crate::owners::OwnerCount;

/// One owner of a holding.
pub(crate) struct Shared(NonNull<Block>);

struct Block {
    owners: OwnerCount,
    holding: Holding,
}

// SAFETY: the holding is Send and Sync, and whichever thread drops the last owner ends it.
unsafe impl Send for Shared where Holding: Send + Sync {}
// SAFETY: as above; clones are made of shared references.
unsafe impl Sync for Shared where Holding: Send + Sync {}

/// Memory of a holding that has ended, for the thread's next.
struct Spare(Cell<Option<NonNull<Block>>>);

impl Drop for Spare {
    fn drop(&mut self) {
        if let Some(block) = self.0.take() {
            // SAFETY: it came from `alloc` with this layout, and nothing is in it.
            unsafe { dealloc(block.as_ptr().cast(), Layout::new::<Block>()) }
        }
    }
}

thread_local! {
    static SPARE: Spare = const { Spare(Cell::new(None)) };
}

/// A block for a holding that is written part by part, each from registers.
struct Vacant(NonNull<Block>);

impl Vacant {
    #[inline(always)]
    fn new() -> Vacant {
        let spare = SPARE.try_with(|s| s.0.take()).ok().flatten();
        Vacant(spare.unwrap_or_else(allocate))
    }

    /// Where the holding is to be written.
    #[inline(always)]
    fn holding(&self) -> *mut Holding {
        // SAFETY: the block was allocated.
        unsafe { &raw mut (*self.0.as_ptr()).holding }
    }

    /// What was written.
    ///
    /// # Safety
    /// A whole holding was.
    #[inline(always)]
    unsafe fn filled(self) -> Shared {
        // SAFETY: the block has no other owner yet.
        unsafe { (&raw mut (*self.0.as_ptr()).owners).write(OwnerCount::one()) };
        Shared(self.0)
    }
}

impl Shared {
    /// Makes a holding where it will stay: a move of what has just been written waits for the writes.
    #[inline(always)]
    pub(crate) fn new(make: impl FnOnce() -> Holding) -> Shared {
        let vacant = Vacant::new();
        // SAFETY: the space has no other owner, and all of it is written.
        unsafe {
            vacant.holding().write(make());
            vacant.filled()
        }
    }

    /// The holding of one storage that is one compact tensor, each part written where it stays.
    #[inline(always)]
    pub(crate) fn of_one(
        inner: &Opening,
        one: One,
        acknowledge: Option<Box<Acknowledge>>,
        kept_by: impl FnOnce() -> KeptBy,
    ) -> Shared {
        let vacant = Vacant::new();
        // SAFETY: the space has no other owner, and a whole holding is written there: `kept_by`, and all else.
        unsafe {
            Holding::write_one(vacant.holding(), inner, one, acknowledge);
            (&raw mut (*vacant.holding()).kept_by).write(kept_by());
            vacant.filled()
        }
    }

    #[inline]
    fn block(&self) -> &Block {
        // SAFETY: it lives as long as it has an owner.
        unsafe { self.0.as_ref() }
    }

    /// So many owners more, which are counted in one step: a locked instruction for each would wait for
    /// all that was written before it.
    pub(crate) fn owners(&self, n: usize) -> Owners {
        self.block().owners.add(n);
        Owners { of: self.clone(), left: n }
    }

    /// Whether what it counts, of so many storages of a session, may be given to a place.
    #[inline]
    pub(crate) fn may_give(&self, inner: &Opening, storages: usize) -> bool {
        self.storages.len() == storages
            && self.acknowledge.is_none()
            && self.device.get().is_none()
            && std::ptr::eq(&**self.inner(), inner)
            && self.is_only()
    }

    /// Whether there is no other owner. Then it cannot be cloned, and what others that are gone did
    /// came before.
    #[inline]
    pub(crate) fn is_only(&self) -> bool {
        self.block().owners.is_only()
    }
}

#[cold]
fn allocate() -> NonNull<Block> {
    let layout = Layout::new::<Block>();
    // SAFETY: the layout is not empty.
    let block = unsafe { alloc(layout) };
    NonNull::new(block.cast()).unwrap_or_else(|| handle_alloc_error(layout))
}

impl From<Holding> for Shared {
    fn from(holding: Holding) -> Shared {
        Shared::new(|| holding)
    }
}

impl Deref for Shared {
    type Target = Holding;

    #[inline]
    fn deref(&self) -> &Holding {
        &self.block().holding
    }
}

impl Clone for Shared {
    #[inline]
    fn clone(&self) -> Shared {
        self.block().owners.add(1);
        Shared(self.0)
    }
}

impl Drop for Shared {
    #[inline]
    fn drop(&mut self) {
        if !self.block().owners.leave() {
            return;
        }
        // SAFETY: there is no owner left, and what they did came before.
        unsafe { Holding::end(&raw mut (*self.0.as_ptr()).holding) };
        // Two may end at once, one inside the other: the one that was kept goes.
        let before = SPARE.try_with(|s| s.0.replace(Some(self.0)));
        if let Some(block) = before.unwrap_or(Some(self.0)) {
            // SAFETY: it came from `alloc` with this layout, and nothing is in it.
            unsafe { dealloc(block.as_ptr().cast(), Layout::new::<Block>()) }
        }
    }
}

/// Owners of a holding that are counted and not yet given out.
pub(crate) struct Owners {
    of: Shared,
    left: usize,
}

impl Owners {
    /// The next; after the last that was counted it counts by itself.
    #[inline]
    pub(crate) fn next(&mut self) -> Shared {
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Shared(self.of.0)
            }
            None => self.of.clone(),
        }
    }
}

impl Drop for Owners {
    fn drop(&mut self) {
        // `of` is an owner still, so these are not the last.
        if self.left > 0 {
            self.of.block().owners.give_up(self.left);
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
