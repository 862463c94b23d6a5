//! The step of the protocol that receiving comes down to, without a client around it: what its atomics
//! alone cost on a machine. For the measurements of `rust/bench`.

use std::sync::Arc;

use crate::error::Result;
use crate::layout::{DEFAULT_DESCRIPTION, session_file, slot};
use crate::ledger::Refcounts;
use crate::message::Ref;
use crate::shm::{Copied, Lane, Region, SlotHead};
use crate::sys::Mapping;

/// A lane with messages and refcounts, in memory that this process has for itself.
#[derive(Debug)]
pub struct Step {
    lane: Lane,
    refcounts: Refcounts,
    words: Vec<u64>,
}

impl Step {
    /// Messages in the lane, numbered from 1.
    pub const MESSAGES: u64 = 8;

    /// A lane of the usual shape, full.
    pub fn new() -> Result<Step> {
        let file = Region::new(Arc::new(Mapping::anonymous(session_file::BYTES as usize)?));
        let stride = (slot::SIZE as u32 + DEFAULT_DESCRIPTION).next_multiple_of(64);
        let lane = Lane::new(&file, session_file::LANES, 2 * Step::MESSAGES as u32, stride)?;
        for i in 1..=Step::MESSAGES {
            let words = Ref { serial: 1, generation: 1, index: i as u32 }.words();
            lane.write_rest(i, &words);
            lane.write_first(i, &SlotHead { stamp: 1, nref: 1, ..SlotHead::default() }, &words);
            lane.publish(i);
        }
        Ok(Step { lane, refcounts: Refcounts::new(&file), words: Vec::new() })
    }

    /// Takes the reference that message i names: reads the slot, counts up, looks again; then drops it.
    /// Whether it was there.
    pub fn take_and_drop(&mut self, i: u64) -> Result<bool> {
        let Some(Copied::Full(head)) = self.lane.read(i, &mut self.words, |_| ()) else { return Ok(false) };
        let Some(r) = head.refs(&self.words).next() else { return Ok(false) };
        self.refcounts.take(r.index)?;
        let there = self.lane.still_has(i);
        self.refcounts.drop(r.index);
        Ok(there)
    }
}
