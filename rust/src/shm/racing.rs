//! Copies out of memory that others may be writing: each byte is read once, by a load that the compiler does not see
//! or that is atomic, so that what is torn is a wrong number and nothing more.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Bytes of a word.
const WORD: usize = 8;
/// Bytes that are copied in one step: a line of the cache.
const BLOCK: usize = 64;

/// Reads a byte.
///
/// # Safety
/// It may be read; it is written by atomic stores, or by other processes, if at all.
#[inline(always)]
pub(crate) unsafe fn byte(at: *const u8) -> u8 {
    // SAFETY: as the caller says; nothing is stored.
    unsafe { AtomicU8::from_ptr(at.cast_mut()) }.load(Ordering::Relaxed)
}

/// Reads half a word.
///
/// # Safety
/// As of [`byte`], for all of it; the address is a multiple of 4.
#[inline(always)]
pub(crate) unsafe fn half(at: *const u8) -> u32 {
    // SAFETY: as the caller says; nothing is stored.
    unsafe { AtomicU32::from_ptr(at.cast_mut().cast()) }.load(Ordering::Relaxed)
}

/// Reads a word.
///
/// # Safety
/// As of [`byte`], for all of it; the address is a multiple of 8.
#[inline(always)]
pub(crate) unsafe fn word(at: *const u8) -> u64 {
    // SAFETY: as the caller says; nothing is stored.
    unsafe { AtomicU64::from_ptr(at.cast_mut().cast()) }.load(Ordering::Relaxed)
}

/// Copies bytes out.
///
/// # Safety
/// `n` bytes may be read at `from`, as [`byte`] says, and written at `to`, by this thread alone. Where the two overlap
/// the copy may be anything.
pub(crate) unsafe fn copy_out(from: *const u8, to: *mut u8, n: usize) {
    let blocks = n / BLOCK;
    // SAFETY: two parts of what the caller says.
    unsafe {
        copy_blocks(from, to, blocks);
        copy_few(from.wrapping_add(blocks * BLOCK), to.wrapping_add(blocks * BLOCK), n % BLOCK);
    }
}

/// As `copy_out`, word by word where the source is aligned.
///
/// # Safety
/// As of `copy_out`.
#[inline]
unsafe fn copy_few(from: *const u8, to: *mut u8, n: usize) {
    let head = from.align_offset(WORD).min(n);
    let words = head + (n - head) / WORD * WORD;
    // SAFETY: parts of what the caller says, cut at `head` and `words`; between them the source is aligned to words.
    unsafe {
        let one = |at: usize| to.wrapping_add(at).write(byte(from.wrapping_add(at)));
        (0..head).for_each(one);
        (head..words)
            .step_by(WORD)
            .for_each(|at| to.wrapping_add(at).cast::<u64>().write_unaligned(word(from.wrapping_add(at))));
        (words..n).for_each(one);
    }
}

/// As `copy_out`, of `n` blocks. The loads are assembly, since 16 bytes have no atomic type: as the language sees it
/// they are atomic loads of bytes.
///
/// # Safety
/// As of `copy_out`.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_blocks(from: *const u8, to: *mut u8, n: usize) {
    if n == 0 {
        return;
    }
    // SAFETY: it reads and writes what the caller says, and changes the registers that it names. SSE is part of x86-64.
    unsafe {
        std::arch::asm!(
            "2:",
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + 32]",
            "movups {d}, [{from} + 48]",
            "movups [{to}], {a}",
            "movups [{to} + 16], {b}",
            "movups [{to} + 32], {c}",
            "movups [{to} + 48], {d}",
            "add {from}, 64",
            "add {to}, 64",
            "dec {n}",
            "jnz 2b",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            n = inout(reg) n => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// As on x86-64, word by word.
///
/// # Safety
/// As of `copy_out`.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_blocks(from: *const u8, to: *mut u8, n: usize) {
    // SAFETY: as the caller says.
    unsafe { copy_few(from, to, n * BLOCK) }
}

/// Copies a block to memory, around the cache.
///
/// # Safety
/// As of `copy_out`, for a block; the destination is aligned to 16 bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn stream_block(from: *const u8, to: *mut u8) {
    // SAFETY: as of `copy_blocks`. SSE2 is part of x86-64.
    unsafe {
        std::arch::asm!(
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + 32]",
            "movups {d}, [{from} + 48]",
            "movntps [{to}], {a}",
            "movntps [{to} + 16], {b}",
            "movntps [{to} + 32], {c}",
            "movntps [{to} + 48], {d}",
            from = in(reg) from,
            to = in(reg) to,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack, preserves_flags),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_whole_wherever_they_begin_and_end() {
        let from: Vec<u8> = (0..400u32).map(|i| (i % 251) as u8).collect();
        for a in 0..9 {
            for b in 0..9 {
                for n in (0..140).chain([191, 192, 255, 300]) {
                    let mut to = vec![0xffu8; n + b + 16];
                    // SAFETY: both have n bytes behind these places.
                    unsafe { copy_out(from[a..].as_ptr(), to[b..].as_mut_ptr(), n) };
                    assert!(to[b..b + n] == from[a..a + n], "{n} bytes from {a} to {b}");
                    assert!(to[..b].iter().chain(&to[b + n..]).all(|v| *v == 0xff), "bytes beside it were written");
                }
            }
        }
    }
}
