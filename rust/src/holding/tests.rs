//! The layer alone: its openings over files that a test has made, whose broker is the test.

use std::sync::atomic::Ordering;

use super::fixture::{Parts, opening};
use super::{Holding, Shared, Storages, View};
use crate::error::Code;
use crate::memory::fixture;

#[test]
fn the_last_that_is_held_ends_the_opening() {
    let parts = Parts::default();
    let unused = parts.unused.clone();
    let (inner, mut broker, files) = opening(parts);
    let at = std::thread::scope(|s| {
        let holds = s.spawn(|| inner.hold(fixture::storage()).unwrap());
        fixture::answer_attach(&mut broker, &files);
        holds.join().unwrap()
    });
    let (memory, r) = (inner.memory.clone(), fixture::storage());
    let one = crate::memory::Held { reference: r, at, offset: 0, bytes: 256 };
    let held = Shared::from(Holding::new(&inner, one.into(), View::none()));
    let again = held.clone();
    drop(inner);
    drop(held);
    assert_eq!((memory.files.refcounts.count(r.index), unused.load(Ordering::Relaxed)), (1, 0));
    drop(again);
    assert_eq!((memory.files.refcounts.count(r.index), unused.load(Ordering::Relaxed)), (0, 1));
}

#[test]
fn what_was_given_to_a_place_is_not_counted_down() {
    let (inner, _broker, _files) = opening(Parts::default());
    let held = Shared::from(Holding::new(&inner, Storages::default(), View::none()));
    assert!(held.may_give(&inner, 0) && held.is_only());
    held.give();
    let again = held.clone();
    assert!(!held.may_give(&inner, 0) && !again.may_give(&inner, 0));
}

#[test]
fn no_claim_is_made_behind_the_close() {
    let (inner, _broker, _files) = opening(Parts::default());
    let claim = inner.claiming();
    assert!(claim.is_some());
    drop(claim);
    inner.closed.set();
    inner.await_claims();
    assert!(inner.claiming().is_none());
    assert_eq!(inner.check_open().unwrap_err().code(), Code::Closed);
}
