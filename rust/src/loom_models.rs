//! The code of lanes, ledger and waiting, run by loom through every order of its steps that the memory
//! model allows: `make loom`. Each model has a twin that is broken and must fail, so that it is known
//! to look. They are the models of `models/*.pml`, in the code itself.

use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;

use crate::layout::{bell_file, bell_record, broker_file, chunk_record, lane_bytes, limits, session_file, wait_area};
use crate::ledger::{Chunks, Closed, Entries, FreeTest, Openings, Row, Rows};
use crate::message::Ref;
use crate::shm::{Bells, Lane, Region, SlotHead, fence, weak};

const OWNER: u32 = 1;
const TAKER: u32 = 2;
/// The storage that it is all about.
const INDEX: u32 = 5;

/// Runs a model; when it is broken by weak fences it must fail.
fn check(weakly: bool, model: impl Fn() + Send + Sync + 'static) {
    check_by(Builder::new(), weakly, model);
}

/// As `check`, of a model with so many steps that not all orders can be had: those in which threads are
/// interrupted at most four times.
fn check_most(weakly: bool, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound.get_or_insert(4);
    check_by(builder, weakly, model);
}

fn check_by(builder: Builder, weakly: bool, model: impl Fn() + Send + Sync + 'static) {
    weak(weakly);
    let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| builder.check(model)));
    weak(false);
    if let Err(e) = failed {
        std::panic::resume_unwind(e);
    }
}

/// An owner that has sent a storage and a taker, each with a session file.
#[derive(Clone)]
struct World {
    broker: Region,
    owner: Region,
    taker: Region,
    lane: Lane,
}

impl Rows for World {
    fn row(&self, slot: u32) -> Option<Row> {
        Some(Row::new(if slot == OWNER { &self.owner } else { &self.taker }))
    }
}

impl World {
    fn new() -> World {
        let (row, entry) = (session_file::ROW + 8 * u64::from(INDEX), session_file::ENTRIES + 32 * u64::from(INDEX));
        let files = || Region::zeroed(session_file::BYTES).make(&[row, entry, entry + 8, entry + 16]);
        let (broker, owner, taker) = (Region::zeroed(broker_file::BYTES), files(), files());
        let record = broker_file::chunk(INDEX / limits::CHUNK_INDICES);
        broker.store(record + chunk_record::ATTACHED, 1 << OWNER | 1 << TAKER);
        broker.store(record + chunk_record::ATTACHED_WORDS, 1);
        let lane = Lane::new(&owner, session_file::LANES, 2, 64).unwrap();
        let entries = Entries::new(&owner);
        entries.set_generation(INDEX, 1);
        entries.share(INDEX);
        let w = World { broker, owner, taker, lane };
        // The message counts the storage.
        Row::new(&w.owner).take(INDEX).unwrap();
        let refs = Ref { serial: 1, generation: 1, index: INDEX }.words();
        w.lane.write(1, &SlotHead { nref: 1, ..SlotHead::default() }, &refs);
        w.lane.publish(1);
        w
    }

    /// Un-names the message, counts it down, and recycles the storage if nobody holds it.
    fn withdraw_and_recycle(&self) {
        self.lane.unname(1);
        Row::new(&self.owner).drop(INDEX);
        let entries = Entries::new(&self.owner);
        FreeTest::new(Chunks::new(&self.broker), entries).recycle(self, INDEX);
    }

    fn generation(&self) -> u64 {
        Entries::new(&self.owner).load(INDEX).generation
    }

    /// Takes the message as a reader does. `look_again`: whether it looks at the slot after counting.
    fn take(&self, look_again: bool) {
        let mut words = Vec::new();
        let Some(head) = self.lane.read(1, &mut words, |_| ()) else { return };
        let Some(r) = head.refs(&words).next() else { return };
        let row = Row::new(&self.taker);
        row.take(r.index).unwrap();
        if look_again && !self.lane.still_has(1) {
            row.drop(r.index);
            return;
        }
        assert_eq!(self.generation(), r.generation, "held and recycled");
        row.drop(r.index);
    }

    /// Opens a bare handle of the storage.
    fn open(&self) {
        let row = Row::new(&self.taker);
        row.take(INDEX).unwrap();
        fence();
        if Entries::new(&self.owner).word(INDEX) == 1 {
            thread::yield_now();
            assert_eq!(self.generation(), 1, "held and recycled");
        }
        row.drop(INDEX);
    }
}

fn beside(taker: fn(&World)) {
    let w = World::new();
    let other = w.clone();
    let t = thread::spawn(move || taker(&other));
    w.withdraw_and_recycle();
    t.join().unwrap();
}

#[test]
fn what_a_taker_holds_is_not_recycled() {
    check(false, || beside(|w| w.take(true)));
}

#[test]
#[should_panic(expected = "held and recycled")]
fn broken_a_taker_that_does_not_look_again() {
    check(false, || beside(|w| w.take(false)));
}

#[test]
#[should_panic(expected = "held and recycled")]
fn broken_taking_without_full_fences() {
    check(true, || beside(|w| w.take(true)));
}

#[test]
fn what_an_opener_of_a_handle_holds_is_not_recycled() {
    check(false, || beside(World::open));
}

#[test]
#[should_panic(expected = "held and recycled")]
fn broken_opening_without_full_fences() {
    check(true, || beside(World::open));
}

/// A writer that uses a slot anew while a reader copies it.
fn overwritten(unname: bool) {
    let file = Region::zeroed(lane_bytes(2, 128));
    let lane = Lane::new(&file, 0, 2, 128).unwrap();
    let send = |l: &Lane, i: u64| {
        l.write(i, &SlotHead { stamp: i, body: 16, ..SlotHead::default() }, &[i, i]);
        l.publish(i);
    };
    send(&lane, 1);
    let writer = lane.clone();
    let t = thread::spawn(move || {
        if unname {
            writer.unname(1);
        }
        send(&writer, 3); // in the same slot
    });
    let mut words = Vec::new();
    for i in [1, 3] {
        if let Some(h) = lane.read(i, &mut words, |_| ())
            && lane.still_has(i)
        {
            assert_eq!((h.stamp, &words[..2]), (i, &[i, i][..]), "a mixture");
        }
    }
    t.join().unwrap();
}

#[test]
fn a_message_is_read_whole_or_not() {
    check(false, || overwritten(true));
}

#[test]
#[should_panic(expected = "a mixture")]
fn broken_a_slot_that_is_written_while_it_has_a_number() {
    check(false, || overwritten(false));
}

/// The bell of a session, and where its parked word is.
fn bell_words(slot: u32) -> [u64; 2] {
    [bell_record::PARKED, bell_record::BELL].map(|at| bell_file::record(slot) + at)
}

/// One publishes and rings, the other waits for it. `look`: whether the waiter looks again after it
/// has said that it sleeps.
fn woken(look: bool) {
    const WORD: u64 = 0;
    let shared = Region::zeroed(64).make(&[WORD]);
    let bells = Bells::new(Region::zeroed(bell_file::BYTES).make(&bell_words(OWNER)));
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
        let file = Group::SLOTS.into_iter().fold(file, |file, slot| file.make(&bell_words(slot)));
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
/// somebody has taken already. The next item is the one that it waits for.
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

/// A session that holds a storage, is closed, and is over once its row counts nothing.
#[derive(Clone)]
struct Closing {
    file: Region,
    openings: Arc<Openings<Arc<Closed>>>,
}

/// How a model of closing is broken.
#[derive(Clone, Copy, PartialEq)]
enum Broken {
    No,
    /// Who takes a reference looks whether the session was closed before it counts.
    LooksBefore,
    /// The row is looked at, and the session said to be over, while another may open it.
    EndsBeside,
}

impl Closing {
    /// What the row says and, once it is set, that the broker has recycled the storage.
    const GIVEN_BACK: u64 = 0;

    fn row(&self) -> Row {
        Row::new(&self.file)
    }

    fn counts(&self) -> bool {
        self.row().count(INDEX) > 0
    }

    fn assert_kept(&self) {
        assert_eq!(self.file.load(Self::GIVEN_BACK), 0, "held and given back");
    }

    /// Takes one more reference in an opening, and drops it.
    fn take(&self, opening: &Closed, broken: Broken) {
        let keeps = match broken {
            Broken::LooksBefore => !opening.is_set() && self.row().take(INDEX).is_ok(),
            _ => {
                let keeps = opening.take(&self.row(), INDEX).unwrap();
                if !keeps {
                    self.row().drop(INDEX);
                }
                keeps
            }
        };
        if keeps {
            self.assert_kept();
            self.row().drop(INDEX);
        }
    }

    /// What the thread of the session does when it is closed: `bye` with `keep`, and once the row counts
    /// nothing the end.
    fn part(&self, broken: Broken) {
        self.openings.left();
        let ends = match broken {
            Broken::EndsBeside => {
                let ends = !self.openings.is_open() && !self.counts();
                if ends {
                    self.openings.over();
                }
                ends
            }
            _ => self.openings.end_if(|| !self.counts()),
        };
        if ends {
            self.file.store(Self::GIVEN_BACK, 1); // the broker has heard it
            self.openings.over();
        }
    }

    /// The next connect of the process.
    fn connect_again(&self, broken: Broken) {
        let make = || {
            let opening = Arc::new(Closed::default());
            (opening.clone(), opening)
        };
        if let Some(opening) = self.openings.begin_again(make) {
            self.take(&opening, broken);
        }
    }
}

/// A session is closed and comes to its end while other threads drop what it held last, take one more
/// reference, and open it again.
fn closing(broken: Broken) {
    let row = session_file::ROW + 8 * u64::from(INDEX);
    let file = Region::zeroed(session_file::BYTES).make(&[row, Closing::GIVEN_BACK]);
    let first = Arc::new(Closed::default());
    let s = Closing { file, openings: Arc::new(Openings::new(first.clone())) };
    let (takes, opening) = (s.clone(), first.clone());
    s.row().take(INDEX).unwrap();
    let taker = thread::spawn(move || takes.take(&opening, broken));
    let others = s.clone();
    let other = thread::spawn(move || {
        others.assert_kept();
        others.row().drop(INDEX);
        others.connect_again(broken);
    });
    first.set();
    s.openings.leave();
    s.part(broken);
    taker.join().unwrap();
    other.join().unwrap();
    if !s.openings.is_open() {
        s.part(broken);
        assert!(s.openings.is_over(), "nothing is counted, and it goes on");
    }
}

#[test]
fn a_closed_session_ends_when_nothing_is_held() {
    check(false, || closing(Broken::No));
}

#[test]
#[should_panic(expected = "held and given back")]
fn broken_a_taker_that_looks_before_it_counts_whether_the_session_was_closed() {
    check(false, || closing(Broken::LooksBefore));
}

#[test]
#[should_panic(expected = "held and given back")]
fn broken_a_session_that_ends_while_it_is_opened_again() {
    check(false, || closing(Broken::EndsBeside));
}

#[test]
#[should_panic(expected = "held and given back")]
fn broken_closing_without_full_fences() {
    check(true, || closing(Broken::No));
}
