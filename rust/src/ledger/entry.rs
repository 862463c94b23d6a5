//! The storage entries of a session file. Their owner writes them; to all others they are statements to
//! be checked against the broker's chunk record.

use crate::layout::{GENERATION_MASK, PRIVATE, RETIRING, limits, session_file, storage_entry as rec};
use crate::shm::Region;

const _: () = assert!(rec::OFFSET == 0 && rec::BYTES == 8 && rec::GENERATION == 16);

/// The entries of one session.
#[derive(Debug, Clone)]
pub(crate) struct Entries(Region);

/// A copy of one entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) generation: u64,
}

impl Entries {
    /// Views the entries of a session file.
    pub(crate) fn new(session: &Region) -> Entries {
        Entries(session.sub(session_file::ENTRIES, u64::from(limits::STORAGES) * rec::SIZE))
    }

    #[inline]
    fn at(index: u32) -> u64 {
        u64::from(index) * rec::SIZE
    }

    /// Copies an entry; the generation is without marks.
    #[inline]
    pub(crate) fn load(&self, index: u32) -> Entry {
        let [offset, bytes, word] = self.0.loads(Self::at(index));
        Entry { offset, bytes, generation: word & GENERATION_MASK }
    }

    /// Where an entry stands, for a prefetch.
    #[cfg(not(baton_loom))]
    pub(crate) fn address(&self, index: u32) -> *mut u8 {
        self.0.address(Self::at(index), rec::SIZE)
    }

    /// Starts to fetch an entry that is about to be changed: sessions that hold the storage read it.
    #[inline]
    pub(crate) fn prefetch(&self, index: u32) {
        self.0.prefetch_write(Self::at(index));
    }

    /// The generation word, with PRIVATE and RETIRING: the second look when a bare handle is opened. The
    /// storage is the handle's if the word is the handle's generation and nothing else.
    ///
    /// SYNC generation: after the refcounts were raised and a full fence; pairs with the owner's mark and with `next`.
    /// It acquires where the storage lies from `share`.
    pub(crate) fn word(&self, index: u32) -> u64 {
        self.0.load(Self::at(index) + rec::GENERATION)
    }

    /// Sets where a fresh storage lies; the owner's, before another session can have its generation.
    pub(crate) fn describe(&self, index: u32, offset: u64, bytes: u64, made_at: u64) {
        let at = Self::at(index);
        self.0.stores(at + rec::OFFSET, [offset, bytes]);
        self.0.store(at + rec::MADE_AT, made_at);
    }

    /// Starts a storage's generations, with one that is private; the owner's, at a fresh grant.
    pub(crate) fn set_generation(&self, index: u32, generation: u64) {
        self.0.store(Self::at(index) + rec::GENERATION, generation & GENERATION_MASK | PRIVATE);
    }

    /// Says that there is a way to the storage from now on; the owner's, which holds it, before it first
    /// names the storage anywhere. It costs a load where that was done before.
    ///
    /// SYNC generation: before the place, or the handle, that names it.
    #[inline]
    pub(crate) fn share(&self, index: u32) {
        let at = Self::at(index) + rec::GENERATION;
        let word = self.0.load(at);
        if word & PRIVATE != 0 {
            self.0.store(at, word & !PRIVATE);
        }
    }

    /// As `share`, by a child of the owner's that counts the storage: meanwhile the owner can store nothing else
    /// there, since it neither tests nor recycles what is counted.
    ///
    /// SYNC generation: as `share`.
    #[cfg(not(baton_loom))]
    pub(crate) fn share_inherited(&self, index: u32) {
        self.0.and(Self::at(index) + rec::GENERATION, !PRIVATE);
    }

    /// Says that a free test is under way: an opener of a bare handle that sees it gives up, one
    /// that does not has counted up before the second collect. The word of before, for the steps that follow.
    ///
    /// SYNC generation: followed by a full fence; pairs with an opener's refcount up and look.
    pub(crate) fn mark(&self, index: u32) -> u64 {
        let at = Self::at(index) + rec::GENERATION;
        let word = self.0.load(at) & !RETIRING;
        self.0.store(at, word | RETIRING);
        word
    }

    pub(crate) fn unmark(&self, index: u32, word: u64) {
        self.0.store(Self::at(index) + rec::GENERATION, word);
    }

    /// Ends a generation, that of `mark`: old handles are Expired from here on, and to the storage of the
    /// new one there is no way yet. The new one.
    ///
    /// SYNC generation: release.
    pub(crate) fn next(&self, index: u32, word: u64) -> u64 {
        let next = ((word + 1) & GENERATION_MASK).max(1);
        self.0.store(Self::at(index) + rec::GENERATION, next | PRIVATE);
        next
    }
}
