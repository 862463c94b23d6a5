//! A session's refcounts: what it holds of each storage.

use crate::error::{Code, Error, Result};
use crate::layout::{limits, refcount_word, session_file};
use crate::shm::Region;

#[cold]
fn too_many(index: u32) -> Error {
    let what = format!("this process holds {} references to storage {index}", refcount_word::LIMIT);
    Error::new(Code::TooMany, "drop some of them", what)
}

/// One session's refcounts.
#[derive(Debug, Clone)]
pub(crate) struct Refcounts(Region);

impl Refcounts {
    /// Views the refcounts of a session file.
    pub(crate) fn new(session: &Region) -> Refcounts {
        Refcounts(session.sub(session_file::REFCOUNTS, u64::from(limits::STORAGES) * session_file::WORD))
    }

    #[inline]
    fn at(index: u32) -> u64 {
        u64::from(index) * session_file::WORD
    }

    /// A storage's word: sequence and count.
    ///
    /// SYNC refcount: acquire; a count seen as zero was lowered after its place was un-named. Pairs with
    /// `take` and `drop`.
    #[inline]
    pub(crate) fn load(&self, index: u32) -> u64 {
        self.0.load(Self::at(index))
    }

    /// How many references these refcounts count.
    #[inline]
    pub(crate) fn count(&self, index: u32) -> u64 {
        self.load(index) & refcount_word::COUNT_MASK
    }

    /// Starts to fetch a word that is about to be changed: an owner's free test may have it.
    #[inline]
    pub(crate) fn prefetch(&self, index: u32) {
        self.0.prefetch_write(Self::at(index));
    }

    /// Counts one reference up. It comes before the second look at the place that names the
    /// storage, and that order is the whole protection.
    ///
    /// SYNC refcount: sequentially consistent, so that either the taker's second look sees the place
    /// un-named or the owner's second collect sees this count.
    #[inline]
    pub(crate) fn take(&self, index: u32) -> Result<()> {
        if self.take_one(index) { Ok(()) } else { Err(too_many(index)) }
    }

    /// As `take`: whether it was counted.
    #[inline(always)]
    pub(crate) fn take_one(&self, index: u32) -> bool {
        let before = self.0.add(Self::at(index), refcount_word::TAKE);
        let room = before & refcount_word::COUNT_MASK < refcount_word::LIMIT;
        if !room {
            self.0.add(Self::at(index), refcount_word::DROP);
        }
        room
    }

    /// Counts one reference up beside those that there are, and tells how many these were. Where there
    /// were any, the storage cannot have been recycled, and stays.
    ///
    /// SYNC refcount: as `take`.
    pub(crate) fn take_beside(&self, index: u32) -> u64 {
        self.0.add(Self::at(index), refcount_word::TAKE) & refcount_word::COUNT_MASK
    }

    /// Counts `n` references up, of which fresh refcounts have none.
    ///
    /// SYNC refcount: as `take`.
    pub(crate) fn take_many(&self, index: u32, n: u64) {
        self.0.add(Self::at(index), refcount_word::TAKE.wrapping_mul(n));
    }

    /// Counts one reference down and tells whether it was the last of the holder.
    ///
    /// SYNC refcount: releases all that the holder did with the memory to the owner that reads the word
    /// in its free test.
    #[inline]
    pub(crate) fn drop(&self, index: u32) -> bool {
        let before = self.0.add(Self::at(index), refcount_word::DROP);
        before.wrapping_add(refcount_word::DROP) & refcount_word::COUNT_MASK == 0
    }
}
