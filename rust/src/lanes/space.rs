//! The space of the session's own file for lanes, and the lanes there that were left and that the broker
//! keeps for their readers.

use std::collections::HashMap;

use crate::error::{Code, Error, Result};
use crate::layout::{lane_record, session_file};
use crate::ledger::Ranges;
use crate::memory::SessionFiles;
use crate::sys;

/// Hands out ranges of the session's own file for lanes.
#[derive(Debug)]
pub(crate) struct LaneSpace {
    free: Ranges,
    left: HashMap<u64, Left>, // by offset
}

#[derive(Debug)]
struct Left {
    bytes: u64,
    /// Known once the broker has adopted it.
    listed: Option<Listed>,
}

/// Where the broker lists a lane that was left.
#[derive(Debug, Clone, Copy)]
struct Listed {
    record: u64, // in the broker file
    incarnation: u64,
}

impl Listed {
    /// Finds where a topic lists a lane of the session's own file.
    fn find(files: &SessionFiles, topic: u32, at: u64) -> Option<Listed> {
        let own = |r: &u64| {
            files.broker.load(r + lane_record::SERIAL) == files.serial
                && files.broker.load(r + lane_record::OFFSET) == at
        };
        let record = files.lane_records(topic).find(own)?;
        let incarnation = files.broker.load(record + lane_record::INCARNATION);
        (incarnation != 0).then_some(Listed { record, incarnation })
    }

    /// SYNC lane-incarnation: cleared when nothing of the lane is to be read any more; then its place is
    /// this session's.
    fn holds(self, files: &SessionFiles) -> bool {
        files.broker.load(self.record + lane_record::INCARNATION) == self.incarnation
    }
}

impl LaneSpace {
    pub(crate) fn new() -> LaneSpace {
        let mut free = Ranges::default();
        free.give(session_file::LANES, session_file::BYTES - session_file::LANES);
        LaneSpace { free, left: HashMap::new() }
    }

    /// Reserves a range of whole pages that read zero.
    pub(crate) fn take(&mut self, files: &SessionFiles, bytes: u64) -> Result<u64> {
        let Some(at) = self.free.take(bytes) else {
            let what = "this session's space for lanes is full";
            return Err(Error::new(
                Code::TooMany,
                "close topics and queues that are not used, or use a smaller depth",
                what,
            ));
        };
        if let Err(e) = sys::reserve(&files.session_fd, at, bytes) {
            // It reads zero as before. Some pages of a memfd may have been had; a file has holes, where a
            // store would be SIGBUS.
            discard(files, at, bytes);
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
    pub(crate) fn taken_over(&mut self, files: &SessionFiles, topic: u32, at: u64) {
        let Some(left) = self.left.get_mut(&at) else { return };
        left.listed = Listed::find(files, topic, at);
        if left.listed.is_none() {
            self.reuse(files, at);
        }
    }

    /// Takes back the ranges of lanes that the broker lists no more.
    pub(crate) fn reconcile(&mut self, files: &SessionFiles) {
        let over = |left: &Left| left.listed.is_some_and(|l| !l.holds(files));
        let gone: Vec<u64> = self.left.iter().filter(|(_, left)| over(left)).map(|(at, _)| *at).collect();
        gone.into_iter().for_each(|at| self.reuse(files, at));
    }

    fn reuse(&mut self, files: &SessionFiles, at: u64) {
        if let Some(left) = self.left.remove(&at) {
            self.give(files, at, left.bytes);
        }
    }

    /// Takes a reserved range back, which reads zero again. The pages of a memfd go back to the machine.
    /// Those of a file stay: a late reader would end with SIGBUS at a hole in a file system that has
    /// become full.
    pub(crate) fn give(&mut self, files: &SessionFiles, at: u64, bytes: u64) {
        if !discard(files, at, bytes) {
            (at..at + bytes).step_by(8).for_each(|word| files.session.store(word, 0));
        }
        self.free.give(at, bytes);
    }
}

/// Gives the pages of a memfd back, which then read zero. Of a file it does nothing.
fn discard(files: &SessionFiles, at: u64, bytes: u64) -> bool {
    sys::sealed(&files.session_fd) && sys::punch(&files.session_fd, at, bytes).is_ok()
}
