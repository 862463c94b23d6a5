//! A lock that is waited for with a deadline and with the program's signals.

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use crate::error::{Result, interrupted};
use crate::sync::{AtomicU32, Ordering, futex_wait, futex_wake_one};

/// How long a thread waits for its turn before it looks again at the latest.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A value that threads use in turns: a lock that is waited for with a deadline, which those of the
/// standard library do not have. After a panic it is as free as after any other turn.
#[derive(Default)]
pub(crate) struct Turnstile<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// A thread may sleep until the turn ends.
const AWAITED: u32 = 2;

// SAFETY: one thread at a time has the value, any may.
unsafe impl<T: Send> Send for Turnstile<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Turnstile<T> {}

impl<T> Turnstile<T> {
    pub(crate) fn new(value: T) -> Turnstile<T> {
        Turnstile { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// The value, `None` while another thread uses it.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Turn<'_, T>> {
        let free = self.state.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok();
        free.then(|| Turn { of: self, value: PhantomData })
    }

    /// Whether no thread uses the value. A hint: one may begin to.
    pub(crate) fn is_free(&self) -> bool {
        self.state.load(Ordering::Acquire) == FREE
    }

    /// Waits for the value, at most until a time: `None` after it. `Timeout` when `look`, which is called
    /// after each sleep, ends the wait.
    #[inline]
    pub(crate) fn lock_until(&self, until: Option<Instant>, look: impl Fn() -> bool) -> Result<Option<Turn<'_, T>>> {
        match self.try_lock() {
            None => self.sleep_until(until, look),
            turn => Ok(turn),
        }
    }

    #[cold]
    fn sleep_until(&self, until: Option<Instant>, look: impl Fn() -> bool) -> Result<Option<Turn<'_, T>>> {
        let mut slept = false;
        loop {
            let left = until.map_or(LOOK_AGAIN, |u| u.saturating_duration_since(Instant::now()));
            if left.is_zero() && !slept {
                return Ok(self.try_lock());
            }
            // A thread that has it taken so may wake one for nothing, when the turn ends: others may sleep too. One that
            // was woken, and waits no more, leaves the turn that it has found taken to them.
            if self.state.swap(AWAITED, Ordering::Acquire) == FREE {
                return Ok(Some(Turn { of: self, value: PhantomData }));
            }
            if left.is_zero() {
                return Ok(None);
            }
            futex_wait(&self.state, AWAITED, left.min(LOOK_AGAIN));
            slept = true;
            if look() {
                // It was perhaps woken for a turn that another one can have.
                futex_wake_one(&self.state);
                return Err(interrupted());
            }
        }
    }

    /// The value of a thread that has the lock to itself.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

impl<T> fmt::Debug for Turnstile<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turnstile").finish_non_exhaustive()
    }
}

/// A thread's turn with a value.
pub struct Turn<'a, T> {
    of: &'a Turnstile<T>,
    /// Shared between threads as far as what it lends may be.
    value: PhantomData<&'a mut T>,
}

impl<T> Deref for Turn<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: it is this turn's until it ends.
        unsafe { &*self.of.value.get() }
    }
}

impl<T> DerefMut for Turn<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in deref; the borrow of self is exclusive.
        unsafe { &mut *self.of.value.get() }
    }
}

impl<T: fmt::Debug> fmt::Debug for Turn<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T> Drop for Turn<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.of.state.swap(FREE, Ordering::Release) == AWAITED {
            futex_wake_one(&self.of.state); // that one wakes the next when its turn ends
        }
    }
}
