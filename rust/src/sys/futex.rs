//! Futexes on words that processes share (no PRIVATE flag).

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::thread::futex::{Flags, Timespec, wait, wake};

/// Sleeps while the word is `value`, at most for the time given. It returns when woken, when the
/// word differs, at a signal or at the time's end: the caller looks again in every case.
pub(crate) fn futex_wait(word: &AtomicU32, value: u32, time: Duration) {
    let t = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    let _ = wait(word, Flags::empty(), value, Some(&t));
}

/// Wakes all threads that wait on the word.
pub(crate) fn futex_wake(word: &AtomicU32) {
    let _ = wake(word, Flags::empty(), i32::MAX as u32);
}
