//! Openings for tests of this layer and of higher ones.

use std::any::{Any, TypeId};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Above, Heirs, Holding, Opening, Shared, Storages, View};
use crate::error::Code;
use crate::link::alone::Broker;
use crate::memory::alone::{self, Files};

/// What a test has above an opening: parts of its layer, and how often the opening came to be of no use.
#[derive(Default)]
pub(crate) struct Parts {
    part: Option<Box<dyn Any + Send + Sync>>,
    unused: Arc<AtomicUsize>,
}

impl Parts {
    /// With the part of one layer.
    pub(crate) fn of<T: Any + Send + Sync>(part: T) -> Parts {
        Parts { part: Some(Box::new(part)), ..Parts::default() }
    }
}

impl Above for Parts {
    fn withdraw_done(&self) {}

    fn unused(&self, _: &Opening) {
        self.unused.fetch_add(1, Ordering::Relaxed);
    }

    fn part(&self, of: TypeId) -> Option<&(dyn Any + Send + Sync)> {
        self.part.as_deref().filter(|p| (*p).type_id() == of)
    }
}

/// An opening with these parts above it.
pub(crate) fn opening(parts: Parts) -> (Arc<Opening>, Broker, Files) {
    let (access, broker, files) = alone::access();
    (Opening::new(access, Arc::new(Heirs::new()), Box::new(parts)), broker, files)
}

#[test]
fn the_last_that_is_held_ends_the_opening() {
    let parts = Parts::default();
    let unused = parts.unused.clone();
    let (inner, mut broker, files) = opening(parts);
    let at = std::thread::scope(|s| {
        let holds = s.spawn(|| inner.hold(alone::storage()).unwrap());
        alone::answer_attach(&mut broker, &files);
        holds.join().unwrap()
    });
    let (memory, r) = (inner.memory.clone(), alone::storage());
    let one = crate::memory::Held { reference: r, at, offset: 0, bytes: 256 };
    let held = Shared::from(Holding::new(&inner, one.into(), View::none()));
    let again = held.clone();
    drop(inner);
    drop(held);
    assert_eq!((memory.files.row.count(r.index), unused.load(Ordering::Relaxed)), (1, 0));
    drop(again);
    assert_eq!((memory.files.row.count(r.index), unused.load(Ordering::Relaxed)), (0, 1));
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
