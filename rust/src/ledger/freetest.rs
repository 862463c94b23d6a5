//! Whether nobody holds a storage: the owner's question before it recycles one.

use super::{Chunks, Entries, Row};
use crate::crash_point;
use crate::layout::{limits, row_word};
use crate::shm::fence;

/// Finds rows for the free test, without a call to the broker.
pub(crate) trait Rows {
    /// The row of the session now in a slot; `None` when its file is not mapped yet: the storage counts
    /// as held for now.
    fn row(&self, slot: u32) -> Option<Row>;
}

/// Who was attached to a chunk in an epoch, with the rows, whose files it keeps mapped.
#[derive(Debug)]
struct Audience {
    epoch: u64,
    attached: [u64; limits::BITMAP_WORDS],
    rows: Vec<Row>,
}

/// The free test of one owner; one thread at a time.
#[derive(Debug)]
pub(crate) struct FreeTest {
    chunks: Chunks,
    entries: Entries,
    words: Vec<u64>,
    known: Vec<Option<Box<Audience>>>, // by chunk
}

impl FreeTest {
    pub(crate) fn new(chunks: Chunks, entries: Entries) -> FreeTest {
        FreeTest { chunks, entries, words: Vec::new(), known: Vec::new() }
    }

    /// Forgets rows, those of sessions that are gone among them.
    pub(crate) fn forget(&mut self) {
        self.known.clear();
    }

    /// Runs the test on a storage and, if nobody holds it, ends its generation and returns the next
    /// one.
    ///
    /// Two collects of every attached word, with the RETIRING mark and a fence between them, must be
    /// equal and all zero, and neither the attached bits nor the epoch may differ from those that stood
    /// there when the rows were listed: then at the moment of the fence no row counted it, no place
    /// named it, and whoever looks later sees the mark.
    pub(crate) fn recycle(&mut self, rows: &dyn Rows, index: u32) -> Option<u64> {
        let chunk = index / limits::CHUNK_INDICES;
        self.know(rows, chunk)?;
        let audience = self.known[chunk as usize].as_deref()?;
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

    /// Lists who is attached to a chunk, unless that is known; `None` when a row is not mapped yet.
    fn know(&mut self, rows: &dyn Rows, chunk: u32) -> Option<()> {
        let (at, epoch) = (chunk as usize, self.chunks.epoch(chunk));
        if at >= self.known.len() {
            self.known.resize_with(at + 1, || None);
        }
        if self.known[at].as_ref().is_none_or(|a| a.epoch != epoch) {
            let attached = self.chunks.attached(chunk);
            let slots = attached.iter().enumerate().flat_map(|(w, bits)| slots_of(w, *bits));
            let rows = slots.map(|slot| rows.row(slot)).collect::<Option<_>>()?;
            self.known[at] = Some(Box::new(Audience { epoch, attached, rows }));
        }
        Some(())
    }
}

impl Audience {
    /// Whether bits and epoch of its chunk are still the same.
    fn is_of(&self, chunks: &Chunks, chunk: u32) -> bool {
        chunks.is_attached(chunk, &self.attached) && chunks.epoch(chunk) == self.epoch
    }
}

fn slots_of(w: usize, mut bits: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        if bits == 0 {
            return None;
        }
        let slot = w as u32 * 64 + bits.trailing_zeros();
        bits &= bits - 1;
        Some(slot)
    })
}
