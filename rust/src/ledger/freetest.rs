//! Whether a storage has no holder: the owner's question before it recycles one.

use super::{AttachedBits, Chunks, Entries, Row};
use crate::crash_point;
use crate::layout::{limits, row_word};
use crate::shm::fence;
use crate::table::Table;

/// Finds rows for the free test, without a call to the broker.
pub(crate) trait Rows {
    /// The row of the session now in a slot; `None` when its file is not mapped yet: the storage counts
    /// as held for now. Of the rows that a storage needs it is asked for all, so that they come together.
    fn row(&self, slot: u32) -> Option<Row>;
}

/// The sessions that were attached to a chunk in an epoch, with the rows, whose files it keeps mapped.
#[derive(Debug)]
struct Audience {
    epoch: u64,
    attached: AttachedBits,
    rows: Vec<Row>,
}

/// The free test of one owner; one thread at a time.
#[derive(Debug)]
pub(crate) struct FreeTest {
    chunks: Chunks,
    entries: Entries,
    words: Vec<u64>,
    known: Table<Option<Box<Audience>>>, // by chunk
}

impl FreeTest {
    pub(crate) fn new(chunks: Chunks, entries: Entries) -> FreeTest {
        FreeTest { chunks, entries, words: Vec::new(), known: Table::new(limits::CHUNKS) }
    }

    /// Forgets rows, those of sessions that are gone among them.
    pub(crate) fn forget(&mut self) {
        self.known.clear();
    }

    /// Runs the test on a storage and, if it has no holder, ends its generation and returns the next
    /// one.
    ///
    /// Two collects of every attached word, with the RETIRING mark and a fence between them, must be
    /// equal and all zero, and neither the attached bits nor the epoch may differ from those that stood
    /// there when the rows were listed: then at the moment of the fence no row counted it, no place
    /// named it, and a session that looks later sees the mark.
    pub(crate) fn recycle(&mut self, rows: &dyn Rows, index: u32) -> Option<u64> {
        let chunk = index / limits::CHUNK_INDICES;
        let audience = know(&mut self.known, &self.chunks, rows, chunk)?;
        self.words.clear();
        for row in &audience.rows {
            let word = row.load(index);
            if word & row_word::COUNT_MASK != 0 {
                return None;
            }
            self.words.push(word);
        }
        crash_point::at("recycle-collected");
        let word = self.entries.mark(index);
        crash_point::at("recycle-retiring");
        // SYNC generation: the mark and this process's own un-namings and drops are visible before
        // the second collect reads anything.
        fence();
        let same = audience.rows.iter().zip(&self.words).all(|(row, first)| row.load(index) == *first);
        if !same || !audience.is_of(&self.chunks, chunk) {
            self.entries.unmark(index, word);
            return None;
        }
        crash_point::at("recycle-checked");
        let next = self.entries.next(index, word);
        crash_point::at("recycle-next");
        Some(next)
    }
}

/// The sessions attached to a chunk, listed unless that is known; `None` when a row is not mapped yet.
fn know<'a>(
    known: &'a mut Table<Option<Box<Audience>>>,
    chunks: &Chunks,
    rows: &dyn Rows,
    chunk: u32,
) -> Option<&'a Audience> {
    let (audience, epoch) = (known.at_mut(chunk), chunks.epoch(chunk));
    if audience.as_ref().is_none_or(|a| a.epoch != epoch) {
        let attached = chunks.attached(chunk);
        let all: Vec<_> = attached.slots().map(|slot| rows.row(slot)).collect();
        let rows = all.into_iter().collect::<Option<_>>()?;
        *audience = Some(Box::new(Audience { epoch, attached, rows }));
    }
    audience.as_deref()
}

impl Audience {
    /// Whether bits and epoch of its chunk are still the same.
    fn is_of(&self, chunks: &Chunks, chunk: u32) -> bool {
        chunks.is_attached(chunk, &self.attached) && chunks.epoch(chunk) == self.epoch
    }
}
