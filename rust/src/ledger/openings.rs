//! The openings of one session of the broker's, one after the other, and its end: once it is closed and its
//! refcounts count nothing.

#[cfg(not(baton_loom))]
use std::time::Instant;

use super::Refcounts;
use crate::error::Result;
use crate::shm::fence;
use crate::sync::{AtomicBool, Condvar, Mutex, MutexGuard, Ordering};

/// Whether an opening was closed.
#[derive(Debug, Default)]
pub(crate) struct Closed(AtomicBool);

impl Closed {
    /// Says that it was; whether that was said before.
    ///
    /// SYNC closing: before the refcounts are looked at; pairs with `take`.
    pub(crate) fn set(&self) -> bool {
        self.0.swap(true, Ordering::AcqRel)
    }

    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Counts a reference up for the opening; whether it may be kept, and is not to be counted down again.
    ///
    /// SYNC closing: looked at after the refcounts were raised; pairs with `end_if`.
    #[inline]
    pub(crate) fn take(&self, refcounts: &Refcounts, index: u32) -> Result<bool> {
        refcounts.take(index)?;
        Ok(!self.0.load(Ordering::SeqCst))
    }

    /// As `take`; `None`, and nothing counted, where the refcounts have as many as there may be.
    #[inline(always)]
    pub(crate) fn take_known(&self, refcounts: &Refcounts, index: u32) -> Option<bool> {
        refcounts.take_one(index).then(|| !self.0.load(Ordering::SeqCst))
    }
}

/// Where a session is in its life. An `O` stands for an opening.
#[derive(Debug)]
enum Stage<O> {
    /// It is open.
    Open(O),
    /// Its opening was closed, which the broker has not answered yet.
    Leaving,
    /// It counts what its openings have left, and may be opened again.
    Resting,
    /// It counts nothing, which a broker does not know yet.
    Ending,
    /// The broker ends it, or has given it up.
    Over,
}

/// The openings of a session.
#[derive(Debug)]
pub(crate) struct Openings<O> {
    stage: Mutex<Stage<O>>,
    changed: Condvar,
}

impl<O: Clone> Openings<O> {
    pub(crate) fn new(first: O) -> Openings<O> {
        Openings { stage: Mutex::new(Stage::Open(first)), changed: Condvar::new() }
    }

    fn stage(&self) -> MutexGuard<'_, Stage<O>> {
        self.stage.lock().unwrap_or_else(|p| p.into_inner())
    }

    fn to(&self, stage: &mut Stage<O>, next: Stage<O>) {
        *stage = next;
        self.changed.notify_all();
    }

    /// The present one.
    pub(crate) fn present(&self) -> Option<O> {
        match &*self.stage() {
            Stage::Open(o) => Some(o.clone()),
            _ => None,
        }
    }

    /// Begins the first.
    pub(crate) fn begin(&self, o: O) {
        *self.stage() = Stage::Open(o);
    }

    /// Begins the next, made by `make`, where the one before was left and the session is not over.
    pub(crate) fn begin_again<M>(&self, make: impl FnOnce() -> (M, O)) -> Option<M> {
        let mut stage = self.stage();
        if !matches!(*stage, Stage::Resting) {
            return None;
        }
        let (made, o) = make();
        self.to(&mut stage, Stage::Open(o));
        Some(made)
    }

    /// Ends the present one; the broker is to be notified of it.
    pub(crate) fn leave(&self) {
        let mut stage = self.stage();
        if matches!(*stage, Stage::Open(_)) {
            self.to(&mut stage, Stage::Leaving);
        }
    }

    /// The broker has been notified of it.
    pub(crate) fn left(&self) {
        let mut stage = self.stage();
        if matches!(*stage, Stage::Leaving) {
            self.to(&mut stage, Stage::Resting);
        }
    }

    /// Waits until the broker has been notified of it, and no longer than that.
    #[cfg(not(baton_loom))]
    pub(crate) fn await_left(&self, until: Instant) {
        let mut stage = self.stage();
        while matches!(*stage, Stage::Leaving | Stage::Ending) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            stage = self.changed.wait_timeout(stage, left).unwrap_or_else(|p| p.into_inner()).0;
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(*self.stage(), Stage::Open(_))
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(*self.stage(), Stage::Over)
    }

    /// Whether the broker has been notified of the last one's end, or need not.
    pub(crate) fn is_left(&self) -> bool {
        matches!(*self.stage(), Stage::Resting | Stage::Ending | Stage::Over)
    }

    /// Nothing is left to be done with the session.
    pub(crate) fn over(&self) {
        let mut stage = self.stage();
        self.to(&mut stage, Stage::Over);
    }

    /// Ends the session if it is closed and `empty` finds that its refcounts count nothing: from here on nothing is
    /// counted.
    ///
    /// SYNC closing: the openings were marked closed first, the refcounts are read second, with a full fence between
    /// them; pairs with `Closed::take`.
    pub(crate) fn end_if(&self, empty: impl FnOnce() -> bool) -> bool {
        let mut stage = self.stage();
        match *stage {
            Stage::Open(_) => return false,
            Stage::Ending | Stage::Over => return true,
            Stage::Leaving | Stage::Resting => {}
        }
        fence();
        let ends = empty();
        if ends {
            *stage = Stage::Ending;
        }
        ends
    }
}
