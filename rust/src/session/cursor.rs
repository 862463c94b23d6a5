//! A reader's place in each lane of a topic, and what it lost with lanes that have gone.

use std::cmp::Reverse;
use std::sync::Arc;

use super::members::LaneView;
use crate::layout::state;
use crate::shm::{GroupLane, fence};

/// A reader's place in one lane.
#[derive(Debug)]
pub(super) struct Cursor {
    pub(super) lane: Arc<LaneView>,
    pub(super) next: u64,
    pub(super) lost: u64,
    pub(super) group: Option<GroupLane>,
    /// The lane is no more; the next view says so, too.
    pub(super) over: bool,
    /// Its next message cannot be had now.
    pub(super) aside: bool,
    pub(super) wait: Waiting,
}

/// How long a lane's next message has been seen waiting: how often one of another lane was taken before it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Waiting {
    number: u64,
    pub(super) passed: u64,
}

impl Waiting {
    /// Notes the message that the lane offers. What orders it among others': the smallest goes first, that
    /// with the smallest stamp. Stamps are what writers say. When a message is first seen, a lane has at most
    /// as many older ones as it has slots; one that was passed over more often than that waits for a writer
    /// that lies, and goes first.
    pub(super) fn rank(&mut self, i: u64, stamp: u64, most: u64) -> (Reverse<u64>, u64) {
        if self.number != i {
            *self = Waiting { number: i, passed: 0 };
        }
        (Reverse(if self.passed >= most { self.passed } else { 0 }), stamp)
    }
}

/// What a reader lost with lanes that are no more. The broker counts all messages of such lanes, also
/// of those that came and went between two looks.
#[derive(Debug, Default)]
pub(super) struct Gone {
    /// The broker's count, as last told.
    seen: u64,
    /// What it counts and the reader has not had, not yet reported.
    balance: i64,
}

impl Gone {
    /// Takes over a new count and the cursors of lanes that have gone since.
    pub(super) fn follow<'a>(&mut self, count: u64, cursors: impl Iterator<Item = &'a Cursor>, first: bool) {
        if count < self.seen {
            self.seen = 0; // a new broker begins anew
        }
        if !first {
            self.balance = self.balance.wrapping_add_unsigned(count - self.seen);
        }
        self.seen = count;
        for k in cursors {
            self.balance = self.balance.wrapping_add_unsigned(k.lost).wrapping_sub_unsigned(k.next - 1);
        }
    }

    /// Takes over what a member of a group passed over in lanes that have gone since. What it did not take
    /// of them others have.
    pub(super) fn keep<'a>(&mut self, cursors: impl Iterator<Item = &'a Cursor>) {
        for k in cursors {
            self.balance = self.balance.wrapping_add_unsigned(k.lost);
        }
    }

    /// What is to be reported. A cursor may go a little before the broker's count includes its lane.
    pub(super) fn lost(&self) -> u64 {
        self.balance.max(0) as u64
    }

    /// Notes that it was reported.
    pub(super) fn reported(&mut self) {
        self.balance = self.balance.min(0);
    }
}

impl LaneView {
    /// Wakes the writer, which may wait for room.
    pub(super) fn ring(&self) {
        if self.info.state == state::LANE_LIVE {
            fence(); // SYNC parked: the claim is visible before the writer's parked word is read
            self.bell.ring();
        }
    }

    /// Whether the lane is still there. Once it is not, its place may be another lane's, of this topic or
    /// any other, and what is read there means nothing.
    ///
    /// SYNC lane-incarnation: behind the second look at a slot, and behind the base of the claims; the
    /// broker clears it before the place may be used anew, so that it is seen cleared by a process
    /// that has seen something of another lane.
    #[inline]
    pub(super) fn current(&self) -> bool {
        self.record.load(0) == self.info.incarnation
    }
}

impl Cursor {
    /// The first message that the lane still has, or the next to come.
    pub(super) fn oldest(&self) -> u64 {
        let head = self.lane.lane.head();
        let first = (head + 2).saturating_sub(self.lane.lane.slots()).max(1);
        (first..=head).find(|i| self.lane.lane.has(*i)).unwrap_or(head + 1)
    }

    /// Whether the lane is still there, which is noted: nothing is looked for in it then.
    pub(super) fn there(&mut self) -> bool {
        self.over |= !self.lane.current();
        !self.over
    }

    /// Whether the lane has something for the reader.
    pub(super) fn pending(&self) -> bool {
        if self.over {
            return false;
        }
        let lane = &self.lane.lane;
        match &self.group {
            Some(g) => g.next(lane.head()).is_some(),
            None => lane.has(self.next) || !self.caught_up() && lane.head() >= self.next,
        }
    }

    /// Tells, when slot next does not hold its message, that it has never been there, without a look at
    /// the head, whose line the writer changes at the very moment that is waited for. Messages leave in
    /// their order, but for those of a queue, at which no reader looks on: where the one before still is,
    /// next cannot have left. The broker may leave gaps in the lane of the dead, which has nothing new anyway.
    fn caught_up(&self) -> bool {
        self.lane.info.state == state::LANE_LIVE && self.next > 1 && self.lane.lane.has(self.next - 1)
    }

    /// The lane's next message for this reader, and the hint in a group. One that fell behind skips
    /// to a little after the oldest kept, so that it is not overtaken again at once.
    pub(super) fn next(&mut self, depth: u64) -> Option<(u64, u64)> {
        if self.over {
            return None;
        }
        let lane = &self.lane.lane;
        if let Some(g) = &self.group {
            return g.next(lane.head());
        }
        loop {
            if lane.has(self.next) {
                return Some((self.next, 0));
            }
            if self.caught_up() {
                return None;
            }
            let head = lane.head();
            if head < self.next {
                return None;
            }
            if lane.has(self.next) {
                continue;
            }
            if !self.lane.current() {
                self.over = true; // the head is another lane's
                return None;
            }
            let mut to = self.next + 1;
            if head > depth {
                to = to.max(head - depth + 1 + depth / 8);
            }
            to = to.min(head + 1);
            self.lost += to - self.next;
            self.next = to;
        }
    }
}

impl Cursor {
    /// Passes over a message that cannot be had (overwritten, withdrawn, malformed), and over a lane that is
    /// no more. In a group it claims the message, so that no member is blocked; the claim fails, as it
    /// should, when a faster member has taken the message. An honest writer's message stays until it is
    /// read. So only a hostile writer's can be lost here, and one in memory that was lent and ended with its
    /// owner.
    pub(super) fn skip(&mut self, i: u64, hint: u64, member: u16) {
        if !self.there() {
            return;
        }
        match &self.group {
            None => {
                self.lost += 1;
                self.next = i + 1;
            }
            Some(g) => {
                let right = self.lane.inner.claiming();
                if right.is_some() && g.take(i, hint, member, false) {
                    self.lost += 1;
                    self.lane.ring();
                }
            }
        }
    }
}

#[cfg(all(test, not(baton_loom)))]
mod tests {
    use super::Waiting;

    /// Two lanes whose next messages have these stamps: how many of the first are taken before one of the
    /// second, when each that is taken is followed by another.
    fn before_the_second(first: u64, second: u64, slots: u64) -> u64 {
        let (mut a, mut b) = (Waiting::default(), Waiting::default());
        for taken in 0..1000 {
            if b.rank(1, second, slots) < a.rank(taken + 1, first, slots) {
                return taken;
            }
            (a, b.passed) = (Waiting::default(), b.passed + 1);
        }
        1000
    }

    #[test]
    fn a_false_stamp_starves_no_lane() {
        assert_eq!(before_the_second(7, 5, 16), 0);
        assert_eq!(before_the_second(0, 5, 16), 16);
        assert_eq!(before_the_second(0, u64::MAX, 16), 16);
    }
}
