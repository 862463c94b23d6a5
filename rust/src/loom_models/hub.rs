//! Threads of one session that wait: one sleeps on the bell, and wakes the others.

use std::sync::Arc;

use loom::thread;

use super::{OWNER, check_most};
use crate::layout::{bell_file, bell_record, wait_area};
use crate::shm::{Bells, Region, fence};
use crate::waits::{Look, Place, Side, Waiter, Waiting, wait};

/// A session whose threads wait in one topic.
struct Session {
    file: Region,
    shared: Region,
    waiter: Waiter,
    topic: Waiting,
}

/// Whether threads look again once they have announced their sleep.
type Again = bool;

impl Session {
    const SENT: u64 = 0;
    const TAKEN: u64 = 8;
    const NEWS: u64 = 16;

    /// `set`: the one in which they wait.
    fn new(set: u32) -> Arc<Session> {
        let (record, sets) = (bell_file::record(OWNER), bell_file::waits(0));
        let words = [sets + wait_area::WORDS + 8 * u64::from(set), sets + bell_file::members(set)];
        let file = Region::zeroed(bell_file::BYTES).make(&words).make(&[record + bell_record::PARKED]);
        let file = file.make32(&[record + bell_record::BELL]);
        let bells = Bells::new(file.clone());
        Arc::new(Session {
            shared: Region::zeroed(64).make(&[Session::SENT, Session::TAKEN, Session::NEWS]),
            waiter: Waiter::new(&bells, OWNER, false),
            topic: Waiting::new(&bells, 0, OWNER),
            file,
        })
    }

    fn load(&self, word: u64) -> u64 {
        self.shared.load(word)
    }

    fn wait(&self, places: &[Place<'_>], again: Again, is: impl Fn() -> bool) {
        let mut looks = 0; // every second one is that before a sleep
        let look = |look| {
            looks += u32::from(look == Look::Parked);
            (again || looks % 2 == 0) && is()
        };
        let side = Side { waiter: &self.waiter, places };
        assert!(wait(side, &[], None, None, look, || Ok(())).unwrap());
    }

    /// Takes an item of the group.
    fn take(&self, again: Again) {
        loop {
            let n = self.load(Session::TAKEN);
            match n < self.load(Session::SENT) {
                true if self.shared.cas(Session::TAKEN, n, n + 1) => return,
                true => {}
                false => {
                    let is_left = || self.load(Session::TAKEN) < self.load(Session::SENT);
                    self.wait(&[self.topic.place(Some(0))], again, is_left);
                }
            }
        }
    }

    /// Another session's send.
    fn send(&self, n: u64, groups: u32) {
        let theirs = Waiting::new(&Bells::new(self.file.clone()), 0, OWNER + 1);
        self.shared.store(Session::SENT, n);
        fence();
        theirs.ring(groups, &mut Vec::new());
    }
}

/// Two threads wait in a group for an item each.
fn in_a_group(again: Again) {
    let s = Session::new(1);
    let takers = [(); 2].map(|()| {
        let s = s.clone();
        thread::spawn(move || s.take(again))
    });
    (1..=2).for_each(|n| s.send(n, 1));
    takers.into_iter().for_each(|t| t.join().unwrap());
}

/// One waits for a message, the other for something that is rung without one.
fn beside(again: Again) {
    let s = Session::new(0);
    let (reader, other) = (s.clone(), s.clone());
    let threads = [
        thread::spawn(move || {
            reader.wait(&[reader.topic.place(None)], again, || reader.load(Session::SENT) > 0);
        }),
        thread::spawn(move || other.wait(&[], again, || other.load(Session::NEWS) > 0)),
    ];
    s.shared.store(Session::NEWS, 1);
    fence();
    Bells::new(s.file.clone()).bell(OWNER).ring();
    s.send(1, 0);
    threads.into_iter().for_each(|t| t.join().unwrap());
}

#[test]
fn no_item_of_a_group_is_slept_over_by_threads() {
    check_most(false, || in_a_group(true));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_threads_that_do_not_look_again() {
    check_most(false, || in_a_group(false));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_threads_of_a_group_without_full_fences() {
    check_most(true, || in_a_group(true));
}

#[test]
fn a_ring_for_a_message_hides_no_other() {
    check_most(false, || beside(true));
}

#[test]
#[should_panic(expected = "deadlock")]
fn broken_threads_beside_each_other_that_do_not_look_again() {
    check_most(false, || beside(false));
}
