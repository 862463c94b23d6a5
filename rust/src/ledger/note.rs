//! What threads of a process note for others that reach it without a lock, and free while none of them can have it:
//! the refcount keeps it.

use std::ptr::{NonNull, null_mut};

use crate::shm::fence;
use crate::sync::{AtomicPtr, AtomicU64, Ordering};

/// A note of the value of a chunk's present grant.
#[derive(Debug)]
pub(crate) struct Note<T> {
    at: AtomicPtr<T>,
    serial: AtomicU64, // of the grant, for a thread that looks at the note alone; 0: there is none
}

/// A value that belongs to a grant.
pub(crate) trait Granted {
    fn serial(&self) -> u64;
}

impl<T> Default for Note<T> {
    fn default() -> Note<T> {
        Note { at: AtomicPtr::new(null_mut()), serial: AtomicU64::new(0) }
    }
}

impl<T: Granted> Note<T> {
    /// The serial of the grant that there is a value of, 0 for none.
    #[inline(always)]
    pub(crate) fn serial(&self) -> u64 {
        self.serial.load(Ordering::Acquire)
    }

    /// The value of a grant, for a caller that counts a storage of the chunk in the refcounts already: it stays as long
    /// as that is counted. `None` when it is gone meanwhile.
    ///
    /// SYNC attachment: looked for after the refcounts were raised; pairs with `set`.
    #[inline(always)]
    pub(crate) fn find(&self, serial: u64) -> Option<NonNull<T>> {
        let at = NonNull::new(self.at.load(Ordering::SeqCst))?;
        // SAFETY: what was noted after the count lives. The thread that took the note away looks at the refcounts
        // before it frees.
        (unsafe { at.as_ref() }.serial() == serial).then_some(at)
    }

    /// What is noted, for a caller that keeps it from being freed.
    pub(crate) fn get(&self) -> Option<NonNull<T>> {
        NonNull::new(self.at.load(Ordering::Acquire))
    }

    /// Notes a value made by `Box`, or with `None` that there is none any more. The caller gets what was noted before:
    /// it looks at the refcounts from here on and may free it where they count nothing of the chunk. One thread at a
    /// time, by a lock.
    ///
    /// SYNC attachment: the note is changed first, the refcounts are read second; pairs with `find`.
    pub(crate) fn set(&self, new: Option<Box<T>>) -> Option<NonNull<T>> {
        let serial = new.as_ref().map_or(0, |v| v.serial());
        let old = self.at.swap(new.map_or(null_mut(), Box::into_raw), Ordering::Release);
        self.serial.store(serial, Ordering::Release);
        fence();
        NonNull::new(old)
    }

    /// What is noted, where nothing else can look.
    pub(crate) fn take(&mut self) -> Option<NonNull<T>> {
        NonNull::new(std::mem::take(self).into_inner())
    }

    fn into_inner(mut self) -> *mut T {
        *self.at.get_mut()
    }
}
