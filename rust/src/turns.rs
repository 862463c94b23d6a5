//! A lock that a child of a fork can live with.

use std::mem::ManuallyDrop;
use std::sync::{Mutex, MutexGuard, TryLockError};

use crate::error::{Code, Error, Result};
use crate::sys::PerProcess;

/// A value that threads use in turns, for bindings whose objects any thread may use. In the child of a
/// fork a value that another thread was using at that moment cannot be used any more, nor dropped:
/// asking for it is the error `Closed`, where a lock would never come free.
#[derive(Debug)]
pub struct Turns<T> {
    value: ManuallyDrop<Mutex<T>>,
    /// Whether the value was free when this process began with it.
    whole: PerProcess<bool>,
}

/// Found out by one thread at a time, so that none takes another's turn for one of the parent's.
static FIRST: PerProcess<Mutex<()>> = PerProcess::new();

impl<T> Turns<T> {
    /// A value that nobody uses.
    pub fn new(value: T) -> Result<Turns<T>> {
        let turns = Turns { value: ManuallyDrop::new(Mutex::new(value)), whole: PerProcess::new() };
        turns.whole.get_or(|| true)?;
        Ok(turns)
    }

    /// Waits for the value.
    pub fn lock(&self) -> Result<MutexGuard<'_, T>> {
        self.check()?;
        Ok(self.value.lock().unwrap_or_else(|p| p.into_inner()))
    }

    /// The value, `None` while another thread uses it.
    pub fn try_lock(&self) -> Result<Option<MutexGuard<'_, T>>> {
        self.check()?;
        match self.value.try_lock() {
            Ok(value) => Ok(Some(value)),
            Err(TryLockError::Poisoned(p)) => Ok(Some(p.into_inner())),
            Err(TryLockError::WouldBlock) => Ok(None),
        }
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
        self.whole.get_or(|| !matches!(self.value.try_lock(), Err(TryLockError::WouldBlock)))
    }
}

impl<T> Drop for Turns<T> {
    fn drop(&mut self) {
        if self.check().is_ok() {
            // SAFETY: nobody can use it after this.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_used_in_turns() {
        let turns = Turns::new(1).unwrap();
        let mut mine = turns.lock().unwrap();
        *mine += 1;
        std::thread::scope(|s| s.spawn(|| assert!(turns.try_lock().unwrap().is_none())).join().unwrap());
        drop(mine);
        assert_eq!(*turns.try_lock().unwrap().unwrap(), 2);
    }
}
