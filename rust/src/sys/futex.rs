//! Futexes on words that processes share (no PRIVATE flag).

use std::ffi::c_void;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::ClockId;
use rustix::thread::futex::{Flags, Timespec, Wait, WaitFlags, WaitPtr, WaitvFlags, wait, waitv, wake};

use crate::error::{Code, Result, os};

/// Sleeps while the word is `value`, at most for the time given. It returns when woken, when the
/// word differs, at a signal or at the time's end: the caller looks again in every case.
pub(crate) fn futex_wait(word: &AtomicU32, value: u32, time: Duration) {
    let t = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    let _ = wait(word, Flags::empty(), value, Some(&t));
}

/// As `futex_wait`, while each of several words has its value. Error where the kernel knows no such sleep.
pub(crate) fn futex_wait_any(words: &[(&AtomicU32, u32)], time: Duration) -> Result<()> {
    let each = |(word, value): &(&AtomicU32, u32)| {
        let mut w = Wait::new();
        w.uaddr = WaitPtr::new(std::ptr::from_ref(*word).cast::<c_void>().cast_mut());
        w.val = u64::from(*value);
        w.flags = WaitFlags::SIZE_U32;
        w
    };
    let until = super::monotonic().saturating_add(time.as_nanos() as u64);
    let t = Timespec { tv_sec: (until / 1_000_000_000) as i64, tv_nsec: (until % 1_000_000_000) as i64 };
    let waits: Vec<Wait> = words.iter().map(each).collect();
    match waitv(&waits, WaitvFlags::empty(), Some(&t), ClockId::Monotonic) {
        Ok(_) | Err(Errno::AGAIN | Errno::TIMEDOUT | Errno::INTR) => Ok(()),
        Err(e) => Err(os(
            Code::Unsupported,
            "wait for objects of one session, or use Linux 5.16 or newer, of at most 128 sessions, where futex_waitv is allowed",
            "sleep for several sessions at once",
            e,
        )),
    }
}

/// Wakes all threads that wait on the word.
pub(crate) fn futex_wake(word: &AtomicU32) {
    let _ = wake(word, Flags::empty(), i32::MAX as u32);
}

/// Wakes one thread that waits on the word.
pub(crate) fn futex_wake_one(word: &AtomicU32) {
    let _ = wake(word, Flags::empty(), 1);
}

#[cfg(all(test, not(baton_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_for_several_ends_when_one_differs_or_is_woken() {
        let words = [AtomicU32::new(1), AtomicU32::new(2)];
        let (long, all) = (Duration::from_secs(3600), [(&words[0], 1), (&words[1], 2)]);
        futex_wait_any(&[(&words[0], 1), (&words[1], 3)], long).unwrap();
        futex_wait_any(&all, Duration::from_millis(1)).unwrap();
        for word in &words {
            std::thread::scope(|s| {
                let before = word.load(std::sync::atomic::Ordering::SeqCst);
                let sleeps = s.spawn(move || {
                    while word.load(std::sync::atomic::Ordering::SeqCst) == before {
                        futex_wait_any(&all, long).unwrap();
                    }
                });
                word.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                futex_wake(word);
                sleeps.join().unwrap();
                word.store(before, std::sync::atomic::Ordering::SeqCst);
            });
        }
        let many = vec![(&words[0], 1); 129];
        assert_eq!(futex_wait_any(&many, long).unwrap_err().code(), Code::Unsupported);
    }
}
