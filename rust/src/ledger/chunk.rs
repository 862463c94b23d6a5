//! The chunk records of the broker file, which the broker alone writes.

use crate::layout::{broker_file, chunk_record as rec, limits};
use crate::shm::{Region, bits};

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

/// The attached bits of a chunk: the words of them that are not 0, and which these are.
#[derive(Debug)]
pub(crate) struct AttachedBits {
    which: u64,
    words: Vec<u64>,
}

impl AttachedBits {
    /// The session slots whose bits are set.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> {
        let words = bits(self.which).zip(&self.words);
        words.flat_map(|(w, word)| bits(*word).map(move |b| w * 64 + b))
    }
}

impl Chunks {
    /// Views the chunk records of a broker file.
    pub(crate) fn new(broker: &Region) -> Chunks {
        Chunks(broker.clone())
    }

    /// Whether the record of a chunk was ever used. What lies behind those has no pages and is not looked at,
    /// whatever number a message names.
    fn has(&self, chunk: u32) -> bool {
        chunk < self.0.load32(broker_file::CHUNKS_END).min(limits::CHUNKS)
    }

    /// Copies a record; `None` where there never was one.
    pub(crate) fn load(&self, chunk: u32) -> Option<Chunk> {
        let at = self.has(chunk).then(|| broker_file::chunk(chunk))?;
        Some(Chunk {
            serial: self.0.load(at + rec::SERIAL),
            owner_serial: self.0.load(at + rec::OWNER_SERIAL),
            owner: self.0.load32(at + rec::OWNER),
            segment: self.0.load32(at + rec::SEGMENT),
            offset: self.0.load(at + rec::OFFSET),
            bytes: self.0.load(at + rec::BYTES),
            segment_serial: self.0.load(at + rec::SEGMENT_SERIAL),
        })
    }

    /// The serial of a chunk's present grant, 0 when it is free.
    pub(crate) fn serial(&self, chunk: u32) -> u64 {
        if self.has(chunk) { self.0.load(broker_file::chunk(chunk) + rec::SERIAL) } else { 0 }
    }

    /// The count of changes of the attached bits of a chunk that was granted.
    ///
    /// SYNC epoch: the free test compares it across its two collects; pairs with the broker, which
    /// sets a bit, then the epoch, then replies to the session.
    #[inline]
    pub(crate) fn epoch(&self, chunk: u32) -> u64 {
        self.0.load(broker_file::chunk(chunk) + rec::EPOCH)
    }

    /// The attached bits of a chunk that was granted.
    pub(crate) fn attached(&self, chunk: u32) -> AttachedBits {
        let which = self.attached_words(chunk);
        AttachedBits { which, words: bits(which).map(|w| self.attached_word(chunk, w)).collect() }
    }

    /// Whether the attached bits are still the same.
    #[inline]
    pub(crate) fn is_attached(&self, chunk: u32, before: &AttachedBits) -> bool {
        self.attached_words(chunk) == before.which
            && bits(before.which).zip(&before.words).all(|(w, word)| self.attached_word(chunk, w) == *word)
    }

    /// Which words of the attached bits are not 0.
    #[inline]
    fn attached_words(&self, chunk: u32) -> u64 {
        self.0.load(broker_file::chunk(chunk) + rec::ATTACHED_WORDS)
    }

    #[inline]
    fn attached_word(&self, chunk: u32, w: u32) -> u64 {
        self.0.load(broker_file::chunk(chunk) + rec::ATTACHED + 8 * u64::from(w))
    }
}
