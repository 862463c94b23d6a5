//! Shared memory as loom sees it: the same operations as `region`, every word an atomic of loom's that
//! is made when it is first touched.
//!
//! Loom takes sequentially consistent accesses for acquire-release ones, so they are set between
//! sequentially consistent fences here, which is what they are on the machines that the crate runs on
//! and more than the language promises; [`weak`] leaves those fences out, for models that must fail.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use loom::sync::Condvar;
use loom::sync::atomic::{AtomicU64, Ordering, fence as loom_fence};

thread_local! {
    static WEAK: Cell<bool> = const { Cell::new(false) };
}

/// Takes the full fences away, in the model that runs on this thread.
pub(crate) fn weak(yes: bool) {
    WEAK.set(yes);
}

fn full() {
    // Loom runs the threads of a model on the thread that started it.
    if !WEAK.get() {
        loom_fence(Ordering::SeqCst);
    }
}

pub(crate) const LINE: u64 = 64;

/// Eight words beside each other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Line<'a>(&'a Region, u64);

impl Line<'_> {
    pub(crate) fn load(self, off: u64) -> u64 {
        self.0.load(self.1 + off)
    }

    pub(crate) fn load_seq_cst(self, off: u64) -> u64 {
        self.0.load_seq_cst(self.1 + off)
    }

    pub(crate) fn store(self, off: u64, v: u64) {
        self.0.store(self.1 + off, v);
    }

    pub(crate) fn peek(self, off: u64) -> u64 {
        self.0.word(self.1 + off).load(Ordering::Relaxed)
    }

    pub(crate) fn put(self, off: u64, v: u64) {
        self.0.word(self.1 + off).store(v, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Memory {
    words: Mutex<HashMap<u64, Arc<AtomicU64>>>,
    asleep: loom::sync::Mutex<()>,
    woken: Condvar,
}

/// A range of memory.
#[derive(Debug, Clone)]
pub(crate) struct Region {
    memory: Arc<Memory>,
    at: u64,
    size: u64,
}

impl Region {
    /// Memory that reads zero.
    pub(crate) fn zeroed(size: u64) -> Region {
        let (words, asleep, woken) = (Mutex::default(), loom::sync::Mutex::new(()), Condvar::new());
        Region { memory: Arc::new(Memory { words, asleep, woken }), at: 0, size }
    }

    /// Makes words that another thread will touch first: loom takes the making for a write.
    pub(crate) fn make(self, words: &[u64]) -> Region {
        words.iter().for_each(|w| drop(self.word(*w)));
        self
    }

    pub(crate) fn len(&self) -> u64 {
        self.size
    }

    pub(crate) fn has(&self, off: u64, n: u64) -> bool {
        off <= self.size && n <= self.size - off
    }

    pub(crate) fn sub(&self, off: u64, n: u64) -> Region {
        assert!(self.has(off, n));
        Region { memory: self.memory.clone(), at: self.at + off, size: n }
    }

    fn word(&self, off: u64) -> Arc<AtomicU64> {
        assert!(self.has(off, 8) && off.is_multiple_of(8));
        let mut words = self.memory.words.lock().unwrap();
        words.entry(self.at + off).or_insert_with(|| Arc::new(AtomicU64::new(0))).clone()
    }

    pub(crate) fn line(&self, off: u64) -> Line<'_> {
        assert!(self.has(off, LINE));
        Line(self, off)
    }

    pub(crate) fn load(&self, off: u64) -> u64 {
        self.word(off).load(Ordering::Acquire)
    }

    pub(crate) fn load_seq_cst(&self, off: u64) -> u64 {
        full();
        self.load(off)
    }

    pub(crate) fn load32(&self, off: u64) -> u32 {
        (self.load(off & !7) >> (8 * (off & 4))) as u32
    }

    pub(crate) fn loads<const N: usize>(&self, off: u64) -> [u64; N] {
        std::array::from_fn(|k| self.load(off + 8 * k as u64))
    }

    pub(crate) fn stores<const N: usize>(&self, off: u64, v: [u64; N]) {
        (off..).step_by(8).zip(v).for_each(|(at, v)| self.store(at, v));
    }

    pub(crate) fn store(&self, off: u64, v: u64) {
        self.word(off).store(v, Ordering::Release);
    }

    /// Only of a word that nobody else writes.
    pub(crate) fn store32(&self, off: u64, v: u32) {
        let shift = 8 * (off & 4);
        let other = self.load(off & !7) & !(0xffff_ffff << shift);
        self.store(off & !7, other | u64::from(v) << shift);
    }

    pub(crate) fn add(&self, off: u64, delta: u64) -> u64 {
        full();
        let before = self.word(off).fetch_add(delta, Ordering::AcqRel);
        full();
        before
    }

    pub(crate) fn or(&self, off: u64, bits: u64) {
        full();
        self.word(off).fetch_or(bits, Ordering::AcqRel);
        full();
    }

    pub(crate) fn and(&self, off: u64, bits: u64) -> u64 {
        full();
        let before = self.word(off).fetch_and(bits, Ordering::AcqRel);
        full();
        before
    }

    pub(crate) fn add32(&self, off: u64, delta: u32) {
        assert_eq!(off % 8, 0, "the low half, and no carry in a model");
        self.add(off, u64::from(delta));
    }

    pub(crate) fn cas(&self, off: u64, old: u64, new: u64) -> bool {
        full();
        let done = self.word(off).compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).is_ok();
        full();
        done
    }

    pub(crate) fn prefetch_write(&self, _: u64) {}

    pub(crate) fn hand_over(&self, _: u64) {}

    /// Sleeps for ever where a process would look again after a while, and sleeps on when another word was
    /// rung: loom reports a wake that is missing as a deadlock.
    pub(crate) fn futex_wait(&self, off: u64, value: u32, _: Duration) {
        let mut asleep = self.memory.asleep.lock().unwrap();
        while self.load32(off) == value {
            asleep = self.memory.woken.wait(asleep).unwrap();
        }
    }

    pub(crate) fn futex_wake(&self, _: u64) {
        let _asleep = self.memory.asleep.lock().unwrap();
        self.memory.woken.notify_all();
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Ring(Region, u64, u64);

impl Ring {
    pub(crate) fn new(r: &Region, off: u64, slots: u64, stride: u64) -> Ring {
        Ring(r.sub(off, slots * stride), slots - 1, stride)
    }

    pub(crate) fn first(&self, i: u64) -> Line<'_> {
        self.0.line((i & self.1) * self.2)
    }
}

pub(crate) fn fence() {
    full();
}

pub(crate) fn no_read_ahead() {}

pub(crate) fn fence_acquire() {
    loom_fence(Ordering::Acquire);
}

pub(crate) fn fence_release() {
    loom_fence(Ordering::Release);
}
