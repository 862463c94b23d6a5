//! What a reader says of itself in its session's file, for the broker's listings: how many messages it
//! has taken, and how many it has lost.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use crate::layout::{reader_record, session_file};
use crate::memory::SessionFiles;

/// The record of one reader. Of two readers of a session that would have the same one, the first has it.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    at: Option<u64>,
    taken: u64,
    lost: u64,
}

/// The records that readers and providers of a session have, by their places.
#[derive(Debug, Default)]
pub(crate) struct Counting(Mutex<HashSet<u64>>);

impl Counting {
    /// Makes the record of a reader, of whose memory the broker has made sure.
    pub(crate) fn begin(&self, files: &SessionFiles, number: u64) -> Counted {
        let at = session_file::reader(number);
        if number == 0 || !self.take(at) {
            return Counted::default();
        }
        files.session.store(at + reader_record::TAKEN, 0);
        files.session.store(at + reader_record::LOST, 0);
        files.session.store(at + reader_record::NUMBER, number);
        Counted { at: Some(at), taken: 0, lost: 0 }
    }

    /// Gives a record to another reader. It says what it said until then: the broker may not know yet that
    /// the reader has left.
    pub(crate) fn end(&self, number: u64) {
        self.give(session_file::reader(number));
    }

    /// Takes the record at a place; false where another has it.
    pub(super) fn take(&self, at: u64) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(at)
    }

    /// Gives it back.
    pub(super) fn give(&self, at: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&at);
    }
}

impl Counted {
    /// Whether the reader has a record.
    pub(crate) fn any(&self) -> bool {
        self.at.is_some()
    }

    /// Notes a message, and how many were lost before it.
    #[inline(always)]
    pub(crate) fn took(&mut self, files: &SessionFiles, lost: u64) {
        let Some(at) = self.at else { return };
        self.taken += 1;
        files.session.store(at + reader_record::TAKEN, self.taken);
        if lost != 0 {
            self.lost = self.lost.wrapping_add(lost);
            files.session.store(at + reader_record::LOST, self.lost);
        }
    }
}
