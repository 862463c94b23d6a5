//! Whether nobody holds a storage: the owner's question before it recycles one.

use super::{Chunks, Entries, Row};
use crate::crash_point;
use crate::layout::{limits, row_word};
use crate::shm::fence;

/// Finds rows for the free test, without a call to the broker.
pub(crate) trait Rows {
    /// The serial of the session now in a slot.
    fn session(&self, slot: u32) -> u64;

    /// The row of the session now in a slot, and its serial; `None` when its file is not mapped yet:
    /// the storage counts as held for now.
    fn row(&self, slot: u32) -> Option<(u64, Row)>;
}

/// The rows that were looked at before, by slot. It keeps their files mapped.
#[derive(Debug, Default)]
struct Known(Vec<Option<(u64, Row)>>);

impl Known {
    #[inline]
    fn word(&mut self, rows: &dyn Rows, slot: u32, index: u32) -> Option<u64> {
        let at = slot as usize;
        match self.0.get(at) {
            Some(Some((serial, row))) if *serial == rows.session(slot) => Some(row.load(index)),
            _ => {
                let found = rows.row(slot)?;
                let word = found.1.load(index);
                if at >= self.0.len() {
                    self.0.resize_with(at + 1, || None);
                }
                self.0[at] = Some(found);
                Some(word)
            }
        }
    }
}

/// The free test of one owner; one thread at a time.
#[derive(Debug)]
pub(crate) struct FreeTest {
    chunks: Chunks,
    entries: Entries,
    words: Vec<u64>,
    known: Known,
}

impl FreeTest {
    pub(crate) fn new(chunks: Chunks, entries: Entries) -> FreeTest {
        FreeTest { chunks, entries, words: Vec::new(), known: Known::default() }
    }

    /// Forgets rows, those of sessions that are gone among them.
    pub(crate) fn forget(&mut self) {
        self.known = Known::default();
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
                let v = self.known.word(rows, slot, index)?;
                if v & row_word::COUNT_MASK != 0 {
                    return None;
                }
                self.words.push(v);
            }
        }
        crash_point::at("recycle-collected");
        self.entries.mark(index);
        crash_point::at("recycle-retiring");
        // SYNC generation: the mark and this process's own un-namings and drops are visible before
        // the second collect reads anything.
        fence();
        if !self.unchanged(rows, index, chunk, epoch, &attached) {
            self.entries.unmark(index);
            return None;
        }
        crash_point::at("recycle-checked");
        let generation = self.entries.next(index);
        crash_point::at("recycle-next");
        Some(generation)
    }

    fn unchanged(&mut self, rows: &dyn Rows, index: u32, chunk: u32, epoch: u64, attached: &[u64]) -> bool {
        let mut first = self.words.iter();
        for (w, bits) in attached.iter().enumerate() {
            for slot in slots_of(w, *bits) {
                if self.known.word(rows, slot, index).as_ref() != first.next() {
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
