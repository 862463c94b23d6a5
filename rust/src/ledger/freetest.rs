//! Whether nobody holds a storage: the owner's question before it recycles one.

use super::{Chunks, Entries};
use crate::layout::{limits, row_word};
use crate::shm::fence;

/// Finds rows for the free test, without a call to the broker.
pub(crate) trait Rows {
    /// Loads a storage's word in the row of the session now in a slot; `None` when its file is not
    /// mapped yet: the storage counts as held for now.
    fn row_word(&self, slot: u32, index: u32) -> Option<u64>;
}

/// The free test of one owner; one thread at a time.
#[derive(Debug)]
pub(crate) struct FreeTest {
    chunks: Chunks,
    entries: Entries,
    words: Vec<u64>,
}

impl FreeTest {
    pub(crate) fn new(chunks: Chunks, entries: Entries) -> FreeTest {
        FreeTest { chunks, entries, words: Vec::new() }
    }

    /// Runs the test on a storage and, if nobody holds it, ends its generation and returns the next
    /// one.
    ///
    /// Two collects of every attached word, with the RETIRING mark and a fence between them, must be
    /// equal and all zero, and neither the attached bits nor the epoch may have changed: then at the
    /// moment of the fence no row counted it, no place named it, and whoever looks later sees the
    /// mark.
    pub(crate) fn recycle(&mut self, rows: &dyn Rows, index: u32) -> Option<u64> {
        let chunk = index / limits::CHUNK_INDICES;
        let epoch = self.chunks.epoch(chunk);
        let mut attached = [0; limits::BITMAP_WORDS];
        self.words.clear();
        for (w, bits) in attached.iter_mut().enumerate() {
            *bits = self.chunks.attached(chunk, w);
            for slot in slots_of(w, *bits) {
                let v = rows.row_word(slot, index)?;
                if v & row_word::COUNT_MASK != 0 {
                    return None;
                }
                self.words.push(v);
            }
        }
        self.entries.mark(index);
        // SYNC generation: the mark and this process's own un-namings and drops are visible before
        // the second collect reads anything.
        fence();
        if !self.unchanged(rows, index, chunk, epoch, &attached) {
            self.entries.unmark(index);
            return None;
        }
        Some(self.entries.next(index))
    }

    fn unchanged(&self, rows: &dyn Rows, index: u32, chunk: u32, epoch: u64, attached: &[u64]) -> bool {
        let mut first = self.words.iter();
        for (w, bits) in attached.iter().enumerate() {
            for slot in slots_of(w, *bits) {
                if rows.row_word(slot, index).as_ref() != first.next() {
                    return false;
                }
            }
        }
        attached.iter().enumerate().all(|(w, bits)| self.chunks.attached(chunk, w) == *bits)
            && self.chunks.epoch(chunk) == epoch
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
