//! Locks that are waited for with a deadline and with the program's signals, and such that a child of a
//! fork can live with them.

use std::mem::ManuallyDrop;
use std::sync::Mutex;
use std::time::Duration;

use crate::deadline::deadline;
use crate::error::{Code, Error, Result};
use crate::sys::PerProcess;
pub use crate::turnstile::Turn;
pub(crate) use crate::turnstile::Turnstile;

/// A value that threads use in turns, for bindings whose objects any thread may use. In the child of a
/// fork a value that another thread was using at that moment cannot be used any more, nor dropped:
/// asking for it is the error `Closed`, where a lock would never come free.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// use std::time::Duration;
/// use baton::bindings::Turns;
/// use baton::{Code, Deadline};
///
/// let deadline = Deadline::after(Duration::from_secs(60));
/// let reader = Turns::new(session.topic("t")?.reader(baton::Start::New)?)?;
/// let mut turn = reader.lock(deadline.left(), || false)?;
/// assert!(turn.try_recv()?.is_none());
/// assert!(reader.try_lock()?.is_none()); // it is the first's turn
/// let late = reader.lock(Duration::ZERO, || false).unwrap_err();
/// assert!(late.is_timeout() && late.code() == Code::Timeout && late.detail().is_empty());
/// assert_eq!((late.code().as_str(), baton::Error::closed_here("the reader").code()), ("Timeout", Code::Closed));
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Turns<T> {
    value: ManuallyDrop<Turnstile<T>>,
    /// Whether the value was free when this process began with it.
    whole: PerProcess<bool>,
}

/// Found out by one thread at a time, so that none takes another's turn for one of the parent's.
static FIRST: PerProcess<Mutex<()>> = PerProcess::new();

impl<T> Turns<T> {
    /// A value that is not in use.
    pub fn new(value: T) -> Result<Turns<T>> {
        let turns = Turns { value: ManuallyDrop::new(Turnstile::new(value)), whole: PerProcess::new() };
        turns.whole.get_or(|| true)?;
        Ok(turns)
    }

    /// Waits for the value: without a timeout until it comes, not at all with zero. `Timeout` after that, or when
    /// `look`, which is called after a signal, ends the wait.
    pub fn lock(&self, timeout: impl Into<Option<Duration>>, look: impl Fn() -> bool) -> Result<Turn<'_, T>> {
        self.check()?;
        let until = deadline(timeout);
        self.value.lock_until(until, look)?.ok_or_else(|| {
            let remedy = "wait longer, or open one for each thread that is to receive side by side";
            Error::new(Code::Timeout, remedy, "another thread is receiving by it")
        })
    }

    /// The value, `None` while another thread uses it.
    pub fn try_lock(&self) -> Result<Option<Turn<'_, T>>> {
        self.check()?;
        Ok(self.value.try_lock())
    }

    /// Whether no thread has a turn. A hint: one may begin.
    pub(crate) fn are_free(&self) -> bool {
        self.value.is_free()
    }

    fn check(&self) -> Result<()> {
        if *self.whole.get().map_or_else(|| self.look(), Ok)? {
            return Ok(());
        }
        let what = "another thread of the parent was using it when this process was forked";
        Err(Error::new(Code::Closed, "open a new one here", what))
    }

    #[cold]
    fn look(&self) -> Result<&bool> {
        let _one = FIRST.get_or(Mutex::default)?.lock().unwrap_or_else(|p| p.into_inner());
        self.whole.get_or(|| self.value.try_lock().is_some())
    }
}

impl<T> Drop for Turns<T> {
    fn drop(&mut self) {
        if self.check().is_ok() {
            // SAFETY: it cannot be used after this.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: fn() -> bool = || false;

    #[test]
    fn a_value_is_used_in_turns() {
        let turns = Turns::new(1).unwrap();
        let mut mine = turns.lock(None, NEVER).unwrap();
        *mine += 1;
        let others = || {
            assert!(turns.try_lock().unwrap().is_none());
            for t in [Duration::ZERO, Duration::from_millis(5)] {
                assert_eq!(turns.lock(t, NEVER).unwrap_err().code(), Code::Timeout);
            }
        };
        std::thread::scope(|s| s.spawn(others).join().unwrap());
        drop(mine);
        assert_eq!(*turns.try_lock().unwrap().unwrap(), 2);
    }

    #[test]
    fn a_turn_comes_when_the_one_before_has_ended() {
        let turns = Turns::new(0u32).unwrap();
        let count = || {
            for _ in 0..2000 {
                *turns.lock(None, NEVER).unwrap() += 1;
            }
        };
        std::thread::scope(|s| (0..4).for_each(|_| drop(s.spawn(count))));
        assert_eq!(*turns.lock(None, NEVER).unwrap(), 8000);
    }

    #[test]
    fn a_signal_ends_the_wait_for_a_turn() {
        let turns = Turns::new(0).unwrap();
        let _mine = turns.lock(None, NEVER).unwrap();
        let e = std::thread::scope(|s| s.spawn(|| turns.lock(None, || true).unwrap_err()).join().unwrap());
        assert_eq!((e.code(), e.message()), (Code::Timeout, "the wait was interrupted by a signal"));
    }
}
