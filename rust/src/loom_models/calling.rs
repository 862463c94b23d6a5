//! One call of a function: its caller, a provider that may end at any step, and the broker that ends the claims of the
//! dead, on one claim word and a lane for replies.

use loom::thread;

use super::{check_most_once, check_once};
use crate::layout::{GROUP_AREAS, claim, group_area, group_bytes, lane_bytes};
use crate::shm::{GroupLane, Lane, Region, SlotHead, Stands};

const PROVIDER: u16 = 5;
const OTHER: u16 = 6;
/// The call.
const CALL: u64 = 1;
/// Where its claim is, in the group's file.
const CLAIM: u64 = GROUP_AREAS + group_area::SIZE + 8 * CALL;

#[derive(Clone)]
struct World {
    file: Region,
    claims: GroupLane,
    replies: Lane,
}

impl World {
    fn new() -> World {
        let words = [GROUP_AREAS + group_area::HINT, GROUP_AREAS + group_area::START, GROUP_AREAS + group_area::BASE];
        let file = Region::zeroed(group_bytes(2)).make(&words).make(&[CLAIM]);
        let claims = GroupLane::new(&file, 0, 2).unwrap();
        let replies = Lane::new(&Region::zeroed(lane_bytes(2, 64)), 0, 2, 64).unwrap();
        replies.write(1, &SlotHead::default(), &[]);
        replies.unname(1);
        World { file, claims, replies }
    }

    fn reply(&self) {
        self.replies.write(1, &SlotHead { stamp: 7, ..SlotHead::default() }, &[]);
        self.replies.publish(1);
    }

    /// A provider that ends after so many steps. How often it ran the function.
    fn provide(&self, member: u16, steps: u32, replies_first: bool) -> u32 {
        let Some((i, hint)) = self.claims.next(CALL) else { return 0 };
        if !self.claims.take(i, hint, member, true) || steps < 1 {
            return 0;
        }
        if !self.claims.begin(i, member) || steps < 2 {
            return 0;
        }
        match replies_first {
            true => {
                self.reply();
                if steps >= 3 {
                    self.claims.finish(i, member);
                }
            }
            false => {
                self.claims.finish(i, member);
                self.reply();
            }
        }
        1
    }

    /// The broker, once the provider has ended: what was not begun is for others, else it is over.
    fn end_provider(&self, member: u16) {
        let word = self.file.load(CLAIM);
        let (n, m, state) = claim::split(word);
        if n != CALL || m != member {
            return;
        }
        let to = match state {
            claim::CLAIMED => claim::pack(n, 0, claim::FREE),
            claim::BEGUN => claim::pack(n, m, claim::DONE),
            _ => return,
        };
        self.file.cas(CLAIM, word, to);
    }

    /// The caller, which sees no provider once `alone` says so. Whether it has the result.
    fn call(&self, alone: impl Fn() -> bool) -> bool {
        loop {
            if self.replies.has(1) {
                return true;
            }
            let gone = alone();
            match self.claims.call(CALL) {
                // After the look at the claim.
                Stands::Over(_) => return self.replies.has(1),
                Stands::Open(_) if gone && self.claims.withdraw(CALL) => return false,
                _ => thread::yield_now(),
            }
        }
    }
}

/// A provider that ends at a step, and the broker after it.
fn ends_at(steps: u32, replies_first: bool) {
    let w = World::new();
    let record = Region::zeroed(64).make(&[0]);
    let (other, none) = (w.clone(), record.clone());
    let t = thread::spawn(move || {
        let ran = other.provide(PROVIDER, steps, replies_first);
        if steps < 3 {
            other.end_provider(PROVIDER);
            none.store(0, 1); // there is no provider any more
        }
        ran
    });
    let has = w.call(|| record.load(0) == 1);
    let ran = t.join().unwrap() == 1;
    assert_eq!(has, ran, "a result and no reply, or the other way round");
    assert!(w.claims.done(CALL), "the call is over");
    assert!(!w.claims.withdraw(CALL) && w.claims.next(CALL).is_none());
}

#[test]
fn a_call_ends_once() {
    for steps in 0..=3 {
        check_most_once(move || ends_at(steps, true));
    }
}

#[test]
#[should_panic(expected = "a result and no reply")]
fn broken_a_claim_that_is_done_before_its_reply() {
    check_most_once(|| ends_at(3, false));
}

/// A caller gives a call up that two providers would take: one of the three has it.
#[test]
fn a_call_that_is_given_up_is_run_by_no_provider() {
    check_once(|| {
        let w = World::new();
        let (a, b) = (w.clone(), w.clone());
        let one = thread::spawn(move || a.provide(PROVIDER, 3, true));
        let two =
            thread::spawn(move || b.claims.next(CALL).is_some_and(|(i, hint)| b.claims.take(i, hint, OTHER, true)));
        let withdrawn = w.claims.withdraw(CALL);
        let ran = one.join().unwrap() == 1;
        let taken = two.join().unwrap();
        assert_eq!(u32::from(withdrawn) + u32::from(ran) + u32::from(taken), 1, "ends");
    });
}
