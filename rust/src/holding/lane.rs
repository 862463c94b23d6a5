//! The lanes from which this process takes messages, and what is owed for those that it took.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use super::Opening;
use crate::crash_point;
use crate::layout::{broker_file, lane_record, state};
use crate::memory::Peer;
use crate::shm::{Bell, Fixed, GroupLane, Lane, Region, fence};

/// What the record of a lane says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LaneInfo {
    pub(crate) lane: u32,
    pub(crate) slot: u32,
    pub(crate) serial: u64,
    pub(crate) offset: u64,
    pub(crate) state: u32,
    /// What stands in the record as long as the lane is this one.
    pub(crate) incarnation: u64,
}

#[derive(Debug)]
pub(crate) struct LaneView {
    pub(crate) inner: Arc<Opening>,
    pub(crate) info: LaneInfo,
    /// Where the broker file says which lane has its number.
    pub(crate) record: Fixed<1>,
    pub(crate) lane: Lane,
    /// The writer's session file.
    pub(crate) owner: Arc<Peer>,
    /// Of the writer.
    pub(crate) bell: Bell,
    /// Its head when the first view was made: what a reader begins after.
    pub(crate) before: u64,
}

impl LaneInfo {
    /// Copies the record of a lane; `None` where there is none, or where it changes meanwhile, of which the
    /// version tells.
    pub(crate) fn load(broker: &Region, topic: u32, lane: u32) -> Option<LaneInfo> {
        let at = broker_file::lane(topic, lane);
        let incarnation = broker.load(at + lane_record::INCARNATION);
        let info = LaneInfo {
            lane,
            slot: broker.load32(at + lane_record::SLOT),
            serial: broker.load(at + lane_record::SERIAL),
            offset: broker.load(at + lane_record::OFFSET),
            state: broker.load32(at + lane_record::STATE),
            incarnation,
        };
        let whole = incarnation != 0 && broker.load(at + lane_record::INCARNATION) == incarnation;
        whole.then_some(info)
    }
}

impl LaneView {
    /// Wakes the writer, which may wait for a free slot.
    pub(crate) fn ring(&self) {
        if self.info.state == state::LANE_LIVE {
            fence(); // SYNC parked: the claim is visible before the writer's parked word is read
            self.bell.ring();
        }
    }

    /// Whether the lane is still there. Once it is not, its place may be another lane's, of this topic or
    /// any other, and what is read there means nothing.
    ///
    /// SYNC lane-incarnation: after the second look at a slot, and after the base of the claims; the
    /// broker clears it before the place may be used anew, so that it is seen cleared by a process
    /// that has seen something of another lane.
    #[inline]
    pub(crate) fn current(&self) -> bool {
        self.record.load(0) == self.info.incarnation
    }

    /// Whether slot i holds message i of this lane.
    pub(crate) fn has(&self, i: u64) -> bool {
        self.lane.has(i) && self.current()
    }

    /// The second look of a taker, after its refcounts were raised.
    #[inline]
    pub(crate) fn still_has(&self, i: u64) -> bool {
        let has = self.lane.still_has(i);
        crash_point::at("take-looked");
        has && self.current()
    }
}

/// The acknowledgement of an item, given when its last tensor is dropped.
pub(crate) struct Acknowledge {
    group: GroupLane,
    number: u64,
    member: u16,
    lane: Arc<LaneView>,
    /// What the reader joined, which is not left before.
    _membership: Arc<dyn Any + Send + Sync>,
}

impl fmt::Debug for Acknowledge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acknowledge")
            .field("number", &self.number)
            .field("member", &self.member)
            .finish_non_exhaustive()
    }
}

impl Acknowledge {
    pub(crate) fn new(
        group: GroupLane,
        number: u64,
        member: u16,
        lane: Arc<LaneView>,
        membership: Arc<dyn Any + Send + Sync>,
    ) -> Acknowledge {
        Acknowledge { group, number, member, lane, _membership: membership }
    }

    pub(crate) fn done(&self) {
        if let Some(_right) = self.lane.inner.acknowledging() {
            self.group.acknowledge(self.number, self.member);
        }
        crash_point::at("ack-done");
        self.lane.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Mapping;

    fn memory(bytes: u64) -> Region {
        Region::new(Arc::new(Mapping::anonymous(bytes as usize).unwrap()))
    }

    #[test]
    fn a_lane_that_is_being_listed_or_taken_away_is_left_out() {
        let broker = memory(broker_file::lane(0, 8));
        let at = broker_file::lane(0, 7);
        broker.store(at + lane_record::SERIAL, 5);
        assert_eq!(LaneInfo::load(&broker, 0, 7), None);
        broker.store(at + lane_record::INCARNATION, 9);
        let listed = LaneInfo::load(&broker, 0, 7).unwrap();
        assert_eq!((listed.lane, listed.serial, listed.incarnation), (7, 5, 9));
    }
}
