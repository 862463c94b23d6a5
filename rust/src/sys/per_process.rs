//! Values of one process, which a child of a fork starts without.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::process::{is_process, process_number};
use crate::error::Result;

/// A value that each process makes for itself. A child of a fork has a copy of its parent's, which
/// other threads may have been changing: it is never touched there, and never freed.
#[derive(Debug)]
pub(crate) struct PerProcess<T>(AtomicPtr<Slot<T>>);

#[derive(Debug)]
struct Slot<T> {
    process: u32,
    value: T,
}

// SAFETY: it owns a T, and gives references to it.
unsafe impl<T: Send + Sync> Send for PerProcess<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for PerProcess<T> {}

impl<T> PerProcess<T> {
    pub(crate) const fn new() -> PerProcess<T> {
        PerProcess(AtomicPtr::new(null_mut()))
    }

    /// This process's value, if it has one.
    #[inline]
    pub(crate) fn get(&self) -> Option<&T> {
        self.slot().filter(|s| is_process(s.process)).map(|s| &s.value)
    }

    /// The last value, be it this process's or its parent's: only what a fork leaves whole may be
    /// looked at in that.
    pub(crate) fn last(&self) -> Option<&T> {
        self.slot().map(|s| &s.value)
    }

    #[inline]
    fn slot(&self) -> Option<&Slot<T>> {
        // SAFETY: a slot is freed with self only.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// This process's value, made if there is none; of threads that make one at once the first wins.
    pub(crate) fn get_or(&self, make: impl FnOnce() -> T) -> Result<&T> {
        if let Some(value) = self.get() {
            return Ok(value);
        }
        let slot = Box::into_raw(Box::new(Slot { process: process_number()?, value: make() }));
        let mut before = self.0.load(Ordering::Acquire);
        loop {
            // SAFETY: as in `slot`.
            if let Some(first) = unsafe { before.as_ref() }.filter(|s| is_process(s.process)) {
                // SAFETY: it was made above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(slot) });
                return Ok(&first.value);
            }
            match self.0.compare_exchange(before, slot, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: as in `slot`. The one before it is the parent's, and stays.
                Ok(_) => return Ok(&unsafe { &*slot }.value),
                Err(now) => before = now,
            }
        }
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let slot = *self.0.get_mut();
        if self.get().is_some() {
            // SAFETY: it was made by Box, this process made it, and the references given out have ended
            // with the borrow of self.
            drop(unsafe { Box::from_raw(slot) });
        }
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> PerProcess<T> {
        PerProcess::new()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn the_first_value_stays_and_is_dropped_once() {
        let (slot, drops) = (PerProcess::new(), Arc::new(AtomicU32::new(0)));
        struct Counted(u32, Arc<AtomicU32>);
        impl Drop for Counted {
            fn drop(&mut self) {
                self.1.fetch_add(1, Ordering::Relaxed);
            }
        }
        assert!(slot.get().is_none());
        let made = std::thread::scope(|s| {
            let make = |i| {
                let (slot, drops) = (&slot, drops.clone());
                s.spawn(move || slot.get_or(|| Counted(i, drops)).unwrap().0)
            };
            [1, 2, 3, 4].map(make).map(|t| t.join().unwrap())
        });
        let first = slot.get().unwrap().0;
        assert_eq!(made, [first; 4]);
        let losers = drops.load(Ordering::Relaxed);
        drop(slot);
        assert_eq!(drops.load(Ordering::Relaxed), losers + 1);
    }
}
