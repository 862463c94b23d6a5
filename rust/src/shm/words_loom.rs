//! Shared memory as loom sees it: every word an atomic of loom's that is made when it is first touched.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::sync::{self, AtomicU32, AtomicU64};

pub(crate) const LINE: u64 = 64;

/// Words, and 32-bit ones, by their offsets: one is made for each width, so no word is used in both. Boxes keep them
/// where they are, and none is taken out.
#[derive(Debug, Default)]
struct Made {
    words: HashMap<u64, Box<AtomicU64>>,
    halves: HashMap<u64, Box<AtomicU32>>,
}

/// A range of memory.
#[derive(Debug, Clone)]
pub(crate) struct Region {
    made: Arc<Mutex<Made>>,
    at: u64,
    size: u64,
}

impl Region {
    /// Memory that reads zero.
    pub(crate) fn zeroed(size: u64) -> Region {
        Region { made: Arc::default(), at: 0, size }
    }

    /// Makes words that another thread will touch first: loom takes the making for a write.
    pub(crate) fn make(self, words: &[u64]) -> Region {
        words.iter().for_each(|w| _ = self.word(*w));
        self
    }

    /// As `make`, of 32-bit words.
    pub(crate) fn make32(self, words: &[u64]) -> Region {
        words.iter().for_each(|w| _ = self.word32(*w));
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
        Region { made: self.made.clone(), at: self.at + off, size: n }
    }

    pub(super) fn writable(&self) {}

    pub(super) fn word(&self, off: u64) -> &AtomicU64 {
        assert!(self.has(off, 8) && off.is_multiple_of(8));
        let mut made = self.made.lock().unwrap();
        let word: *const AtomicU64 = &**made.words.entry(self.at + off).or_insert_with(|| AtomicU64::new(0).into());
        // SAFETY: a box that stays as long as the memory, which self keeps.
        unsafe { &*word }
    }

    pub(super) fn word32(&self, off: u64) -> &AtomicU32 {
        assert!(self.has(off, 4) && off.is_multiple_of(4));
        let mut made = self.made.lock().unwrap();
        let word: *const AtomicU32 = &**made.halves.entry(self.at + off).or_insert_with(|| AtomicU32::new(0).into());
        // SAFETY: as above.
        unsafe { &*word }
    }

    pub(super) fn words<const N: usize>(&self, off: u64) -> Words<'_, N> {
        assert!(self.has(off, 8 * N as u64));
        Words(self, off)
    }

    pub(crate) fn line(&self, off: u64) -> Line<'_> {
        self.words(off)
    }

    pub(crate) fn prefetch_write(&self, _: u64) {}

    pub(crate) fn hand_over(&self, _: u64) {}

    pub(crate) fn futex_wait(&self, off: u64, value: u32, time: Duration) {
        sync::futex_wait(self.word32(off), value, time);
    }

    pub(crate) fn futex_wake(&self, off: u64) {
        sync::futex_wake(self.word32(off));
    }
}

/// Words beside each other, by their offsets in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Words<'a, const N: usize>(&'a Region, u64);

pub(crate) type Line<'a> = Words<'a, { LINE as usize / 8 }>;

impl<'a, const N: usize> Words<'a, N> {
    pub(super) fn word(self, off: u64) -> &'a AtomicU64 {
        assert!(off < 8 * N as u64);
        self.0.word(self.1 + off)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Fixed<const N: usize>(Region);

impl<const N: usize> Fixed<N> {
    pub(crate) fn new(r: &Region, off: u64) -> Fixed<N> {
        Fixed(r.sub(off, 8 * N as u64))
    }

    pub(super) fn words(&self) -> Words<'_, N> {
        self.0.words(0)
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
