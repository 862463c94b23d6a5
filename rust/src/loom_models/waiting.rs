//! Waiting and waking, and which lanes are looked at.

use loom::thread;

use super::{OWNER, check, check_most};
use crate::layout::{bell_file, bell_record, wait_area};
use crate::shm::{Active, Bells, Region, Scan, fence};

/// Makes the bell of a session and its parked word.
fn with_bell(file: Region, slot: u32) -> Region {
    let at = bell_file::record(slot);
    file.make(&[at + bell_record::PARKED]).make32(&[at + bell_record::BELL])
}

/// One publishes and rings, the other waits for it. `look`: whether the waiter looks again after it
/// has said that it sleeps.
fn woken(look: bool) {
    const WORD: u64 = 0;
    let shared = Region::zeroed(64).make(&[WORD]);
    let bells = Bells::new(with_bell(Region::zeroed(bell_file::BYTES), OWNER));
    let (ringer, parking) = (bells.bell(OWNER), bells.parking(OWNER));
    let published = shared.clone();
    let t = thread::spawn(move || {
        published.store(WORD, 1);
        fence();
        ringer.ring();
    });
    while shared.load(WORD) == 0 {
        let e = parking.begin();
        if !look || shared.load(WORD) == 0 {
            parking.sleep(e, std::time::Duration::MAX);
        }
        parking.end();
    }
    t.join().unwrap();
    assert!(parking.bell() <= 1);
}

#[test]
fn no_wake_is_slept_over() {
    check(false, || woken(true));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_waiter_that_does_not_look_again() {
    check(false, || woken(false));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_waiting_without_full_fences() {
    check(true, || woken(true));
}

/// Members of a group that wait for an item each, in one word of its set.
#[derive(Clone)]
struct Group {
    file: Region,
    items: Region,
}

/// How the waiting of a member is broken.
#[derive(Clone, Copy, PartialEq)]
enum Sleeper {
    Sound,
    /// It does not look again after it has put itself into the set.
    LooksOnce,
    /// It takes what it has waited for, then leaves the set: a sender may claim it meanwhile.
    LeavesLate,
}

impl Group {
    const SLOTS: [u32; 2] = [1, 2];
    const PUBLISHED: u64 = 0;
    const TAKEN: u64 = 8;

    fn new() -> Group {
        let set = [bell_file::waits(0) + Group::WORDS, bell_file::waits(0) + bell_file::members(1)];
        let file = Region::zeroed(bell_file::BYTES).make(&set);
        let file = Group::SLOTS.into_iter().fold(file, with_bell);
        Group { file, items: Region::zeroed(64).make(&[Group::PUBLISHED, Group::TAKEN]) }
    }

    /// Where the words of the set are named, in the area of its topic.
    const WORDS: u64 = wait_area::WORDS + 8;

    fn bells(&self) -> Bells {
        Bells::new(self.file.clone())
    }

    fn is_left(&self) -> bool {
        self.items.load(Group::TAKEN) < self.items.load(Group::PUBLISHED)
    }

    fn try_take(&self) -> bool {
        let n = self.items.load(Group::TAKEN);
        n < self.items.load(Group::PUBLISHED) && self.items.cas(Group::TAKEN, n, n + 1)
    }

    fn publish(&self, i: u64) {
        self.items.store(Group::PUBLISHED, i);
        fence();
    }

    fn ring_one(&self) {
        self.bells().waits(0).group(0).ring_one(&mut 0);
    }

    /// As `ring_one`, without a second look at a word that has no members any more.
    fn ring_untidily(&self) {
        let area = self.file.sub(bell_file::waits(0), wait_area::SIZE);
        for slot in Group::SLOTS {
            let before = area.and(bell_file::members(1), !(1 << slot));
            if before == 1 << slot {
                area.and(Group::WORDS, 0);
            }
            if before >> slot & 1 == 1 {
                return self.bells().wake(slot);
            }
        }
    }

    /// Takes an item, waiting for it.
    fn take(&self, slot: u32, how: Sleeper) {
        let (parking, waits) = (self.bells().parking(slot), self.bells().waits(0));
        let mut taken = false;
        while !taken && !self.try_take() {
            let e = parking.begin();
            waits.group(0).add(slot);
            fence();
            if how == Sleeper::LooksOnce || !self.is_left() {
                parking.sleep(e, std::time::Duration::MAX);
            }
            taken = how == Sleeper::LeavesLate && self.try_take();
            waits.group(0).remove(slot);
            parking.end();
        }
    }
}

/// Two members sleep in a group while an item comes for each: a ring that neither gets, or only the one that
/// needs none, leaves the other asleep.
fn shared(how: Sleeper) {
    let group = Group::new();
    let takers = Group::SLOTS.map(|slot| {
        let group = group.clone();
        thread::spawn(move || group.take(slot, how))
    });
    for i in 1..=2 {
        group.publish(i);
        group.ring_one();
    }
    takers.into_iter().for_each(|t| t.join().unwrap());
}

#[test]
fn no_item_of_a_group_is_slept_over() {
    check_most(false, || shared(Sleeper::Sound));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_member_that_does_not_look_again() {
    check_most(false, || shared(Sleeper::LooksOnce));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_member_that_leaves_its_set_behind_its_take() {
    check_most(false, || shared(Sleeper::LeavesLate));
}

/// A member comes into a word of the set while a sender claims the only other one there, for an item that
/// another has taken already. The next item is the one that it waits for.
fn comes_beside_a_claim(ring_first: fn(&Group)) {
    let group = Group::new();
    let [other, slot] = Group::SLOTS;
    group.bells().waits(0).group(0).add(other);
    let taker = group.clone();
    let taker = thread::spawn(move || taker.take(slot, Sleeper::Sound));
    group.publish(1);
    group.try_take();
    ring_first(&group);
    group.publish(2);
    group.ring_one();
    taker.join().unwrap();
}

#[test]
fn a_member_that_comes_beside_a_claim_is_rung() {
    check_most(false, || comes_beside_a_claim(Group::ring_one));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_word_that_is_not_looked_at_again() {
    check_most(false, || comes_beside_a_claim(Group::ring_untidily));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_group_without_full_fences() {
    check_most(true, || shared(Sleeper::Sound));
}

/// Lanes of which the first one has sent a message, and sends another.
#[derive(Clone)]
struct Lanes {
    file: Region,
    sent: Region,
}

impl Lanes {
    /// More than are all looked at.
    const LANES: u32 = 9;
    const WORD: u64 = bell_file::waits(0) + wait_area::ACTIVE;

    fn active(&self) -> Active {
        Bells::new(self.file.clone()).waits(0).active()
    }

    fn scan(&self) -> Scan {
        Scan::new(self.active(), 0..Lanes::LANES)
    }

    fn send(&self, i: u64) {
        self.sent.store(0, i);
        fence();
        self.active().mark(0);
    }

    fn pending(&self, k: usize, taken: u64) -> bool {
        k == 0 && self.sent.load(0) > taken
    }
}

/// One reader clears the lane, which it has read, while another one looks that has not. `forgets`: whether the clear
/// leaves the turn as it was.
fn silent(forgets: bool) {
    let lanes =
        Lanes { file: Region::zeroed(bell_file::BYTES).make(&[Lanes::WORD]), sent: Region::zeroed(8).make(&[0]) };
    let (mut clears, mut looks, mut taken) = (lanes.scan(), lanes.scan(), 0);
    assert!(looks.look(|_| false).is_empty());
    lanes.send(1);
    clears.full_look(0, |k| u64::from(k == 0), |_| false);
    let threads = [
        thread::spawn({
            let lanes = lanes.clone();
            move || lanes.send(2)
        }),
        thread::spawn({
            let lanes = lanes.clone();
            move || {
                if forgets {
                    lanes.file.and(Lanes::WORD, !1);
                } else {
                    clears.full_look(1, |k| u64::from(k == 0), |k| lanes.pending(k, 1));
                }
            }
        }),
    ];
    for _ in 0..2 {
        if looks.look(|k| lanes.pending(k, taken)).contains(&0) {
            taken = lanes.sent.load(0);
        }
    }
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert!(taken == 2 || looks.is_ready(|k| lanes.pending(k, taken)), "passed over");
}

#[test]
fn no_lane_is_passed_over_that_has_a_message() {
    check(false, || silent(false));
}

#[test]
#[should_panic = "passed over"]
fn broken_a_clear_that_leaves_the_turn() {
    check(false, || silent(true));
}

#[test]
#[should_panic = "passed over"]
fn broken_clearing_without_full_fences() {
    check(true, || silent(false));
}

/// A reader of many lanes sleeps while one that is silent sends: it looks at the bits of the lanes alone before it
/// sleeps.
fn asleep(set_fences: bool) {
    let set = [bell_file::waits(0) + wait_area::WORDS, bell_file::waits(0) + bell_file::members(0)];
    let file = Region::zeroed(bell_file::BYTES).make(&set).make(&[Lanes::WORD]);
    let lanes = Lanes { file: with_bell(file, OWNER), sent: Region::zeroed(8).make(&[0]) };
    let mut scan = lanes.scan();
    assert!(scan.look(|_| false).is_empty());
    let sender = lanes.clone();
    let t = thread::spawn(move || {
        let bells = Bells::new(sender.file.clone());
        if set_fences {
            sender.send(1);
        } else {
            sender.sent.store(0, 1);
            fence();
            sender.file.or(Lanes::WORD, 1);
        }
        bells.waits(0).all().ring();
    });
    let bells = Bells::new(lanes.file.clone());
    let (parking, waits) = (bells.parking(OWNER), bells.waits(0));
    while !scan.look(|k| lanes.pending(k, 0)).contains(&0) {
        let e = parking.begin();
        waits.all().add(OWNER);
        fence();
        if !scan.is_ready(|k| lanes.pending(k, 0)) {
            parking.sleep(e, std::time::Duration::MAX);
        }
        waits.all().remove(OWNER);
        parking.end();
    }
    assert_eq!(lanes.sent.load(0), 1);
    t.join().unwrap();
}

#[test]
fn a_reader_of_many_lanes_is_rung() {
    check(false, || asleep(true));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_mark_that_is_not_fenced_from_the_ring() {
    check(false, || asleep(false));
}

/// How a thread waits for two topics.
#[derive(Clone, Copy, PartialEq)]
enum Several {
    Sound,
    /// It enters the set of the second topic after its second look.
    EntersLate,
    /// It sleeps on the bell of the first session alone.
    OneBell,
}

/// A thread waits for whichever of two topics has a message first, by the sessions of these slots; it comes in the
/// second one.
fn first_of_two(slots: [u32; 2], how: Several) {
    let sets = [0, 1].map(|t| [bell_file::waits(t) + wait_area::WORDS, bell_file::waits(t) + bell_file::members(0)]);
    let file = Region::zeroed(bell_file::BYTES).make(&sets[0]).make(&sets[1]);
    let file = if slots[0] == slots[1] { with_bell(file, slots[0]) } else { slots.into_iter().fold(file, with_bell) };
    let sent = Region::zeroed(8).make(&[0]);
    let (theirs, published) = (Bells::new(file.clone()), sent.clone());
    let t = thread::spawn(move || {
        published.store(0, 1);
        fence();
        theirs.waits(1).all().ring();
    });
    let bells = Bells::new(file);
    let (first, second) = (bells.parking(slots[0]), bells.parking(slots[1]));
    let (waits, enter) = ([bells.waits(0), bells.waits(1)], |at: usize, waits: &crate::shm::Waits| {
        waits.all().add(slots[at]);
        fence();
    });
    let one = slots[0] == slots[1];
    while sent.load(0) == 0 {
        let e = [first.begin(), if one { 0 } else { second.begin() }];
        enter(0, &waits[0]);
        if how != Several::EntersLate {
            enter(1, &waits[1]);
        }
        if sent.load(0) == 0 {
            if how == Several::EntersLate {
                enter(1, &waits[1]);
            }
            if one || how == Several::OneBell {
                first.sleep(e[0], std::time::Duration::MAX);
            } else {
                crate::shm::Parking::sleep_any(&[(&first, e[0]), (&second, e[1])], std::time::Duration::MAX).unwrap();
            }
        }
        waits.iter().zip(slots).for_each(|(w, slot)| _ = w.all().remove(slot));
        if !one {
            second.end();
        }
        first.end();
    }
    t.join().unwrap();
}

#[test]
fn a_message_of_either_topic_is_not_slept_over() {
    check(false, || first_of_two([OWNER; 2], Several::Sound));
}

#[test]
fn a_message_of_either_session_is_not_slept_over() {
    check(false, || first_of_two([OWNER, OWNER + 1], Several::Sound));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_wait_that_enters_a_set_behind_its_look() {
    check(false, || first_of_two([OWNER; 2], Several::EntersLate));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_a_sleep_on_one_of_two_bells() {
    check(false, || first_of_two([OWNER, OWNER + 1], Several::OneBell));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_waiting_for_several_without_full_fences() {
    check(true, || first_of_two([OWNER, OWNER + 1], Several::Sound));
}
