//! What a writer, readers and members of a group see of each other's lanes, claims and storages.

use loom::thread;

use super::{Bytes, INDEX, OWNER, TAKER, World, check, check_most_once, check_once};
use crate::layout::{GROUP_AREAS, broker_file, chunk_record, group_area, group_bytes, lane_bytes, session_file};
use crate::ledger::{Chunks, Entries, FreeTest, Holders, Refcounts};
use crate::message::{Brief, Ref};
use crate::shm::{Copied, GroupLane, Lane, Region, SlotHead, fence};

/// A taker uses what it holds while the owner recycles it and writes it anew.
#[test]
fn what_a_holder_did_with_the_bytes_comes_before_their_next_use() {
    check(false, || {
        let (w, bytes) = (World::new(), Bytes::new());
        let (other, held) = (w.clone(), bytes.clone());
        let t = thread::spawn(move || other.take_and(true, || held.read()));
        if w.withdraw_and_recycle().is_some() {
            bytes.write();
        }
        t.join().unwrap();
    });
}

/// A group's member takes the message, the writer un-names it when the group is done with it.
fn claimed<const MEMBERS: usize>(counts_first: bool) {
    let (w, bytes) = (World::new(), Bytes::new());
    let (area, claim) = (GROUP_AREAS, GROUP_AREAS + group_area::SIZE + 8);
    let words = [area + group_area::HINT, area + group_area::START, area + group_area::BASE, claim];
    let file = Region::zeroed(group_bytes(2)).make(&words);
    let group = GroupLane::new(&file, 0, 2).unwrap();
    let members = std::array::from_fn::<_, MEMBERS, _>(|member| {
        let (w, bytes, group) = (w.clone(), bytes.clone(), group.clone());
        thread::spawn(move || {
            let Some((i, hint)) = group.next(1) else { return 0 };
            let refcounts = Refcounts::new(&w.taker);
            if counts_first {
                refcounts.take(INDEX).unwrap();
            }
            let mine = group.take(i, hint, member as u16, false);
            if !counts_first {
                refcounts.take(INDEX).unwrap();
            }
            if mine {
                bytes.read();
            }
            refcounts.drop(INDEX);
            u32::from(mine)
        })
    });
    // It waits: loom would else let a claim after the writer's look be, for its own look stands between.
    while !group.done(1) {
        thread::yield_now();
    }
    if w.withdraw_and_recycle().is_some() {
        bytes.write();
    }
    let taken: u32 = members.into_iter().map(|t| t.join().unwrap()).sum();
    assert_eq!(taken, 1, "takers");
}

#[test]
fn what_a_member_has_claimed_is_not_recycled() {
    check(false, || claimed::<1>(true));
}

#[test]
fn one_member_alone_has_a_message() {
    check_most_once(|| claimed::<2>(true));
}

#[test]
#[should_panic]
fn broken_a_member_that_counts_behind_its_claim() {
    check(false, || claimed::<1>(false));
}

/// The place of a lane gets another lane, and claims that begin elsewhere, while a reader still has the view of the
/// former one.
fn used_anew(cleared: bool) {
    let (record, area) = (0, GROUP_AREAS);
    let page = Region::zeroed(64).make(&[record]);
    let claims = Region::zeroed(group_bytes(2)).make(&[area + group_area::BASE]);
    let file = Region::zeroed(lane_bytes(2, 64));
    let lane = Lane::new(&file, 0, 2, 64).unwrap();
    lane.write(1, &SlotHead::default(), &[]);
    lane.unname(1);
    page.store(record, 1);
    let (page2, claims2, lane2) = (page.clone(), claims.clone(), lane.clone());
    let t = thread::spawn(move || {
        if cleared {
            page2.store(record, 0);
        }
        claims2.store(area + group_area::BASE, 100);
        lane2.write(1, &SlotHead { stamp: 2, ..SlotHead::default() }, &[]);
        lane2.publish(1);
        page2.store(record, 2);
    });
    let seen = page.load(record);
    let group = GroupLane::new(&claims, 0, 2).unwrap();
    if page.load(record) == seen && seen != 0 {
        assert_eq!(group.base(), if seen == 2 { 100 } else { 0 }, "another lane's claims");
    }
    let copied = lane.read(1, &mut Vec::new(), |_| ());
    if copied.is_some() && lane.still_has(1) {
        assert!(page.load(record) != 1, "another lane's message");
    }
    t.join().unwrap();
}

#[test]
fn nothing_of_another_lane_is_taken_for_a_former_one() {
    check(false, || used_anew(true));
}

#[test]
#[should_panic(expected = "another lane's")]
fn broken_a_lane_that_ends_behind_the_next_one() {
    check(false, || used_anew(false));
}

/// A session passes what it holds on to one that has just been attached, while the owner tests the storage.
fn passed_on(looks_at_epoch: bool) {
    const THIRD: u32 = 3;

    struct Three(World, Region);

    impl Holders for Three {
        fn refcounts(&self, slot: u32) -> Option<Refcounts> {
            if slot == THIRD { Some(Refcounts::new(&self.1)) } else { self.0.refcounts(slot) }
        }
    }

    let (w, bytes) = (World::new(), Bytes::new());
    let third = Region::zeroed(session_file::BYTES).make(&[session_file::REFCOUNTS + 8 * u64::from(INDEX)]);
    let record = broker_file::chunk(0);
    w.broker.store(record + chunk_record::ATTACHED, 1 << OWNER | 1 << THIRD);
    w.broker.store(record + chunk_record::EPOCH, 1);
    Refcounts::new(&third).take(INDEX).unwrap();
    Refcounts::new(&w.owner).drop(INDEX);
    let (other, its, held) = (w.clone(), Refcounts::new(&third), bytes.clone());
    let t = thread::spawn(move || {
        if looks_at_epoch {
            other.broker.or(record + chunk_record::ATTACHED, 1 << TAKER);
            other.broker.add(record + chunk_record::EPOCH, 1);
        }
        let refcounts = Refcounts::new(&other.taker);
        refcounts.take(INDEX).unwrap();
        its.drop(INDEX);
        held.read();
        refcounts.drop(INDEX);
    });
    let mut test = FreeTest::new(Chunks::new(&w.broker), Entries::new(&w.owner));
    let holders = Three(w, third);
    test.recycle(&holders, INDEX); // from here on it knows whose refcounts count
    while Refcounts::new(&holders.1).count(INDEX) > 0 {
        thread::yield_now();
    }
    if test.recycle(&holders, INDEX).is_some() {
        bytes.write();
    }
    t.join().unwrap();
}

#[test]
fn what_is_passed_on_to_a_new_session_is_not_recycled() {
    check(false, || passed_on(true));
}

#[test]
#[should_panic]
fn broken_a_session_that_is_attached_without_a_word() {
    check(false, || passed_on(false));
}

/// A storage is described and shared while another process opens a handle of it that it has made up.
#[test]
fn an_opener_of_a_handle_sees_where_its_storage_lies() {
    check(false, || {
        let w = World::new();
        let entries = Entries::new(&w.owner);
        entries.set_generation(INDEX, 7);
        let other = w.clone();
        let t = thread::spawn(move || {
            let (refcounts, entries) = (Refcounts::new(&other.taker), Entries::new(&other.owner));
            refcounts.take(INDEX).unwrap();
            fence();
            if entries.word(INDEX) == 7 {
                let e = entries.load(INDEX);
                assert_eq!((e.offset, e.bytes), (64, 8), "the range of before");
            }
            refcounts.drop(INDEX);
        });
        entries.describe(INDEX, 64, 8, 0);
        entries.share(INDEX);
        t.join().unwrap();
    });
}

/// Messages up to the head are found, and their stamps.
#[test]
fn a_head_means_that_the_slots_up_to_it_were_published() {
    check_once(|| {
        let file = Region::zeroed(lane_bytes(2, 64));
        let lane = Lane::new(&file, 0, 2, 64).unwrap();
        lane.write(1, &SlotHead::default(), &[]);
        lane.unname(1);
        lane.publish(0); // makes the head
        let writer = lane.clone();
        let t = thread::spawn(move || {
            writer.write(1, &SlotHead { stamp: 9, ..SlotHead::default() }, &[]);
            writer.publish(1);
        });
        if lane.head() == 1 {
            assert!(lane.has(1), "passed over");
        }
        if lane.has(1) {
            assert_eq!(lane.stamp(1), 9);
        }
        t.join().unwrap();
    });
}

/// A writer uses a slot anew for brief messages while a reader looks at it in every way that there is.
fn overwritten_brief(read: fn(&Lane, i: u64) -> Option<u64>) {
    let file = Region::zeroed(lane_bytes(2, 64));
    let lane = Lane::new(&file, 0, 2, 64).unwrap();
    let send = |l: &Lane, i: u64| {
        let r = Ref { serial: i, generation: i, index: INDEX };
        let brief = Brief::of(0, r, crate::dtype::DType::FLOAT32, &[]).unwrap();
        l.write_brief(i, &brief, i);
        l.publish(i);
    };
    send(&lane, 1);
    let writer = lane.clone();
    let t = thread::spawn(move || {
        writer.unname(1);
        send(&writer, 3); // in the same slot
    });
    for i in [1, 3] {
        if let Some(said) = read(&lane, i)
            && lane.still_has(i)
        {
            assert_eq!(said, i, "a mixture");
        }
    }
    t.join().unwrap();
}

#[test]
fn a_brief_message_is_read_whole_or_not() {
    check_most_once(|| {
        overwritten_brief(|l, i| match l.read(i, &mut Vec::new(), |_| ()) {
            Some(Copied::Brief(b, stamp))
                if b.reference.generation == b.reference.serial && b.reference.serial == stamp =>
            {
                Some(stamp)
            }
            Some(_) => Some(0),
            None => None,
        });
    });
    check_most_once(|| {
        overwritten_brief(|l, i| {
            let (b, stamp) = l.read_brief(i, |_| ())?;
            Some(if b.reference.generation == stamp { stamp } else { 0 })
        });
    });
}

#[test]
fn a_stamp_is_that_of_the_number_seen_before_and_behind_it() {
    check_most_once(|| overwritten_brief(|l, i| l.has(i).then(|| l.stamp(i))));
}
