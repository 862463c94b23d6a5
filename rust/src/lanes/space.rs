//! The space of the own session file for lanes, and the lanes there that were left and that the broker
//! keeps for their readers.

use std::collections::HashMap;

use crate::error::{Code, Error, Result};
use crate::layout::{lane_record, session_file};
use crate::ledger::Ranges;
use crate::memory::Pages;
use crate::sys;

/// Hands out ranges of the own session file for lanes.
#[derive(Debug)]
pub(crate) struct LaneSpace {
    free: Ranges,
    left: HashMap<u64, Left>, // by offset
}

#[derive(Debug)]
struct Left {
    bytes: u64,
    /// Known once the broker has taken it over.
    listed: Option<Listed>,
}

/// Where the broker lists a lane that was left.
#[derive(Debug, Clone, Copy)]
struct Listed {
    record: u64, // in the broker file
    incarnation: u64,
}

impl Listed {
    /// Finds where a topic lists a lane of the own session file.
    fn find(pages: &Pages, topic: u32, at: u64) -> Option<Listed> {
        let own = |r: &u64| {
            pages.broker.load(r + lane_record::SERIAL) == pages.serial
                && pages.broker.load(r + lane_record::OFFSET) == at
        };
        let record = pages.lane_records(topic).find(own)?;
        let incarnation = pages.broker.load(record + lane_record::INCARNATION);
        (incarnation != 0).then_some(Listed { record, incarnation })
    }

    /// SYNC lane-incarnation: cleared when nothing of the lane is to be read any more; then its place is
    /// this session's.
    fn holds(self, pages: &Pages) -> bool {
        pages.broker.load(self.record + lane_record::INCARNATION) == self.incarnation
    }
}

impl LaneSpace {
    pub(crate) fn new() -> LaneSpace {
        let mut free = Ranges::default();
        free.give(session_file::LANES, session_file::BYTES - session_file::LANES);
        LaneSpace { free, left: HashMap::new() }
    }

    /// Reserves a range of whole pages that read zero.
    pub(crate) fn take(&mut self, pages: &Pages, bytes: u64) -> Result<u64> {
        let Some(at) = self.free.take(bytes) else {
            let what = "this session's space for lanes is full";
            return Err(Error::new(Code::TooMany, "close topics or use a smaller depth", what));
        };
        if let Err(e) = sys::reserve(&pages.session_fd, at, bytes) {
            // It reads zero as before. Some pages of a memfd may have been had; a file has holes, where a
            // store would be SIGBUS.
            discard(pages, at, bytes);
            self.free.give(at, bytes);
            return Err(e);
        }
        Ok(at)
    }

    /// Notes a range whose lane is about to be left.
    pub(crate) fn leave(&mut self, at: u64, bytes: u64) {
        self.left.insert(at, Left { bytes, listed: None });
    }

    /// Notes that the broker was asked for a lane's end and has answered: the place is its own as long as it
    /// lists the lane.
    pub(crate) fn taken_over(&mut self, pages: &Pages, topic: u32, at: u64) {
        let Some(left) = self.left.get_mut(&at) else { return };
        left.listed = Listed::find(pages, topic, at);
        if left.listed.is_none() {
            self.reuse(pages, at);
        }
    }

    /// Takes back the ranges of lanes that the broker lists no more.
    pub(crate) fn compare(&mut self, pages: &Pages) {
        let over = |left: &Left| left.listed.is_some_and(|l| !l.holds(pages));
        let gone: Vec<u64> = self.left.iter().filter(|(_, left)| over(left)).map(|(at, _)| *at).collect();
        gone.into_iter().for_each(|at| self.reuse(pages, at));
    }

    fn reuse(&mut self, pages: &Pages, at: u64) {
        if let Some(left) = self.left.remove(&at) {
            self.give(pages, at, left.bytes);
        }
    }

    /// Takes a reserved range back, which reads zero again. The pages of a memfd go back to the machine.
    /// Those of a file stay: a late reader would end with SIGBUS at a hole in a file system that has
    /// become full.
    pub(crate) fn give(&mut self, pages: &Pages, at: u64, bytes: u64) {
        if !discard(pages, at, bytes) {
            (at..at + bytes).step_by(8).for_each(|word| pages.session.store(word, 0));
        }
        self.free.give(at, bytes);
    }
}

/// Gives the pages of a memfd back, which then read zero. Of a file it does nothing.
fn discard(pages: &Pages, at: u64, bytes: u64) -> bool {
    sys::sealed(&pages.session_fd) && sys::punch(&pages.session_fd, at, bytes).is_ok()
}
