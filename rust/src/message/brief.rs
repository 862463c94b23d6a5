//! A message of one tensor that stands in its slot's first line: in a storage of its own session's machine memory,
//! from its first byte on, compact, without a name, and with nothing beside it. Most messages are such.

use super::refs::Ref;
use crate::dims::Dims;
use crate::dtype::DType;
use crate::layout::{brief as rec, slot, slot_flag};

/// Dimensions of a tensor that a brief message may have.
pub(crate) const NDIM: usize = 4;

/// What a brief message says: unchecked data from its writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Brief {
    /// Those of a slot, without the one that says that it is brief.
    pub(crate) flags: u32,
    pub(crate) reference: Ref,
    pub(crate) dtype: DType,
    ndim: u8,
    extents: [u32; NDIM],
}

/// Words of a brief message behind its stamp.
pub(crate) const WORDS: usize = 6;

const _: () = {
    // `words` and `of_words` move whole words.
    assert!(rec::SEQ == slot::SEQ && rec::STAMP == slot::STAMP && rec::FLAGS == slot::FLAGS);
    assert!(rec::FLAGS == 16 && rec::NDIM == 18 && rec::ZERO == 19 && rec::INDEX == 20);
    assert!(rec::SERIAL == 24 && rec::GENERATION == 32 && rec::CODE == 40 && rec::BITS == 41 && rec::LANES == 42);
    assert!(rec::REST == 44 && rec::EXTENTS == 48 && rec::SIZE == 64);
};

/// Flags that a brief message may have beside the one that says so.
const ALLOWED: u32 = slot_flag::WRITABLE | slot_flag::LIVE | slot_flag::READ_ONLY;

impl Brief {
    /// Of a compact tensor at the start of a storage; `None` where it has too many dimensions, or too large ones.
    #[inline(always)]
    pub(crate) fn of(flags: u32, reference: Ref, dtype: DType, shape: &[i64]) -> Option<Brief> {
        let mut extents = [0; NDIM];
        if shape.len() > NDIM {
            return None;
        }
        for (to, d) in extents.iter_mut().zip(shape) {
            *to = u32::try_from(*d).ok()?;
        }
        Some(Brief { flags, reference, dtype, ndim: shape.len() as u8, extents })
    }

    /// The wire form behind the stamp.
    #[inline(always)]
    pub(crate) fn words(&self) -> [u64; WORDS] {
        let Brief { flags, reference: r, dtype, ndim, extents: e } = *self;
        [
            u64::from(flags | slot_flag::BRIEF) | u64::from(ndim) << 16 | u64::from(r.index) << 32,
            r.serial,
            r.generation,
            u64::from(dtype.code) | u64::from(dtype.bits) << 8 | u64::from(dtype.lanes) << 16,
            u64::from(e[0]) | u64::from(e[1]) << 32,
            u64::from(e[2]) | u64::from(e[3]) << 32,
        ]
    }

    /// What stands in words of which the first says that they are brief; `None` where no writer that keeps to the
    /// protocol has written them.
    #[inline(always)]
    pub(crate) fn of_words(w: [u64; WORDS]) -> Option<Brief> {
        let (flags, ndim) = (w[0] as u32 & 0xffff & !slot_flag::BRIEF, w[0] as u32 >> 16);
        if ndim as usize > NDIM || flags & !ALLOWED != 0 || w[3] >> 32 != 0 {
            return None;
        }
        Some(Brief {
            flags,
            reference: Ref { serial: w[1], generation: w[2], index: (w[0] >> 32) as u32 },
            dtype: DType { code: w[3] as u8, bits: (w[3] >> 8) as u8, lanes: (w[3] >> 16) as u16 },
            ndim: ndim as u8,
            extents: [w[4] as u32, (w[4] >> 32) as u32, w[5] as u32, (w[5] >> 32) as u32],
        })
    }

    /// Whether a slot's word of flags says that its message is brief.
    #[inline(always)]
    pub(crate) fn is(word: u64) -> bool {
        word as u32 & slot_flag::BRIEF != 0
    }

    /// The extents of its tensor.
    #[inline(always)]
    pub(crate) fn shape(&self) -> Dims {
        Dims::from_fn(usize::from(self.ndim), |i| i64::from(self.extents[i]))
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.flags & slot_flag::WRITABLE != 0
    }

    /// Whether a receiver may not write the tensor.
    pub(crate) fn is_read_only(&self) -> bool {
        self.flags & (slot_flag::WRITABLE | slot_flag::READ_ONLY) != slot_flag::WRITABLE
    }
}

#[cfg(all(test, not(baton_loom)))]
mod tests {
    use super::*;

    const R: Ref = Ref { serial: 7, generation: 9, index: 300 };

    #[test]
    fn a_brief_message_reads_as_it_was_written() {
        let most = [i64::from(u32::MAX), 0, 1, 2];
        for n in 0..=NDIM {
            for flags in [0, slot_flag::WRITABLE, slot_flag::READ_ONLY | slot_flag::LIVE] {
                let b = Brief::of(flags, R, DType { code: 4, bits: 16, lanes: 2 }, &most[..n]).unwrap();
                assert_eq!(Brief::of_words(b.words()), Some(b));
                assert!(Brief::is(b.words()[0]) && *b.shape() == most[..n]);
            }
        }
        for shape in [&[1, 1, 1, 1, 1][..], &[1 << 32], &[-1]] {
            assert_eq!(Brief::of(0, R, DType::UINT8, shape), None);
        }
    }

    #[test]
    fn what_is_not_of_this_version_is_refused() {
        let b = Brief::of(0, R, DType::UINT8, &[4096]).unwrap().words();
        for (word, bits) in
            [(0, 5 << 16), (0, 1 << 24), (0, 2), (0, 8), (0, 64), (0, 1 << 15), (3, 1 << 32), (3, 1 << 63)]
        {
            let mut w = b;
            w[word] |= bits;
            assert_eq!(Brief::of_words(w), None, "word {word}: {bits:#x}");
        }
    }
}
