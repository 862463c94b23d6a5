//! Copying elements between layouts.

use super::stream::copy_run;
use crate::shm::racing::{byte, half, word};

/// One dimension of a copy: its extent, and the strides of both sides in bytes.
#[derive(Clone, Copy)]
struct Dim {
    extent: i64,
    to: i64,
    from: i64,
}

/// Copies the elements of a shape, `item` bytes each; strides are in bytes. Dimensions that are one
/// run on both sides are copied as one.
///
/// # Safety
/// Every element that shape and strides reach lies in memory that may be read at `from` and written at
/// `to`. Where the two overlap, elements may be overwritten before they are copied.
pub(super) unsafe fn copy(to: (*mut u8, &[i64]), from: (*const u8, &[i64]), shape: &[i64], item: usize) {
    if shape.contains(&0) {
        return;
    }
    let mut dims: Vec<Dim> = Vec::with_capacity(shape.len()); // outermost first
    for ((extent, t), f) in shape.iter().zip(to.1).zip(from.1).filter(|((extent, _), _)| **extent != 1) {
        match dims.last_mut() {
            Some(d) if d.to == t.wrapping_mul(*extent) && d.from == f.wrapping_mul(*extent) => {
                *d = Dim { extent: d.extent * extent, to: *t, from: *f };
            }
            _ => dims.push(Dim { extent: *extent, to: *t, from: *f }),
        }
    }
    let mut run = item;
    if let Some(d) = dims.last().filter(|d| d.to == item as i64 && d.from == item as i64) {
        run = item * d.extent as usize;
        dims.pop();
    }
    // SAFETY: as the caller says; the merged dimensions reach the same elements.
    unsafe { walk(to.0, from.0, &dims, run) }
}

/// # Safety
/// As in `copy`, for runs of `run` bytes.
unsafe fn walk(to: *mut u8, from: *const u8, dims: &[Dim], run: usize) {
    let Some((d, inner)) = dims.split_first() else {
        // SAFETY: one run of the caller's.
        return unsafe { copy_run(from, to, run) };
    };
    for i in 0..d.extent {
        let (to, from) = (to.wrapping_offset((i * d.to) as isize), from.wrapping_offset((i * d.from) as isize));
        // SAFETY: an index within the extent, so within what the caller says.
        unsafe {
            match (inner.is_empty(), run) {
                (true, 4) if from.addr().is_multiple_of(4) => to.cast::<u32>().write_unaligned(half(from)),
                (true, 8) if from.addr().is_multiple_of(8) => to.cast::<u64>().write_unaligned(word(from)),
                _ => walk(to, from, inner, run),
            }
        }
    }
}

/// Packs elements of `bits` < 8 or odd widths one behind the other, from layouts in which elements
/// begin at any bit. `place` gives the bit, counted from `from`, of the element with these indices.
///
/// # Safety
/// Every bit of every element lies in memory that may be read; `to` has room for all of them packed.
pub(super) unsafe fn pack(to: *mut u8, from: *const u8, shape: &[i64], bits: u64, place: impl Fn(&[i64]) -> i64) {
    let mut index = vec![0i64; shape.len()];
    let mut at = 0u64; // the next bit to write
    loop {
        let first = place(&index);
        for k in 0..bits {
            let bit = first + k as i64;
            // SAFETY: a bit of an element; the destination has been sized for as many.
            unsafe {
                let value = (byte(from.wrapping_offset((bit >> 3) as isize)) >> (bit & 7)) & 1;
                let out = to.wrapping_add((at >> 3) as usize);
                if at & 7 == 0 {
                    *out = 0;
                }
                *out |= value << (at & 7);
            }
            at += 1;
        }
        // The next element, the last dimension fastest.
        let Some(d) = (0..shape.len()).rev().find(|d| index[*d] + 1 < shape[*d]) else { return };
        index[d] += 1;
        index[d + 1..].fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copied(shape: &[i64], to: &[i64], from: &[i64], n: usize) -> Vec<u16> {
        let source: Vec<u16> = (0..n as u16).collect();
        let mut out = vec![0u16; n];
        // SAFETY: the layouts of the tests lie within n elements.
        unsafe { copy((out.as_mut_ptr().cast(), to), (source.as_ptr().cast(), from), shape, 2) };
        out
    }

    #[test]
    fn layouts_are_followed() {
        assert_eq!(copied(&[6], &[2], &[2], 6), [0, 1, 2, 3, 4, 5]);
        assert_eq!(copied(&[2, 3], &[6, 2], &[2, 4], 6), [0, 2, 4, 1, 3, 5]);
        assert_eq!(copied(&[2, 1, 3], &[6, 99, 2], &[6, 7, 2], 6), [0, 1, 2, 3, 4, 5]);
        assert_eq!(copied(&[], &[], &[], 1), [0]);
        assert_eq!(copied(&[0, 3], &[6, 2], &[6, 2], 3), [0, 0, 0]);
        assert_eq!(copied(&[3], &[2], &[0], 3), [0, 0, 0]);
    }

    #[test]
    fn bits_are_packed() {
        let padded = [0x01u8, 0x02, 0x03, 0x0f, 0x05];
        let mut out = [0xffu8; 3];
        // SAFETY: five elements of a byte each, 20 bits to write.
        unsafe { pack(out.as_mut_ptr(), padded.as_ptr(), &[5], 4, |i| i[0] * 8) };
        assert_eq!(out, [0x21, 0xf3, 0x05]);
        let packed = [0x21u8, 0x43, 0x65];
        let mut turned = [0u8; 3];
        // SAFETY: six elements of four bits on both sides.
        unsafe { pack(turned.as_mut_ptr(), packed.as_ptr(), &[2, 3], 4, |i| (i[0] + 2 * i[1]) * 4) };
        assert_eq!(turned, [0x31, 0x25, 0x64]);
        let mut sixes = [0u8; 3];
        // SAFETY: two elements of six bits, in 16 bits and in 12.
        unsafe { pack(sixes.as_mut_ptr(), [0xffu8, 0x0f].as_ptr(), &[2], 6, |i| i[0] * 10) };
        assert_eq!(sixes[..2], [0xff, 0x00]);
    }
}
