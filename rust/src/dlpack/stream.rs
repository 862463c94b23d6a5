//! Copies that are larger than a core's cache.

/// From so many bytes on a copy goes around the cache: to write there would first fetch what stood there,
/// and drive out what is still needed.
#[cfg(target_arch = "x86_64")]
const LARGE: usize = 4 << 20;

/// Copies bytes; the two places may overlap.
///
/// # Safety
/// `n` bytes may be read at `from` and written at `to`.
pub(super) unsafe fn copy_bytes(from: *const u8, to: *mut u8, n: usize) {
    #[cfg(target_arch = "x86_64")]
    if n >= LARGE && from.addr().abs_diff(to.addr()) >= n {
        // SAFETY: as the caller says; they do not overlap.
        return unsafe { around_the_cache(from, to, n) };
    }
    // SAFETY: as the caller says.
    unsafe { std::ptr::copy(from, to, n) }
}

/// Copies four pages at a time, a line of each in turn: so the memory has several pages at work.
///
/// # Safety
/// As of `copy_bytes`; the two places do not overlap.
#[cfg(target_arch = "x86_64")]
unsafe fn around_the_cache(from: *const u8, to: *mut u8, n: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    use std::ptr::copy_nonoverlapping as copy;

    const LINE: usize = 64;
    const PAGE: usize = 4096;
    const BLOCK: usize = 4 * PAGE;

    let head = to.align_offset(LINE).min(n);
    let tail = head + (n - head) / BLOCK * BLOCK;
    // SAFETY: parts of what the caller says, cut at `head` and `tail`; from `head` on the destination is
    // aligned to lines, which the stores need. SSE2 is part of x86-64.
    unsafe {
        copy(from, to, head);
        copy(from.add(tail), to.add(tail), n - tail);
        for block in (head..tail).step_by(BLOCK) {
            for line in (0..PAGE).step_by(LINE) {
                for page in (0..BLOCK).step_by(PAGE) {
                    let at = block + page + line;
                    let (from, to) = (from.add(at).cast::<__m128i>(), to.add(at).cast::<__m128i>());
                    let all = [0, 1, 2, 3].map(|i| _mm_loadu_si128(from.add(i)));
                    all.into_iter().enumerate().for_each(|(i, v)| _mm_stream_si128(to.add(i), v));
                }
            }
        }
        _mm_sfence(); // such stores come in no order: whoever is told of the memory later must see them
    }
}

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
    fn large_copies_may_overlap() {
        let n = 5 << 20;
        let mut all: Vec<u8> = (0..n + 100).map(|i| (i % 251) as u8).collect();
        let at = all.as_mut_ptr();
        // SAFETY: both places lie in the vector.
        unsafe { copy_bytes(at, at.add(100), n) };
        assert!(all[100..].iter().enumerate().all(|(i, v)| *v == (i % 251) as u8));
    }
}
