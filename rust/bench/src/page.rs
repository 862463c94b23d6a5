//! The memory that the processes of a measurement share (bench/page.go): words, each on a line of its
//! own, and series of time stamps.

use std::error::Error;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};
use rustix::thread::futex;

use crate::{LEFT, RIGHT};

const LINE: usize = 128;
const HEAD: usize = 4096;
const SERIES: usize = 4;

/// Where the words of further readers begin: how often each came to the barrier.
const MORE: usize = 16;

/// Words of the page.
#[derive(Clone, Copy)]
pub enum Line {
    /// Right writes.
    Pong = 3,
    /// Right writes: it is about to sleep for this number.
    Asks = 4,
    /// Right writes: how many it has.
    Count = 5,
    /// Left writes: it is ready for the slice of this number, from 1 on.
    Done = 7,
    /// The parent writes: the pair may do this slice.
    Turn = 8,
}

/// Series of the page.
#[derive(Clone, Copy)]
pub enum Series {
    /// Left, just before it sends.
    Depart,
    /// Right, once it has received.
    Arrive,
    /// Left, once it has the answer.
    Back,
    /// Right, the stamp that the message carries.
    Publish,
}

pub struct Page {
    base: *mut u8,
    n: usize,
}

/// CLOCK_MONOTONIC in ns.
pub fn now() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Spins for a while, so that a process which is about to sleep sleeps.
pub fn linger(time: Duration) {
    let until = now() + time.as_nanos() as u64;
    while now() < until {
        std::hint::spin_loop();
    }
}

impl Page {
    /// Maps the page that the parent passes as descriptor 3; without series there is none.
    pub fn open(n: usize) -> Result<Page, Box<dyn Error>> {
        if n == 0 {
            return Ok(Page { base: std::ptr::null_mut(), n });
        }
        let len = HEAD + SERIES * n * 8;
        // SAFETY: the parent opened it for this process, and nothing else here uses it.
        let fd = unsafe { BorrowedFd::borrow_raw(3) };
        // SAFETY: the kernel chooses a range that is not in use; it is populated so that no fault falls
        // into a timed loop.
        let base = unsafe {
            let at = mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, fd, 0)?;
            madvise(at, len, Advice::LinuxPopulateWrite)?;
            at.cast()
        };
        Ok(Page { base, n })
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(!self.base.is_null() && at + 8 <= HEAD + SERIES * self.n * 8, "a job without a page");
        // SAFETY: inside the mapping, aligned, and shared through atomics alone.
        unsafe { AtomicU64::from_ptr(self.base.add(at).cast()) }
    }

    fn futex(&self, at: usize) -> &AtomicU32 {
        // SAFETY: the low half of a word of the mapping, little-endian.
        unsafe { AtomicU32::from_ptr(self.word(at).as_ptr().cast()) }
    }

    pub fn store(&self, line: Line, v: u64) {
        self.word(line as usize * LINE).store(v, Ordering::SeqCst);
    }

    /// Stores and wakes the threads that sleep for it.
    pub fn tell(&self, line: Line, v: u64) {
        self.store(line, v);
        self.wake(line as usize * LINE);
    }

    fn wake(&self, at: usize) {
        let _ = futex::wake(self.futex(at), futex::Flags::empty(), i32::MAX as u32);
    }

    /// Sleeps until a line reaches v.
    pub fn await_asleep(&self, line: Line, v: u64) {
        self.sleep_until(line as usize * LINE, v);
    }

    fn sleep_until(&self, at: usize, v: u64) {
        loop {
            let now = self.word(at).load(Ordering::SeqCst);
            if now >= v {
                return;
            }
            let second = futex::Timespec { tv_sec: 1, tv_nsec: 0 };
            let _ = futex::wait(self.futex(at), futex::Flags::empty(), now as u32, Some(&second));
        }
    }

    /// Looks until a line reaches v.
    pub fn await_spin(&self, line: Line, v: u64) {
        while self.word(line as usize * LINE).load(Ordering::SeqCst) < v {}
    }

    /// Notes the time of round i.
    pub fn stamp(&self, series: Series, i: usize) {
        self.note(series, i, now());
    }

    pub fn note(&self, series: Series, i: usize, at: u64) {
        self.word(HEAD + (series as usize * self.n + i) * 8).store(at, Ordering::Relaxed);
    }

    /// Waits until the other side has come here as often as this one: left for all readers, each of
    /// them for left.
    pub fn meet(&self, side: usize, readers: usize) {
        let at = |side: usize| if side > RIGHT { (MORE + side - RIGHT - 1) * LINE } else { side * LINE };
        let turn = self.word(at(side)).load(Ordering::SeqCst) + 1;
        self.word(at(side)).store(turn, Ordering::SeqCst);
        self.wake(at(side));
        let others = if side == LEFT { RIGHT..=readers } else { LEFT..=LEFT };
        others.for_each(|other| self.sleep_until(at(other), turn));
    }
}
