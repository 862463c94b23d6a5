//! A reader's place in each lane of a topic, and what it lost with lanes that have gone.

use std::cmp::Reverse;
use std::sync::Arc;

use crate::holding::LaneView;
use crate::layout::state;
use crate::shm::GroupLane;

/// A reader's place in one lane.
#[derive(Debug)]
pub(crate) struct Cursor {
    pub(crate) lane: Arc<LaneView>,
    pub(crate) next: u64,
    pub(crate) lost: u64,
    pub(crate) group: Option<GroupLane>,
    /// The lane is no more; the next view says so, too.
    pub(crate) over: bool,
    /// Its next message cannot be taken now.
    pub(crate) aside: bool,
    pub(crate) wait: Waiting,
}

/// How long a lane's next message has been seen waiting: how often one of another lane was taken before it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Waiting {
    number: u64,
    pub(crate) passed: u64,
}

impl Waiting {
    /// Notes the message that the lane has. What orders it among others': the smallest goes first, that
    /// with the smallest stamp. Stamps are what writers say. When a message is first seen, a lane has at most
    /// as many older ones as it has slots; one that was passed over more often than that waits for a writer
    /// that breaks the protocol, and goes first.
    pub(crate) fn rank(&mut self, i: u64, stamp: u64, most: u64) -> (Reverse<u64>, u64) {
        if self.number != i {
            *self = Waiting { number: i, passed: 0 };
        }
        (Reverse(if self.passed >= most { self.passed } else { 0 }), stamp)
    }
}

/// What a reader lost with lanes that are no more. The broker counts all messages of such lanes, also
/// of those that came and went between two looks.
#[derive(Debug, Default)]
pub(crate) struct Gone {
    /// The broker's count, as last told.
    seen: u64,
    /// What it counts and the reader has not had, not yet reported.
    balance: i64,
}

impl Gone {
    /// Applies a new count and the cursors of lanes that have gone since.
    pub(crate) fn follow<'a>(&mut self, count: u64, cursors: impl Iterator<Item = &'a Cursor>, first: bool) {
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

    /// Counts what a member of a group passed over in lanes that have gone since. What it did not take
    /// of them others have.
    pub(crate) fn keep<'a>(&mut self, cursors: impl Iterator<Item = &'a Cursor>) {
        for k in cursors {
            self.balance = self.balance.wrapping_add_unsigned(k.lost);
        }
    }

    /// What is to be reported. A cursor may go a little before the broker's count includes its lane.
    pub(crate) fn lost(&self) -> u64 {
        self.balance.max(0) as u64
    }

    /// Notes that it was reported.
    pub(crate) fn reported(&mut self) {
        self.balance = self.balance.min(0);
    }
}

impl Cursor {
    /// The first message that the lane still has, or the next to come.
    pub(crate) fn oldest(&self) -> u64 {
        let head = self.lane.lane.head();
        let first = (head + 2).saturating_sub(self.lane.lane.slots()).max(1);
        (first..=head).find(|i| self.lane.lane.has(*i)).unwrap_or(head + 1)
    }

    /// Whether the lane is still there, which is noted: nothing is looked for in it then.
    pub(crate) fn there(&mut self) -> bool {
        self.over |= !self.lane.current();
        !self.over
    }

    /// Whether the lane has something for the reader.
    pub(crate) fn pending(&self) -> bool {
        if self.over {
            return false;
        }
        let lane = &self.lane.lane;
        match &self.group {
            // Of the head only where the next slot has nothing: its line is one more that must cross.
            Some(g) if lane.has(self.next) => g.next(self.next).is_some() || g.next(lane.head()).is_some(),
            Some(g) => g.next(lane.head()).is_some(),
            None => lane.has(self.next) || !self.caught_up() && lane.head() >= self.next,
        }
    }

    /// Whether the lane, which is not read by a group, has nothing, and is where it was.
    #[inline(always)]
    pub(super) fn is_idle(&self) -> bool {
        self.group.is_none() && !self.over && !self.aside && !self.lane.lane.has(self.next) && self.caught_up()
    }

    /// Tells, when slot next does not hold its message, that it has never been there, without a look at
    /// the head, whose line the writer changes at the very moment that is waited for. Messages leave in
    /// their order, but for those of a queue, at which no reader looks on: where the one before still is,
    /// next cannot have left. The broker may leave gaps in the lane of the dead, which has nothing new anyway.
    #[inline]
    fn caught_up(&self) -> bool {
        self.lane.info.state == state::LANE_LIVE && self.next > 1 && self.lane.lane.has(self.next - 1)
    }

    /// The lane's next message for this reader, and the hint in a group. One that fell behind skips
    /// to a little after the oldest kept, so that it is not overtaken again at once.
    pub(crate) fn next(&mut self, depth: u64) -> Option<(u64, u64)> {
        if self.over {
            return None;
        }
        let lane = &self.lane.lane;
        if let Some(g) = &self.group {
            let here = if lane.has(self.next) { g.next(self.next) } else { None };
            return here.or_else(|| g.next(lane.head()));
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
            self.lost = self.lost.saturating_add(to - self.next);
            self.next = to;
        }
    }
}

impl Cursor {
    /// Passes over a message that cannot be taken (overwritten, withdrawn, malformed), and over a lane that is
    /// no more. In a group it claims the message, so that no member is blocked; the claim fails, as it
    /// should, when a faster member has taken the message. The message of a writer that keeps the protocol
    /// stays until it is read. So only one of a writer that breaks it can be lost here, and one in memory that
    /// was lent and ended with its owner.
    pub(crate) fn skip(&mut self, i: u64, hint: u64, member: u16) {
        if !self.there() {
            return;
        }
        match &self.group {
            None => {
                self.lost = self.lost.saturating_add(1);
                self.next = i + 1;
            }
            Some(g) => {
                let right = self.lane.inner.claiming();
                if right.is_some() && g.take(i, hint, member, false) {
                    self.lost = self.lost.saturating_add(1);
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
