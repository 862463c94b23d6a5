//! Mapped memory as words: what lies inside a mapping, and where. In which order words are loaded and stored is
//! said in `region`; the models of loom have words of their own, in `words_loom`.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use super::racing::copy_out;
use crate::sync::{AtomicU32, AtomicU64};
use crate::sys::{self, Mapping};

/// Bytes of a cache line.
pub(crate) const LINE: u64 = 64;

/// A range of a mapping that other processes may share. It keeps the mapping alive. Cloning costs an
/// atomic increment, so views are made once, off the hot path.
#[derive(Debug, Clone)]
pub(crate) struct Region {
    base: NonNull<u8>,
    size: u64,
    map: Arc<Mapping>,
}

// SAFETY: the base points into the mapping, which is Send, and which the region keeps.
unsafe impl Send for Region {}
// SAFETY: what it points to is reached through atomics alone, or through views whose owners answer
// for them; the fields never change.
unsafe impl Sync for Region {}

impl Region {
    pub(crate) fn new(map: Arc<Mapping>) -> Region {
        Region { base: map.base(), size: map.len() as u64, map }
    }

    pub(crate) fn len(&self) -> u64 {
        self.size
    }

    /// Whether `n` bytes at `off` lie inside, without overflow.
    pub(crate) fn has(&self, off: u64, n: u64) -> bool {
        off <= self.size && n <= self.size - off
    }

    /// Touches all pages of the mapping for writing; see [`Mapping::populate`].
    pub(crate) fn populate(&self) -> crate::error::Result<()> {
        self.map.populate()
    }

    /// Views `n` bytes at `off`, which the caller has checked.
    pub(crate) fn sub(&self, off: u64, n: u64) -> Region {
        self.check(off, n, 8);
        // SAFETY: the range was just checked to lie inside the mapping.
        let base = unsafe { self.base.add(off as usize) };
        Region { base, size: n, map: self.map.clone() }
    }

    /// The address of the byte at `off`; valid for `n` bytes as long as the region lives.
    pub(crate) fn address(&self, off: u64, n: u64) -> *mut u8 {
        self.check(off, n, 1);
        // SAFETY: the range was just checked to lie inside the mapping.
        unsafe { self.base.as_ptr().add(off as usize) }
    }

    #[inline(always)]
    fn check(&self, off: u64, n: u64, align: u64) {
        if off > self.size || n > self.size - off || off & (align - 1) != 0 {
            outside(off, n, self.size);
        }
    }

    /// As `check` for a word of `1 << log` bytes in one comparison: of a misaligned offset the rotation
    /// makes a number larger than any.
    #[inline(always)]
    fn check_word(&self, off: u64, log: u32) {
        if off.rotate_right(log) >= self.size >> log {
            outside(off, 1 << log, self.size);
        }
    }

    /// The word at `off`. Atomics on it are sound whatever other processes do.
    #[inline]
    pub(super) fn word(&self, off: u64) -> &AtomicU64 {
        self.check_word(off, 3);
        // SAFETY: inside the mapping, which lives as long as self, and 8-aligned, as mappings and
        // the offsets of regions are. Of what is mapped read-only `Load::load_page` alone is made.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(off as usize).cast()) }
    }

    /// The 32-bit word at `off`, for a futex or a half word.
    #[inline]
    pub(super) fn word32(&self, off: u64) -> &AtomicU32 {
        self.check_word(off, 2);
        // SAFETY: as above, 4-aligned.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(off as usize).cast()) }
    }

    /// The words beside each other from `off` on, checked once.
    #[inline(always)]
    pub(super) fn words<const N: usize>(&self, off: u64) -> Words<'_, N> {
        self.check(off, 8 * N as u64, 8);
        // SAFETY: inside the mapping, which lives as long as self, and aligned as `word` says.
        Words(unsafe { &*self.base.as_ptr().add(off as usize).cast() })
    }

    /// The line of words that begins at `off`, checked once for all that is read and written in it.
    #[inline]
    pub(crate) fn line(&self, off: u64) -> Line<'_> {
        const WORDS: u64 = LINE / 8;
        if (self.size / 8).checked_sub(WORDS).is_none_or(|last| off.rotate_right(3) > last) {
            outside(off, LINE, self.size);
        }
        // SAFETY: inside the mapping, and aligned as `word` says.
        Words(unsafe { &*self.base.as_ptr().add(off as usize).cast() })
    }

    /// Starts to fetch the line at `off`, which is about to be written, so that the fetch runs beside
    /// others.
    #[inline]
    pub(crate) fn prefetch_write(&self, off: u64) {
        prefetch_write(self.base.as_ptr().wrapping_add(off as usize));
    }

    /// Starts to move the line at `off`, which was just written, to the cache that all processors
    /// share: a reader fetches it from there sooner than from this processor's own.
    #[inline]
    pub(crate) fn hand_over(&self, off: u64) {
        hand_over(self.base.as_ptr().wrapping_add(off as usize));
    }

    /// Sleeps while the half word at `off` is `value`, at most so long; it may return earlier.
    pub(crate) fn futex_wait(&self, off: u64, value: u32, time: Duration) {
        sys::futex_wait(self.word32(off), value, time);
    }

    /// Wakes all that sleep on the half word at `off`.
    pub(crate) fn futex_wake(&self, off: u64) {
        sys::futex_wake(self.word32(off));
    }

    /// A mistake of this crate would otherwise end in SIGSEGV far away.
    #[inline]
    pub(super) fn writable(&self) {
        debug_assert!(self.map.writable(), "written through a read-only mapping");
    }

    /// Copies bytes out, each read once: a word at a time where they are aligned.
    pub(crate) fn read_bytes(&self, off: u64, into: &mut [u8]) {
        let from = self.address(off, into.len() as u64);
        // SAFETY: the range was just checked to lie inside the mapping; the destination is borrowed exclusively.
        unsafe { copy_out(from, into.as_mut_ptr(), into.len()) }
    }
}

/// Words beside each other, by their offsets in bytes: a line of a slot, or fewer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Words<'a, const N: usize>(&'a [AtomicU64; N]);

/// Eight words of shared memory beside each other.
pub(crate) type Line<'a> = Words<'a, { LINE as usize / 8 }>;

impl<'a, const N: usize> Words<'a, N> {
    #[inline(always)]
    pub(super) fn word(self, off: u64) -> &'a AtomicU64 {
        &self.0[off as usize / 8]
    }
}

/// Words of a region beside each other, checked once for all accesses. It keeps the mapping alive.
#[derive(Debug, Clone)]
pub(crate) struct Fixed<const N: usize> {
    words: NonNull<[AtomicU64; N]>,
    _map: Arc<Mapping>,
}

// SAFETY: as of Region.
unsafe impl<const N: usize> Send for Fixed<N> {}
// SAFETY: as of Region.
unsafe impl<const N: usize> Sync for Fixed<N> {}

impl<const N: usize> Fixed<N> {
    /// The words from `off` on.
    pub(crate) fn new(r: &Region, off: u64) -> Fixed<N> {
        r.check(off, 8 * N as u64, 8);
        // SAFETY: the range was just checked to lie inside the mapping.
        let words = unsafe { r.base.add(off as usize) }.cast();
        Fixed { words, _map: r.map.clone() }
    }

    #[inline(always)]
    pub(super) fn words(&self) -> Words<'_, N> {
        // SAFETY: the words lie inside the mapping, which lives as long as self, and are aligned.
        Words(unsafe { self.words.as_ref() })
    }
}

/// Slots of a region, a power of two of whole lines each, checked once for all accesses: whatever the number, its
/// slot lies inside. It keeps the mapping alive.
#[derive(Debug, Clone)]
pub(crate) struct Ring {
    base: NonNull<u8>,
    mask: u64,
    stride: u64,
    _map: Arc<Mapping>,
}

// SAFETY: as of Region.
unsafe impl Send for Ring {}
// SAFETY: as of Region.
unsafe impl Sync for Ring {}

impl Ring {
    /// So many slots of `stride` bytes from `off` on, which the caller has checked.
    pub(crate) fn new(r: &Region, off: u64, slots: u64, stride: u64) -> Ring {
        r.check(off, slots * stride, 8);
        assert!(slots.is_power_of_two() && stride >= LINE && stride.is_multiple_of(8), "not a ring");
        // SAFETY: the range was just checked to lie inside the mapping.
        let base = unsafe { r.base.add(off as usize) };
        Ring { base, mask: slots - 1, stride, _map: r.map.clone() }
    }

    /// The first line of the slot of a number.
    #[inline(always)]
    pub(crate) fn first(&self, i: u64) -> Line<'_> {
        // SAFETY: the slot lies inside of what `new` has checked, and has a line; it is aligned as `word` says.
        Words(unsafe { &*self.base.as_ptr().add(((i & self.mask) * self.stride) as usize).cast() })
    }
}

#[cold]
#[inline(never)]
fn outside(off: u64, n: u64, size: u64) -> ! {
    panic!("baton: {n} bytes at {off} are outside or misaligned in a shared region of {size}");
}

/// Starts to fetch the line of an address, which may be any: a hint that no program can notice.
#[inline]
pub(crate) fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program sees, and faults nowhere.
    unsafe {
        std::arch::asm!("prefetcht0 [{}]", in(reg) at, options(nostack, preserves_flags, readonly))
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly))
    }
}

/// The same for a line that is about to be written.
#[inline]
fn prefetch_write(at: *const u8) {
    // Processors without the instruction take it for a NOP.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly))
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly))
    }
}

/// Moves the line of an address, which may be any, towards the processors that will read it: a hint as well.
#[inline]
fn hand_over(at: *const u8) {
    // Processors without the instruction take it for a NOP.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: it moves a line between caches, changes nothing that the program sees, and faults nowhere.
    unsafe {
        std::arch::asm!("cldemote [{}]", in(reg) at, options(nostack, preserves_flags))
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
