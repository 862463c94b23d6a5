//! What threads of one process share without a lock of the standard library: notes of attachments, owners of a
//! holding, turns, and storages on their way back to a pool.

use std::sync::Arc;

use loom::thread;

use super::{Bytes, INDEX, check, check_once};
use crate::layout::session_file;
use crate::ledger::{Drops, Granted, Note, Refcounts};
use crate::owners::OwnerCount;
use crate::shm::Region;
use crate::turnstile::Turnstile;

/// An attachment, whose freeing is a write.
struct Attachment {
    serial: u64,
    lives: Bytes,
}

impl Granted for Attachment {
    fn serial(&self) -> u64 {
        self.lives.read();
        self.serial
    }
}

impl Attachment {
    fn new(serial: u64) -> Box<Attachment> {
        Box::new(Attachment { serial, lives: Bytes::new() })
    }
}

/// A process that is attached to a grant of a chunk, trims it and is attached to the next.
struct Attached {
    refcounts: Refcounts,
    note: Note<Attachment>,
}

impl Attached {
    /// Takes a storage of a grant. `late`: it looks for the attachment before it counts.
    fn take(&self, serial: u64, late: bool) {
        let early = late.then(|| self.note.find(serial));
        self.refcounts.take(INDEX).unwrap();
        if let Some(a) = early.unwrap_or_else(|| self.note.find(serial)) {
            // SAFETY: the models never free one.
            let a = unsafe { a.as_ref() };
            assert_eq!(a.serial(), serial);
        }
        self.refcounts.drop(INDEX);
    }

    /// Changes the note and frees what was noted if nothing of it is counted.
    fn put(&self, new: Option<Box<Attachment>>) {
        if let Some(old) = self.note.set(new)
            && self.refcounts.count(INDEX) == 0
        {
            // SAFETY: as above.
            unsafe { old.as_ref() }.lives.write();
        }
    }
}

fn trimmed(late: bool) {
    let file = Region::zeroed(session_file::BYTES).make(&[session_file::REFCOUNTS + 8 * u64::from(INDEX)]);
    let s = Arc::new(Attached { refcounts: Refcounts::new(&file), note: Note::default() });
    s.put(Some(Attachment::new(1)));
    let other = s.clone();
    let taker = thread::spawn(move || {
        if other.note.serial() == 1 {
            other.take(1, late);
        }
        if other.note.serial() == 2 {
            other.take(2, late);
        }
    });
    s.put(Some(Attachment::new(2)));
    taker.join().unwrap();
}

#[test]
fn an_attachment_stays_while_the_refcounts_count_something_of_it() {
    check(false, || trimmed(false));
}

#[test]
#[should_panic]
fn broken_a_taker_that_looks_for_the_note_before_it_counts() {
    check(false, || trimmed(true));
}

#[test]
#[should_panic]
fn broken_attachments_without_full_fences() {
    check(true, || trimmed(false));
}

/// A value with owners in two threads, one of which makes another for a third.
fn owned(leave: fn(&OwnerCount) -> bool) {
    let value = Arc::new((OwnerCount::one(), Bytes::new()));
    let end = move |v: &(OwnerCount, Bytes)| {
        v.1.read();
        if leave(&v.0) {
            v.1.write();
        }
    };
    value.0.add(2);
    let other = value.clone();
    let second = thread::spawn(move || {
        other.0.add(1);
        end(&other);
        end(&other);
    });
    value.1.read();
    value.0.give_up(1); // one that was counted and not given out
    end(&value);
    second.join().unwrap();
    value.1.write(); // all others have gone
}

#[test]
fn the_last_owner_ends_what_is_shared() {
    check_once(|| owned(OwnerCount::leave));
}

#[test]
#[should_panic]
fn broken_an_owner_that_ends_what_others_have() {
    check_once(|| owned(|owners| owners.leave() || owners.is_only()));
}

/// Threads that wait for their turns.
#[test]
fn one_thread_at_a_time_has_its_turn() {
    super::check_most_once(|| {
        let turns = Arc::new(Turnstile::new(Bytes::new()));
        let threads = [(); 2].map(|()| {
            let turns = turns.clone();
            thread::spawn(move || turns.lock_until(None, || false).unwrap().unwrap().write())
        });
        if let Some(turn) = turns.try_lock() {
            turn.write();
        }
        threads.into_iter().for_each(|t| t.join().unwrap());
        turns.try_lock().expect("the turn is free").write();
    });
}

/// Storages handed back while others are taken from the list.
#[test]
fn what_is_handed_back_comes_to_the_pool_once() {
    check_once(|| {
        let drops = Arc::new(Drops::default());
        let threads = [1, 2].map(|index| {
            let drops = drops.clone();
            thread::spawn(move || drops.note(index))
        });
        let mut all = Vec::new();
        let mut take = || all.extend(drops.take(&mut Vec::new()).unwrap_or_default());
        take();
        threads.into_iter().for_each(|t| t.join().unwrap());
        take();
        all.sort();
        assert_eq!(all, [1, 2]);
    });
}
