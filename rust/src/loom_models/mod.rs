//! The code of lanes, ledger and waiting, run by loom through every order of its steps that the memory
//! model allows: `make loom`. Each model has a twin that is broken and must fail, so that a model that
//! checks nothing is noticed. They are the models of `models/*.pml`, in the code itself.

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::thread;
use std::sync::Arc;

use crate::layout::{broker_file, chunk_record, lane_bytes, limits, session_file};
use crate::ledger::{Chunks, Entries, FreeTest, Holders, Refcounts};
use crate::message::Ref;
use crate::shm::{Copied, Lane, Region, SlotHead, fence};
use crate::sync::{AtomicU64, Ordering, Sc, sequential};

mod calling;
mod closing;
mod hub;
mod sharing;
mod threads;
mod waiting;

const OWNER: u32 = 1;
const TAKER: u32 = 2;
/// The storage that it is all about.
const INDEX: u32 = 5;

/// Runs a model, with each of the two makes of sequentially consistent accesses; when it is broken by weak fences,
/// where it must fail, with neither.
fn check(weakly: bool, model: impl Fn() + Send + Sync + 'static) {
    check_by(Builder::new, weakly, model);
}

/// As `check`, of a model with so many steps that not all orders can be tried: those in which threads are
/// interrupted at most four times.
fn check_most(weakly: bool, model: impl Fn() + Send + Sync + 'static) {
    check_by(bounded, weakly, model);
}

/// As `check`, of a model in which no access need be sequentially consistent: with what orders least before it.
fn check_once(model: impl Fn() + Send + Sync + 'static) {
    check_as(&[Sc::Behind], Builder::new, model);
}

/// As `check_once`, with the bound of `check_most`.
fn check_most_once(model: impl Fn() + Send + Sync + 'static) {
    check_as(&[Sc::Behind], bounded, model);
}

fn bounded() -> Builder {
    let mut builder = Builder::new();
    builder.preemption_bound.get_or_insert(4);
    builder
}

fn check_by(builder: fn() -> Builder, weakly: bool, model: impl Fn() + Send + Sync + 'static) {
    check_as(if weakly { &[Sc::Weak] } else { &[Sc::Before, Sc::Behind] }, builder, model);
}

fn check_as(makes: &[Sc], builder: fn() -> Builder, model: impl Fn() + Send + Sync + 'static) {
    let model = Arc::new(model);
    for sc in makes {
        sequential(*sc);
        let model = model.clone();
        let run = || builder().check(move || model());
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        sequential(Sc::Before);
        if let Err(e) = failed {
            std::panic::resume_unwind(e);
        }
    }
}

/// Memory that threads read until one of them has it alone, and writes it: loom finds out where that was not so.
#[derive(Clone)]
struct Bytes(Arc<(UnsafeCell<u64>, AtomicU64)>);

impl Bytes {
    fn new() -> Bytes {
        Bytes(Arc::new((UnsafeCell::new(0), AtomicU64::new(0))))
    }

    fn read(&self) {
        self.step();
        // SAFETY: loom finds a write beside it out.
        self.0.0.with(|b| assert_eq!(unsafe { *b }, 0, "used and over"));
    }

    fn write(&self) {
        self.step();
        // SAFETY: loom finds an access beside it out.
        self.0.0.with_mut(|b| unsafe { *b += 1 });
    }

    /// Loom tries both orders of what changes one atomic, and neither of what stands in a cell.
    fn step(&self) {
        self.0.1.fetch_add(1, Ordering::Relaxed);
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

impl Holders for World {
    fn refcounts(&self, slot: u32) -> Option<Refcounts> {
        Some(Refcounts::new(if slot == OWNER { &self.owner } else { &self.taker }))
    }
}

impl World {
    fn new() -> World {
        let (word, entry) =
            (session_file::REFCOUNTS + 8 * u64::from(INDEX), session_file::ENTRIES + 32 * u64::from(INDEX));
        let files = || Region::zeroed(session_file::BYTES).make(&[word, entry, entry + 8, entry + 16]);
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
        Refcounts::new(&w.owner).take(INDEX).unwrap();
        let refs = Ref { serial: 1, generation: 1, index: INDEX }.words();
        w.lane.write(1, &SlotHead { nref: 1, ..SlotHead::default() }, &refs);
        w.lane.publish(1);
        w
    }

    /// Un-names the message, counts it down, and recycles the storage if no holder counts it.
    fn withdraw_and_recycle(&self) -> Option<u64> {
        self.lane.unname(1);
        Refcounts::new(&self.owner).drop(INDEX);
        let entries = Entries::new(&self.owner);
        FreeTest::new(Chunks::new(&self.broker), entries).recycle(self, INDEX)
    }

    fn generation(&self) -> u64 {
        Entries::new(&self.owner).load(INDEX).generation
    }

    /// Takes the message as a reader does. `look_again`: whether it looks at the slot after counting.
    fn take(&self, look_again: bool) {
        self.take_and(look_again, || assert_eq!(self.generation(), 1, "held and recycled"));
    }

    /// As `take`, with what it does with the storage.
    fn take_and(&self, look_again: bool, hold: impl Fn()) {
        let mut words = Vec::new();
        let Some(Copied::Full(head)) = self.lane.read(1, &mut words, |_| ()) else { return };
        let Some(r) = head.refs(&words).next() else { return };
        let refcounts = Refcounts::new(&self.taker);
        refcounts.take(r.index).unwrap();
        if look_again && !self.lane.still_has(1) {
            refcounts.drop(r.index);
            return;
        }
        hold();
        refcounts.drop(r.index);
    }

    /// Opens a bare handle of the storage.
    fn open(&self) {
        let refcounts = Refcounts::new(&self.taker);
        refcounts.take(INDEX).unwrap();
        fence();
        if Entries::new(&self.owner).word(INDEX) == 1 {
            thread::yield_now();
            assert_eq!(self.generation(), 1, "held and recycled");
        }
        refcounts.drop(INDEX);
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
        if let Some(Copied::Full(h)) = lane.read(i, &mut words, |_| ())
            && lane.still_has(i)
        {
            assert_eq!((h.stamp, &words[..2]), (i, &[i, i][..]), "a mixture");
        }
    }
    t.join().unwrap();
}

#[test]
fn a_message_is_read_whole_or_not() {
    check_once(|| overwritten(true));
}

#[test]
#[should_panic(expected = "a mixture")]
fn broken_a_slot_that_is_written_while_it_has_a_number() {
    check_once(|| overwritten(false));
}
