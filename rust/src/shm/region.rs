//! In which order shared words are loaded and stored, and the fences. This is the atomics layer: every access to
//! memory that other processes see, but for the bytes of tensors, is made here.
//!
//! `docs/memory-order.md` lists the accesses, their orders and what finds a weaker one out. Loom runs this file as
//! it stands, on words of its own.

use super::words::{Fixed, Region, Words};
use crate::sync::{self, Load, Ordering};

// Under loom the place that a word is accessed from is that of the caller: its orders are weakened one by one.

impl Region {
    #[inline]
    #[cfg_attr(baton_loom, track_caller)]
    pub(crate) fn load(&self, off: u64) -> u64 {
        self.word(off).load_page(Ordering::Acquire)
    }

    #[inline]
    #[cfg_attr(baton_loom, track_caller)]
    pub(crate) fn load_seq_cst(&self, off: u64) -> u64 {
        self.word(off).load_page(Ordering::SeqCst)
    }

    #[inline]
    #[cfg_attr(baton_loom, track_caller)]
    pub(crate) fn load32(&self, off: u64) -> u32 {
        self.word32(off).load_page(Ordering::Acquire)
    }

    #[inline]
    #[cfg_attr(baton_loom, track_caller)]
    pub(crate) fn store(&self, off: u64, v: u64) {
        self.writable();
        self.word(off).store(v, Ordering::Release);
    }

    #[inline]
    #[cfg_attr(baton_loom, track_caller)]
    pub(crate) fn store32(&self, off: u64, v: u32) {
        self.writable();
        self.word32(off).store(v, Ordering::Release);
    }

    /// Words beside each other from `off` on, each loaded as by `load`, checked once.
    #[inline(always)]
    #[cfg_attr(baton_loom, track_caller)]
    pub(crate) fn loads<const N: usize>(&self, off: u64) -> [u64; N] {
        let (words, mut loaded) = (self.words::<N>(off), [0; N]);
        for (k, to) in loaded.iter_mut().enumerate() {
            *to = words.load(8 * k as u64);
        }
        loaded
    }

    /// Stores words beside each other from `off` on, each as by `store`.
    #[inline(always)]
    #[cfg_attr(baton_loom, track_caller)]
    pub(crate) fn stores<const N: usize>(&self, off: u64, v: [u64; N]) {
        self.writable();
        let words = self.words::<N>(off);
        for (k, v) in v.into_iter().enumerate() {
            words.store(8 * k as u64, v);
        }
    }

    /// Adds and returns the value before.
    #[inline(always)]
    #[cfg_attr(baton_loom, track_caller)]
    pub(crate) fn add(&self, off: u64, delta: u64) -> u64 {
        self.writable();
        self.word(off).fetch_add(delta, Ordering::SeqCst)
    }

    /// Sets bits.
    #[inline]
    #[cfg_attr(baton_loom, track_caller)]
    pub(crate) fn or(&self, off: u64, bits: u64) {
        self.writable();
        self.word(off).fetch_or(bits, Ordering::SeqCst);
    }

    /// Keeps only the bits given, and returns the value before.
    #[inline]
    #[cfg_attr(baton_loom, track_caller)]
    pub(crate) fn and(&self, off: u64, bits: u64) -> u64 {
        self.writable();
        self.word(off).fetch_and(bits, Ordering::SeqCst)
    }

    /// Adds to a half word.
    #[cfg_attr(baton_loom, track_caller)]
    pub(crate) fn add32(&self, off: u64, delta: u32) {
        self.writable();
        self.word32(off).fetch_add(delta, Ordering::SeqCst);
    }

    #[inline]
    #[cfg_attr(baton_loom, track_caller)]
    pub(crate) fn cas(&self, off: u64, old: u64, new: u64) -> bool {
        self.writable();
        self.word(off).compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

impl<const N: usize> Words<'_, N> {
    #[inline(always)]
    #[cfg_attr(baton_loom, track_caller)]
    pub(crate) fn load(self, off: u64) -> u64 {
        self.word(off).load_page(Ordering::Acquire)
    }

    #[inline(always)]
    #[cfg_attr(baton_loom, track_caller)]
    pub(crate) fn load_seq_cst(self, off: u64) -> u64 {
        self.word(off).load_page(Ordering::SeqCst)
    }

    #[inline(always)]
    #[cfg_attr(baton_loom, track_caller)]
    pub(crate) fn store(self, off: u64, v: u64) {
        self.word(off).store(v, Ordering::Release);
    }

    /// What is of use only if a look afterwards says so.
    #[inline(always)]
    pub(crate) fn peek(self, off: u64) -> u64 {
        self.word(off).load_page(Ordering::Relaxed)
    }

    /// Writes what a later store of the same writer makes visible. Only of memory mapped writable.
    #[inline(always)]
    pub(crate) fn put(self, off: u64, v: u64) {
        self.word(off).store(v, Ordering::Relaxed);
    }
}

impl<const N: usize> Fixed<N> {
    /// Word k.
    #[inline(always)]
    #[cfg_attr(baton_loom, track_caller)]
    pub(crate) fn load(&self, k: usize) -> u64 {
        self.words().load(8 * k as u64)
    }
}

/// Orders every access before it with every access after it.
#[inline]
#[cfg_attr(baton_loom, track_caller)]
pub(crate) fn fence() {
    sync::full_fence();
}

/// Keeps the processor from reading what comes next before the loads before it are done. It is no matter
/// of order: a processor that guesses that a message has come, and is wrong, reads the slot's next line
/// in advance and so takes it away from the writer that is filling it.
#[inline]
pub(crate) fn no_read_ahead() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: it waits for earlier loads and changes nothing.
    unsafe {
        std::arch::asm!("lfence", options(nostack, preserves_flags))
    }
}

/// Orders earlier loads before later loads and stores.
#[inline]
#[cfg_attr(baton_loom, track_caller)]
pub(crate) fn fence_acquire() {
    sync::fence(Ordering::Acquire);
}

/// Orders earlier loads and stores before later stores.
#[inline]
#[cfg_attr(baton_loom, track_caller)]
pub(crate) fn fence_release() {
    sync::fence(Ordering::Release);
}

/// Tells the processor that this is a spin loop.
#[inline]
pub(crate) fn pause() {
    std::hint::spin_loop();
}
