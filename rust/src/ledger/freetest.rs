//! Whether a storage has no holder: the owner's question before it recycles one.

use super::{AttachedBits, Chunks, Entries, Refcounts};
use crate::crash_point;
use crate::layout::{limits, refcount_word};
use crate::shm::fence;
use crate::table::Table;

/// Finds refcounts for the free test, without a call to the broker.
pub(crate) trait Holders {
    /// The refcounts of the session now in a slot; `None` when its file is not mapped yet: the storage counts
    /// as held for now. Of the refcounts that a storage needs it is asked for all, so that they come together.
    fn refcounts(&self, slot: u32) -> Option<Refcounts>;
}

/// The sessions that were attached to a chunk in an epoch, with the refcounts, whose files it keeps mapped.
#[derive(Debug)]
struct Audience {
    epoch: u64,
    attached: AttachedBits,
    refcounts: Vec<Refcounts>,
}

/// In place of the index of a storage that was found held.
const NOT_FREE: u32 = u32::MAX;

/// A storage in a test.
#[derive(Debug)]
struct Tested {
    index: u32,
    word: u64, // of its entry, before the mark
}

/// The free test of one owner; one thread at a time.
#[derive(Debug)]
pub(crate) struct FreeTest {
    chunks: Chunks,
    entries: Entries,
    words: Vec<u64>, // the first collect, holder by holder for each storage
    marked: Vec<Tested>,
    known: Table<Option<Box<Audience>>>, // by chunk
}

impl FreeTest {
    pub(crate) fn new(chunks: Chunks, entries: Entries) -> FreeTest {
        FreeTest { chunks, entries, words: Vec::new(), marked: Vec::new(), known: Table::new(limits::CHUNKS) }
    }

    /// Forgets refcounts, those of sessions that are gone among them.
    pub(crate) fn forget(&mut self) {
        self.known.clear();
    }

    /// As [`recycle_all`](FreeTest::recycle_all), of one storage: its next generation.
    pub(crate) fn recycle(&mut self, holders: &dyn Holders, index: u32) -> Option<u64> {
        let mut next = None;
        self.recycle_all(holders, index / limits::CHUNK_INDICES, [index], |_, generation| next = generation);
        next
    }

    /// Runs the test on storages of one chunk and gives `told` each with its next generation, in no order: `None`
    /// where it has a holder, and the generation of now was ended where it has not.
    ///
    /// Two collects of every attached word of a storage, with its RETIRING mark and a fence between them, must be
    /// equal and all zero, and neither the attached bits nor the epoch may differ from those that stood
    /// there when the refcounts were listed: then at the moment of the fence no holder counted it, no place
    /// named it, and a session that looks later sees the mark. One fence serves all of them: it costs as much as a
    /// line that comes from another processor, and so do the words, which stand side by side.
    pub(crate) fn recycle_all(
        &mut self,
        holders: &dyn Holders,
        chunk: u32,
        indices: impl IntoIterator<Item = u32>,
        mut told: impl FnMut(u32, Option<u64>),
    ) {
        let FreeTest { chunks, entries, words, marked, known } = self;
        let Some(audience) = know(known, chunks, holders, chunk) else {
            return indices.into_iter().for_each(|index| told(index, None));
        };
        words.clear();
        marked.clear();
        for index in indices {
            let first = words.len();
            words.extend(audience.refcounts.iter().map(|refcounts| refcounts.load(index)));
            if words[first..].iter().any(|word| word & refcount_word::COUNT_MASK != 0) {
                words.truncate(first);
                told(index, None);
                continue;
            }
            crash_point::at("recycle-collected");
            marked.push(Tested { index, word: entries.mark(index) });
            crash_point::at("recycle-retiring");
        }
        if marked.is_empty() {
            return;
        }
        // SYNC generation: the marks and this process's own un-namings and drops are visible before
        // the second collect reads anything.
        fence();
        let mut first = &words[..];
        for t in &mut *marked {
            let (of_this, rest) = first.split_at(audience.refcounts.len());
            first = rest;
            if audience.refcounts.iter().zip(of_this).any(|(refcounts, word)| refcounts.load(t.index) != *word) {
                entries.unmark(t.index, t.word);
                told(t.index, None);
                t.index = NOT_FREE;
            }
        }
        let same = audience.is_of(chunks, chunk);
        crash_point::at("recycle-checked");
        for t in marked.iter().filter(|t| t.index != NOT_FREE) {
            if !same {
                entries.unmark(t.index, t.word);
                told(t.index, None);
                continue;
            }
            let next = entries.next(t.index, t.word);
            crash_point::at("recycle-next");
            told(t.index, Some(next));
        }
    }
}

/// The sessions attached to a chunk, listed unless that is known; `None` when those of one are not mapped yet.
fn know<'a>(
    known: &'a mut Table<Option<Box<Audience>>>,
    chunks: &Chunks,
    holders: &dyn Holders,
    chunk: u32,
) -> Option<&'a Audience> {
    let (audience, epoch) = (known.at_mut(chunk), chunks.epoch(chunk));
    if audience.as_ref().is_none_or(|a| a.epoch != epoch) {
        let attached = chunks.attached(chunk);
        let all: Vec<_> = attached.slots().map(|slot| holders.refcounts(slot)).collect();
        let refcounts = all.into_iter().collect::<Option<_>>()?;
        *audience = Some(Box::new(Audience { epoch, attached, refcounts }));
    }
    audience.as_deref()
}

impl Audience {
    /// Whether bits and epoch of its chunk are still the same.
    fn is_of(&self, chunks: &Chunks, chunk: u32) -> bool {
        chunks.is_attached(chunk, &self.attached) && chunks.epoch(chunk) == self.epoch
    }
}
