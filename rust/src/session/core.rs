//! What a session has of its broker: the connection, the session files, the memory and what is counted in it.
//!
//! An [`Opening`] is one use of a core, from [`Session::connect`](super::Session::connect) to the close. All that a
//! program has made of an opening ends with it, except for tensors: their bytes stay until the last tensor is dropped.
//! They are counted in the refcounts of the core, so a core whose opening was closed lives on while its refcounts count
//! anything. It takes part in no topic then. When the process opens a session with the same settings, the core gets
//! another opening. So a program that opens and closes many times, and keeps a tensor each time, has one core.

use std::any::{Any, TypeId};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::close::close;
use super::heir::Heir;
use super::legacy::Legacies;
use crate::devices::Devices;
use crate::error::Result;
use crate::holding::{Above, Heirs, Opening};
use crate::lanes::{Lanes, Topics};
use crate::link::{Client, Link, Options, Thread};
use crate::memory::{Access, Inherited, Memory, SessionFiles};
use crate::sys::PerProcess;
use crate::waits::Waiter;
use crate::wire::Control;
use crate::wire::ops::{Nothing, Resume};

/// One session of the broker's.
pub(crate) struct Core {
    pub(super) link: Arc<Link>,
    pub(super) memory: Arc<Memory>,
    pub(super) lanes: Arc<Lanes>,
    /// What is counted for children that could not.
    pub(super) legacies: Legacies,
    /// In the child of a fork: what took this session's place.
    pub(super) heir: PerProcess<Arc<Heir>>,
    /// The same, as holdings know it.
    pub(super) heirs: Arc<Heirs>,
    /// Openings that something still refers to.
    pub(super) users: AtomicUsize,
}

impl Core {
    pub(super) fn new(
        options: Options,
        files: SessionFiles,
        control: Arc<Control>,
        thread: Thread,
        inherited: Vec<Inherited>,
        spins: bool,
        traces: bool,
    ) -> Result<Core> {
        let waiter = Waiter::new(&files.bells, files.slot, spins);
        let known_as = Resume { instance: files.instance.clone(), serial: files.serial, secret: files.secret.clone() };
        let parking = waiter.parking.clone();
        let link = Link::new(options, known_as, control, Arc::new(thread), waiter)?;
        Ok(Core {
            link: Arc::new(link),
            memory: Arc::new(Memory::new(files, parking, inherited, Devices::make, traces)),
            lanes: Arc::new(Lanes::new()),
            legacies: Legacies::default(),
            heir: PerProcess::new(),
            heirs: Arc::new(Heirs::new()),
            users: AtomicUsize::new(0),
        })
    }

    /// Starts its thread.
    pub(super) fn start(self: &Arc<Core>) -> Result<()> {
        self.link.thread.start(&self.link, self.clone())
    }

    /// An opening, or what the thread works with where it is not open.
    fn opening(self: &Arc<Core>, helper: bool) -> Arc<Opening> {
        let topics = Topics::new(self.lanes.clone());
        let access = Access::new(Client::new(self.link.clone()), self.memory.clone(), Some(topics.clone()));
        Opening::new(access, self.heirs.clone(), Box::new(Parts { core: self.clone(), topics, helper }))
    }

    fn next_opening(self: &Arc<Core>) -> Arc<Opening> {
        self.users.fetch_add(1, Ordering::Relaxed);
        self.opening(false)
    }

    /// Opens it.
    pub(super) fn open(self: &Arc<Core>) -> Arc<Opening> {
        let inner = self.next_opening();
        self.link.open(Arc::downgrade(&inner) as _);
        inner
    }

    /// Opens it once more, for a caller that wants a session like it.
    pub(super) fn open_again(self: &Arc<Core>, o: &Options) -> Option<Arc<Opening>> {
        let link = &self.link;
        if link.is_foreign()
            || link.is_lost()
            || !link.options.is_like(o)
            || self.memory.beside().is_some()
            || link.control().is_lost()
        {
            return None;
        }
        link.open_again(|| {
            let inner = self.next_opening();
            let noted = Arc::downgrade(&inner);
            (inner, noted as _)
        })
    }

    /// Its opening, if it is open.
    pub(super) fn opened(&self) -> Option<Arc<Opening>> {
        self.link.opening()?.downcast().ok()
    }

    /// The session of an opening.
    pub(super) fn of(inner: &Opening) -> Option<&Arc<Core>> {
        inner.part()
    }

    /// The opening that the thread works for, or a helper of its own where the session is not open.
    pub(super) fn served(self: &Arc<Core>) -> Arc<Opening> {
        self.opened().filter(|i| !i.is_closed()).unwrap_or_else(|| self.opening(true))
    }
}

/// What the layers above the holdings have of one opening.
struct Parts {
    core: Arc<Core>,
    topics: Arc<Topics>,
    /// Whether the core's thread made it for itself, of a core that is not open.
    helper: bool,
}

impl Above for Parts {
    fn withdraw_done(&self) {
        self.core.lanes.late.look();
        self.topics.withdraw_done();
    }

    fn part(&self, of: TypeId) -> Option<&(dyn Any + Send + Sync)> {
        match of {
            of if of == TypeId::of::<Arc<Topics>>() => Some(&self.topics),
            of if of == TypeId::of::<Arc<Core>>() => Some(&self.core),
            _ => None,
        }
    }

    fn unused(&self, inner: &Opening) {
        if self.helper {
            return;
        }
        let last = self.core.users.fetch_sub(1, Ordering::AcqRel) == 1;
        if inner.is_foreign() {
            if last && let Some(s) = inner.heir().and_then(|h| h.opened()) {
                close(s, false);
            }
            return;
        }
        if !inner.thread.is_running() {
            let _ = inner.control().tell("bye", &Nothing {}); // it came to nothing
            return;
        }
        if !inner.closed.is_set() {
            close(inner, false);
        } else if last {
            inner.thread.wake(); // nothing can be counted any more
        }
    }
}
