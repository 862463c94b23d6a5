//! The storages of an owner that wait for a free test, and when it is worth one.

use std::collections::VecDeque;

use crate::layout::limits;

/// Storages that are tested together at most: what a test waits for, it waits for once. It bounds the work of one
/// allocation or send too.
pub(super) const BATCH: usize = 16;
/// Bytes of storages that wait for others: no more than a processor's cache keeps beside what a program works on. A
/// larger storage that is free is used again at once, while its bytes are there.
pub(super) const BATCH_BYTES: u64 = 128 << 10;
/// Storages that are out for each one that waits for others to be tested with: where few are out one that is free is
/// soon needed, and a test of many would come between two messages.
const OUT_PER_WAITING: usize = 3;

/// Storages of which the session's own count fell to zero, oldest first.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    indices: VecDeque<u32>,
    // Pushed since the last test; what that one found held is worth no other by itself.
    fresh: usize,
    fresh_bytes: u64,
}

impl Waiting {
    pub(super) fn push(&mut self, index: u32, bytes: u64) {
        self.fresh += 1;
        self.fresh_bytes += bytes;
        self.indices.push_back(index);
    }

    /// Puts back what a test found held.
    pub(super) fn push_again(&mut self, index: u32) {
        self.indices.push_back(index);
    }

    pub(super) fn len(&self) -> usize {
        self.indices.len()
    }

    /// Whether so many wait for a test, or so large ones that they wait for no others.
    #[inline]
    pub(super) fn is_due(&self, many: usize) -> bool {
        self.fresh >= many || self.fresh_bytes > BATCH_BYTES
    }

    /// As [`is_due`](Waiting::is_due), between two allocations, while so many storages are out.
    #[inline]
    pub(super) fn is_due_with(&self, out: usize) -> bool {
        self.is_due((out / OUT_PER_WAITING).min(BATCH))
    }

    /// Begins a test of at most `limit` storages: how many that are.
    pub(super) fn start(&mut self, limit: usize) -> usize {
        (self.fresh, self.fresh_bytes) = (0, 0);
        limit.min(self.len())
    }

    /// The chunk of the one that has waited longest.
    pub(super) fn chunk(&self) -> Option<u32> {
        self.indices.front().map(|index| index / limits::CHUNK_INDICES)
    }

    /// The one that has waited longest, if it is of this chunk.
    pub(super) fn next_of(&mut self, chunk: u32) -> Option<u32> {
        if self.chunk()? == chunk { self.indices.pop_front() } else { None }
    }
}
