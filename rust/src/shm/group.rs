//! One lane's claims in one group. The claim word is the truth; the hint says where to look first.
//! Members write both, so one that breaks the protocol can lose or block this group's messages, and nothing else.
//!
//! An area is used by one lane after the other. Hint and claim words have the area's own numbers, which
//! never return: message i of a lane is number base+i, and the base of the next lane lies beyond all
//! numbers of this one. So a member that still has the view of a former lane finds nothing open, and no
//! swap of it can succeed, whenever it is carried out.

use super::lane::{Lane, MOST};
use super::words::Region;
use crate::crash_point;
use crate::error::{Result, disagree};
use crate::layout::{GROUP_AREAS, NO_START, claim, group_area, group_area_bytes, limits};

/// A lane's area in a group's file.
#[derive(Debug, Clone)]
pub(crate) struct GroupLane {
    r: Region,
    mask: u64,
    base: u64,
}

/// How a call stands, as its claim says, and which member has or had it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stands {
    /// No member has it; so often members that have ended had begun it.
    Open(u16),
    /// One has it, and has not begun.
    Claimed(u16),
    /// The function runs.
    Begun(u16),
    /// It is over; 0: no member had it last.
    Over(u16),
}

/// Bounds a base, so that numbers fit a claim word.
const MOST_BASE: u64 = (1 << 50) - (1 << 48);

impl GroupLane {
    /// Views lane number `lane` of a group file whose topic has `slots`, for the lane that has the number
    /// now. A process that is not its writer looks at the lane's incarnation afterwards: it is still the one
    /// that the view is meant for, or the view is of no use.
    ///
    /// SYNC claim-base: read before the incarnation; the broker sets it before it lists the lane, after it
    /// has cleared the incarnation of the one before.
    pub(crate) fn new(file: &Region, lane: u32, slots: u32) -> Result<GroupLane> {
        let n = group_area_bytes(slots);
        let at = GROUP_AREAS + u64::from(lane) * n;
        if lane >= limits::LANES || !slots.is_power_of_two() || !file.has(at, n) {
            return Err(disagree(format!(
                "claims of lane {lane} with {slots} slots do not fit a group file of {} bytes",
                file.len()
            )));
        }
        let base = file.load(at + group_area::BASE).min(MOST_BASE);
        Ok(GroupLane { r: file.sub(at, n), mask: u64::from(slots - 1), base })
    }

    #[cfg(baton_loom)]
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// The number of message i in the area; a head is bounded, so it fits.
    fn number(&self, i: u64) -> u64 {
        self.base + i.min(MOST + 1)
    }

    fn at(&self, i: u64) -> u64 {
        group_area::SIZE + 8 * (i & self.mask)
    }

    /// The claim word of message i.
    fn claim(&self, i: u64) -> u64 {
        self.r.load(self.at(i))
    }

    /// Whether message i is there for this group to take: neither claimed nor done, nor its slot in
    /// use for a later one.
    pub(crate) fn open(&self, i: u64) -> bool {
        is_open(self.claim(i), self.number(i))
    }

    /// The first message at or after the hint, at most `head`, that is open, and the hint word to
    /// give to `take`.
    pub(crate) fn next(&self, head: u64) -> Option<(u64, u64)> {
        let head = head.min(MOST);
        let hint = self.r.load(group_area::HINT);
        let mut i = claim::split_hint(hint).0.saturating_sub(self.base);
        let start = self.r.load(group_area::START);
        if start != NO_START {
            i = i.max(start);
        }
        // A hint that is far behind, or false, costs at most one turn of the ring: older messages have
        // left their slots.
        i = i.max(head.saturating_sub(self.mask)).max(1);
        while i <= head {
            if self.open(i) {
                self.r.prefetch_write(self.at(i)); // for `take`, beside what is read of the message
                return Some((i, hint));
            }
            i += 1;
        }
        None
    }

    /// How many messages of the lane are open.
    pub(crate) fn waiting(&self, lane: &Lane) -> usize {
        let head = lane.head();
        let start = self.r.load(group_area::START);
        let first = if start == NO_START { 1 } else { start };
        let first = first.max(head.saturating_sub(self.mask)).max(1);
        (first..=head).filter(|i| lane.has(*i) && self.open(*i)).count()
    }

    /// Claims message i for a member, which holds its references already, and moves the hint. False
    /// when another was first.
    ///
    /// SYNC claim: a successful swap is the hand-over; a writer that sees DONE here may reuse the slot, so
    /// the member's refcounts were raised before.
    pub(crate) fn take(&self, i: u64, hint: u64, member: u16, acknowledge: bool) -> bool {
        self.take_noting(i, hint, member, acknowledge).is_some()
    }

    /// As `take`. How often members that have ended had begun with the message, where it is a call.
    #[inline]
    pub(crate) fn take_noting(&self, i: u64, hint: u64, member: u16, acknowledge: bool) -> Option<u16> {
        let (old, number) = (self.claim(i), self.number(i));
        if !is_open(old, number) {
            return None;
        }
        let state = if acknowledge { claim::CLAIMED } else { claim::DONE };
        if !self.r.cas(self.at(i), old, claim::pack(number, member, state)) {
            return None;
        }
        crash_point::at("claim-swapped");
        // The hint's version keeps this swap from undoing a rewind: failing is fine.
        let (_, version) = claim::split_hint(hint);
        self.r.cas(group_area::HINT, hint, claim::pack_hint(number + 1, version));
        crash_point::at("claim-hinted");
        let (n, begun, _) = claim::split(old);
        Some(if n == number { begun } else { 0 })
    }

    /// Marks a claimed message done. False when the claim was taken away, which happens to the dead
    /// only.
    ///
    /// SYNC claim: releases what the member did before; pairs with `done`.
    pub(crate) fn acknowledge(&self, i: u64, member: u16) -> bool {
        let number = self.number(i);
        self.r.cas(self.at(i), claim::pack(number, member, claim::CLAIMED), claim::pack(number, member, claim::DONE))
    }

    /// Notes that the function runs for a call that was claimed. False when the claim was taken away: the call is
    /// another member's.
    pub(crate) fn begin(&self, i: u64, member: u16) -> bool {
        let number = self.number(i);
        self.r.cas(self.at(i), claim::pack(number, member, claim::CLAIMED), claim::pack(number, member, claim::BEGUN))
    }

    /// Marks a call done that was begun. False when the claim was taken away.
    ///
    /// SYNC claim: after the publish of the reply; a caller that finds DONE here (`call`), and looks for the reply
    /// after that, finds it.
    pub(crate) fn finish(&self, i: u64, member: u16) -> bool {
        let number = self.number(i);
        self.r.cas(self.at(i), claim::pack(number, member, claim::BEGUN), claim::pack(number, member, claim::DONE))
    }

    /// Ends a call that no member has, for its caller. False where a member has it, or it is over.
    ///
    /// SYNC claim: one swap of the word succeeds, that of a member or this one.
    pub(crate) fn withdraw(&self, i: u64) -> bool {
        let (old, number) = (self.claim(i), self.number(i));
        is_open(old, number) && self.r.cas(self.at(i), old, claim::pack(number, 0, claim::DONE))
    }

    /// How a call stands.
    ///
    /// SYNC claim: pairs with `finish`, and with a broker that ends the claims of the dead: what they have sent
    /// before stands after this.
    #[inline]
    pub(crate) fn call(&self, i: u64) -> Stands {
        let (n, member, state) = claim::split(self.claim(i));
        let number = self.number(i);
        match state {
            _ if n < number => Stands::Open(0),
            _ if n > number => Stands::Over(0),
            claim::FREE => Stands::Open(member),
            claim::CLAIMED => Stands::Claimed(member),
            claim::BEGUN => Stands::Begun(member),
            _ => Stands::Over(member),
        }
    }

    /// Whether a member has claimed message i and has not acknowledged it.
    pub(crate) fn claimed(&self, i: u64) -> bool {
        let (n, _, state) = claim::split(self.claim(i));
        n == self.number(i) && (state == claim::CLAIMED || state == claim::BEGUN)
    }

    /// Whether the group is finished with message i, or was never promised it, so that its slot may
    /// be reused.
    ///
    /// SYNC claim: pairs with `take` and `acknowledge`.
    pub(crate) fn done(&self, i: u64) -> bool {
        let (n, _, state) = claim::split(self.claim(i));
        let number = self.number(i);
        // The line of the start is the members': it is looked at last.
        n > number || n == number && state == claim::DONE || i < self.r.load(group_area::START)
    }
}

fn is_open(claim: u64, number: u64) -> bool {
    let (n, _, state) = claim::split(claim);
    n < number || n == number && state == claim::FREE
}

#[cfg(all(test, not(baton_loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::layout::group_bytes;
    use crate::sys::Mapping;

    fn area(slots: u32) -> GroupLane {
        let file = Region::new(Arc::new(Mapping::anonymous(group_bytes(slots) as usize).unwrap()));
        GroupLane::new(&file, 3, slots).unwrap()
    }

    #[test]
    fn claimed_messages_are_not_open_and_done_ones_free_their_slot() {
        let g = area(4);
        let (i, hint) = g.next(2).unwrap();
        assert_eq!(i, 1);
        assert!(!g.done(1));
        assert!(g.take(1, hint, 5, true));
        assert!(!g.done(1) && !g.take(1, hint, 6, true));
        assert_eq!(g.next(2).unwrap().0, 2);
        assert!(!g.acknowledge(1, 6), "another's claim");
        assert!(g.acknowledge(1, 5) && g.done(1));
    }

    #[test]
    fn a_call_is_begun_and_ended_by_the_member_that_has_it() {
        let g = area(4);
        let (i, hint) = g.next(1).unwrap();
        assert!(matches!(g.call(i), Stands::Open(_)));
        assert!(!g.begin(i, 5), "nothing is claimed");
        assert_eq!(g.take_noting(i, hint, 5, true), Some(0));
        assert_eq!(g.call(i), Stands::Claimed(5));
        assert!(!g.withdraw(i) && !g.begin(i, 6) && !g.finish(i, 5));
        assert!(g.begin(i, 5) && !g.begin(i, 5) && !g.acknowledge(i, 5));
        assert_eq!(g.call(i), Stands::Begun(5));
        assert!(!g.withdraw(i) && !g.done(i) && g.next(1).is_none());
        assert!(!g.finish(i, 6) && g.finish(i, 5) && !g.finish(i, 5));
        assert_eq!((g.call(i), g.done(i)), (Stands::Over(5), true));
    }

    #[test]
    fn a_call_that_no_member_has_is_withdrawn() {
        let g = area(4);
        let (i, hint) = g.next(1).unwrap();
        assert!(g.withdraw(i) && !g.withdraw(i));
        assert_eq!((g.call(i), g.done(i)), (Stands::Over(0), true));
        assert!(g.next(1).is_none() && !g.take(i, hint, 5, true));
    }

    #[test]
    fn a_call_says_how_often_it_was_begun() {
        let g = area(4);
        let (i, hint) = g.next(1).unwrap();
        g.r.store(g.at(i), claim::pack(g.number(i), 3, claim::FREE));
        assert!(matches!(g.call(i), Stands::Open(_)));
        assert_eq!(g.take_noting(i, hint, 5, true), Some(3));
        // The member of another message says nothing.
        g.r.store(g.at(2), claim::pack(g.number(2) - 1, 9, claim::DONE));
        assert_eq!(g.take_noting(2, hint, 5, true), Some(0));
    }

    #[test]
    fn a_liars_hint_costs_one_turn_of_the_ring() {
        let g = area(4);
        assert_eq!(g.next(1 << 40).unwrap().0, (1 << 40) - 3);
        g.r.store(group_area::HINT, u64::MAX);
        assert!(g.next(100).is_none());
    }

    #[test]
    fn each_message_goes_to_one_of_many_members() {
        let g = area(1024);
        let taken = AtomicU64::new(0);
        std::thread::scope(|s| {
            for member in 1..=4 {
                let (g, taken) = (&g, &taken);
                s.spawn(move || {
                    while let Some((i, hint)) = g.next(1000) {
                        if g.take(i, hint, member, false) {
                            taken.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(taken.load(Ordering::Relaxed), 1000);
    }
}
