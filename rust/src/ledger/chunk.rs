//! The chunk records of the broker file, which the broker alone writes.

use crate::layout::{broker_file, chunk_record as rec, limits};
use crate::shm::{LINE, Region};

/// The chunk records.
#[derive(Debug, Clone)]
pub(crate) struct Chunks(Region);

/// A copy of one record: 128 storage indices and the range of a segment that they may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) serial: u64,
    pub(crate) owner: u32,
    pub(crate) owner_serial: u64,
    pub(crate) segment: u32,
    pub(crate) segment_serial: u64,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl Chunks {
    /// Views the chunk records of a broker file.
    pub(crate) fn new(broker: &Region) -> Chunks {
        Chunks(broker.sub(broker_file::CHUNKS, u64::from(limits::CHUNKS) * rec::SIZE))
    }

    fn at(chunk: u32) -> u64 {
        u64::from(chunk) * rec::SIZE
    }

    /// Copies a record. The chunk number is below [`limits::CHUNKS`].
    pub(crate) fn load(&self, chunk: u32) -> Chunk {
        let at = Self::at(chunk);
        Chunk {
            serial: self.0.load(at + rec::SERIAL),
            owner_serial: self.0.load(at + rec::OWNER_SERIAL),
            owner: self.0.load32(at + rec::OWNER),
            segment: self.0.load32(at + rec::SEGMENT),
            offset: self.0.load(at + rec::OFFSET),
            bytes: self.0.load(at + rec::BYTES),
            segment_serial: self.0.load(at + rec::SEGMENT_SERIAL),
        }
    }

    /// The serial of a chunk's present grant, 0 when it is free.
    pub(crate) fn serial(&self, chunk: u32) -> u64 {
        self.0.load(Self::at(chunk) + rec::SERIAL)
    }

    /// The count of changes of the attached bits.
    ///
    /// SYNC epoch: the free test compares it across its two collects; pairs with the broker, which
    /// sets a bit, then the epoch, then replies to the session.
    pub(crate) fn epoch(&self, chunk: u32) -> u64 {
        self.0.load(Self::at(chunk) + rec::EPOCH)
    }

    /// The attached bits.
    pub(crate) fn attached(&self, chunk: u32) -> [u64; limits::BITMAP_WORDS] {
        std::array::from_fn(|w| self.0.load(Self::at(chunk) + rec::ATTACHED + 8 * w as u64))
    }

    /// Whether the attached bits are still the same.
    #[inline]
    pub(crate) fn is_attached(&self, chunk: u32, before: &[u64; limits::BITMAP_WORDS]) -> bool {
        let lines = before.as_chunks::<{ LINE as usize / 8 }>().0.iter();
        lines.zip((Self::at(chunk) + rec::ATTACHED..).step_by(LINE as usize)).all(|(words, at)| {
            let line = self.0.line(at);
            words.iter().zip((0..).step_by(8)).all(|(w, at)| line.load(at) == *w)
        })
    }
}

const _: () = assert!((8 * limits::BITMAP_WORDS as u64).is_multiple_of(LINE));
