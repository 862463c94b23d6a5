//! Copies of what other libraries' tensors have, also of those that are larger than a core's cache. What is copied may
//! lie in memory that others write, such as a live name of another session: it is read by loads that may race.

use crate::shm::racing::copy_out;
#[cfg(target_arch = "x86_64")]
use crate::shm::{prefetch, racing::stream_block};

/// From so many bytes on a copy goes around the cache: to write there would first fetch what stood there,
/// and drive out what is still needed.
const LARGE: usize = 4 << 20;
/// As `LARGE`, for all the copies of many small ones together: their sources lie about, and each is drawn
/// into the cache for its copy alone.
const MANY: u64 = 512 << 10;

/// Whether copies of so many bytes together go around the cache.
pub(super) fn is_much(bytes: u64) -> bool {
    bytes >= MANY
}

/// Copies bytes; the two places may overlap.
///
/// # Safety
/// `n` bytes may be read at `from` and written at `to`. Others write what is read by atomic stores, or are other
/// processes, if they do, and nothing of what is written; where the two places overlap, nothing of both.
pub(super) unsafe fn copy_bytes(from: *const u8, to: *mut u8, n: usize) {
    // SAFETY: as the caller says.
    unsafe {
        if n < LARGE || from.addr().abs_diff(to.addr()) < n {
            return copy_run(from, to, n);
        }
        copy_around(from, to, n);
    }
    end_around();
}

/// As `copy_bytes`, of few.
///
/// # Safety
/// As of `copy_bytes`.
pub(super) unsafe fn copy_run(from: *const u8, to: *mut u8, n: usize) {
    // SAFETY: as the caller says.
    unsafe {
        match from.addr().abs_diff(to.addr()) < n {
            true => std::ptr::copy(from, to, n),
            false => copy_out(from, to, n),
        }
    }
}

/// Copies around the cache. `end_around` must follow.
///
/// # Safety
/// As of `copy_bytes`; the two places do not overlap.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn copy_around(from: *const u8, to: *mut u8, n: usize) {
    // SAFETY: as the caller says.
    unsafe { copy_lines(from, to, n, n >= BLOCK && is_amd()) }
}

/// As `copy_around`: page after page, or four at a time.
///
/// # Safety
/// As of `copy_around`.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_lines(from: *const u8, to: *mut u8, n: usize, one_by_one: bool) {
    let head = to.align_offset(LINE).min(n);
    let blocks = head + (n - head) / BLOCK * BLOCK;
    let lines = head + (n - head) / LINE * LINE;
    // SAFETY: parts of what the caller says, cut at `head`, `blocks` and `lines`; from `head` on the
    // destination is aligned to lines.
    unsafe {
        copy_out(from, to, head);
        if one_by_one {
            (head..blocks).step_by(LINE).for_each(|at| copy_line_ahead(from, to, at));
        } else {
            (head..blocks).step_by(BLOCK).for_each(|at| copy_block(from, to, at));
        }
        (blocks..lines).step_by(LINE).for_each(|at| copy_line(from, to, at));
        copy_out(from.add(lines), to.add(lines), n - lines);
    }
}

#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;
#[cfg(target_arch = "x86_64")]
const PAGE: usize = 4096;
#[cfg(target_arch = "x86_64")]
const BLOCK: usize = 4 * PAGE;

/// Whether the processor is AMD's. There one page after the other, with the next fetched ahead, takes 37 to 49
/// us for a MiB where four at a time take 52 to 71 (EPYC, 1 to 256 MiB).
#[cfg(target_arch = "x86_64")]
fn is_amd() -> bool {
    use std::arch::x86_64::__cpuid;
    use std::sync::OnceLock;

    // Kept: in a virtual machine the instruction is an exit to its host.
    static AMD: OnceLock<bool> = OnceLock::new();
    *AMD.get_or_init(|| {
        #[allow(unused_unsafe, reason = "safe in newer versions of Rust")]
        // SAFETY: every x86-64 processor has the instruction, and the leaf 0 with its maker's name.
        let leaf = unsafe { __cpuid(0) };
        [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes).concat() == b"AuthenticAMD"
    })
}

/// Copies four pages, a line of each in turn, so that the memory has several pages at work.
///
/// # Safety
/// As of `copy_line`, for a block.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_block(from: *const u8, to: *mut u8, at: usize) {
    for line in (0..PAGE).step_by(LINE) {
        for page in (0..BLOCK).step_by(PAGE) {
            // SAFETY: as the caller says.
            unsafe { copy_line(from, to, at + page + line) };
        }
    }
}

/// Copies a line and begins to fetch the one a page later, which the processor does not do by itself across the
/// end of a page.
///
/// # Safety
/// As of `copy_line`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn copy_line_ahead(from: *const u8, to: *mut u8, at: usize) {
    prefetch(from.wrapping_add(at + PAGE));
    // SAFETY: as the caller says.
    unsafe { copy_line(from, to, at) };
}

/// # Safety
/// A line may be read `at` bytes behind `from`, and written behind `to`, where one begins.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn copy_line(from: *const u8, to: *mut u8, at: usize) {
    // SAFETY: as the caller says.
    unsafe { stream_block(from.add(at), to.add(at)) }
}

/// Ends copies around the cache: their stores come in no order, and a thread that learns of the memory later
/// must see them.
#[cfg(target_arch = "x86_64")]
pub(super) fn end_around() {
    // SAFETY: SSE is part of x86-64.
    unsafe { std::arch::x86_64::_mm_sfence() }
}

/// Other processors find out by themselves what is written as a stream.
///
/// # Safety
/// As of `copy_bytes`.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn copy_around(from: *const u8, to: *mut u8, n: usize) {
    // SAFETY: as the caller says.
    unsafe { copy_out(from, to, n) }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn end_around() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_copies_are_whole_wherever_they_begin() {
        let n = (4 << 20) + 12_345;
        let from: Vec<u32> = (0..n as u32 / 4 + 64).map(|i| i.wrapping_mul(2_654_435_761)).collect();
        let from: Vec<u8> = from.iter().flat_map(|v| v.to_le_bytes()).collect();
        for (a, b) in [(0, 0), (1, 0), (0, 3), (17, 64), (5, 255)] {
            let mut to = vec![0xa5u8; n + 256];
            // SAFETY: both have more than n bytes behind these places.
            unsafe { copy_bytes(from[a..].as_ptr(), to[b..].as_mut_ptr(), n) };
            assert!(to[b..b + n] == from[a..a + n], "from {a} to {b}");
            assert!(to[..b].iter().chain(&to[b + n..]).all(|v| *v == 0xa5), "bytes beside the copy were written");
        }
    }

    #[test]
    fn copies_around_the_cache_are_whole_whatever_their_length() {
        let from: Vec<u8> = (0..40_000u32).map(|i| (i % 251) as u8).collect();
        for (a, b, n) in [(0, 0, 0), (3, 1, 5), (1, 0, 63), (0, 60, 68), (7, 0, 4096), (0, 9, 4097), (64, 1, 39_000)] {
            let mut to = vec![0xffu8; n + b + 64];
            // SAFETY: both have n bytes behind these places.
            unsafe { copy_around(from[a..].as_ptr(), to[b..].as_mut_ptr(), n) };
            end_around();
            assert!(to[b..b + n] == from[a..a + n], "{n} bytes from {a} to {b}");
            assert!(to[..b].iter().chain(&to[b + n..]).all(|v| *v == 0xff), "bytes beside the copy were written");
            #[cfg(target_arch = "x86_64")]
            for one_by_one in [false, true] {
                to.fill(0xff);
                // SAFETY: as above.
                unsafe { copy_lines(from[a..].as_ptr(), to[b..].as_mut_ptr(), n, one_by_one) };
                end_around();
                assert!(to[b..b + n] == from[a..a + n], "{n} bytes from {a} to {b}, one by one: {one_by_one}");
                assert!(to[..b].iter().chain(&to[b + n..]).all(|v| *v == 0xff), "bytes beside the copy were written");
            }
        }
    }

    #[test]
    fn large_copies_may_overlap() {
        let n = 5 << 20;
        let mut all: Vec<u8> = (0..n + 100).map(|i| (i % 251) as u8).collect();
        let at = all.as_mut_ptr();
        // SAFETY: both places lie in the vector.
        unsafe { copy_bytes(at, at.add(100), n) };
        assert!(all[100..].iter().enumerate().all(|(i, v)| *v == (i % 251) as u8));
    }
}
