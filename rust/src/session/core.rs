//! What a session has of its broker: the connection, the session files, the memory and what is counted in it.
//!
//! An [`Opening`] is one opening of it, from [`Session::connect`](super::Session::connect) to the close. What a
//! program has made of an opening ends with it, but for tensors: their bytes stay as long as they do, in the
//! row and the memory of the core. So a core whose opening was closed lives on while its row counts anything.
//! It has no part in topics any more, and the next session that the process opens like it is its next
//! opening: a program that opens and closes again and again, and keeps something each time, has one core.

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
use crate::ledger::Pool;
use crate::link::{Broker, Client, Ending, Job, Link, Opened, Options, Pools, Served, Thread};
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

impl Served for Core {
    fn work(self: Arc<Self>, job: Job) {
        let inner = self.served();
        match job {
            Job::Compare => compare(&inner),
            Job::Reclaim => drop(reclaim(&inner, false)),
            Job::Custody => inner.take_custody(),
            Job::MemoryFreed => self.memory.memory_freed(),
            Job::Peers(all) => drop(inner.peers(Broker::This, all)),
            Job::Undo(late) => inner.undo(&late),
            Job::Kept(keep, failed) => inner.leased(keep, failed),
            Job::Errand(_) => {} // the thread's own
        }
    }

    fn tick(&self) {
        self.end_legacies();
    }

    fn is_watched(&self) -> bool {
        !self.legacies.is_empty()
    }

    fn counts_any(&self) -> bool {
        self.memory.counts_any()
    }

    /// From here on the pool hands out no storage, and a thread that takes a reference looks, after counting it, whether
    /// the session was closed.
    fn empties(&self) -> bool {
        self.memory.pool.end_if(|| !self.memory.counts_any())
    }

    fn ending(&self) -> Option<Ending> {
        let p = &self.memory.files;
        let over = p.is_over() || p.is_closed();
        over.then(|| if p.is_evicted() { Ending::Evicted } else { Ending::Stopped })
    }

    fn restore(&self, control: &Control) -> Result<()> {
        super::restore::restore(self, control)
    }

    fn relinked(&self) {
        self.memory.note_strays();
    }

    fn pools(&self, what: Pools) {
        self.memory.each_pool(match what {
            Pools::Pause => Pool::pause,
            Pools::Resume => Pool::resume,
            Pools::End => Pool::end,
        });
    }

    fn lost(&self, opening: &Opened) {
        if let Some(inner) = opening.downcast_ref::<Opening>() {
            inner.watchers.end();
        }
    }

    fn gives_up(&self, opening: &Opened) -> bool {
        opening.downcast_ref::<Opening>().is_none_or(|inner| match Topics::of(inner) {
            Ok(topics) => topics.empty_lanes(inner),
            Err(_) => true,
        })
    }

    fn over(&self) {
        self.memory.files.custody.clear();
    }
}

/// Looks what the broker has taken back. A broker that is away takes nothing back.
fn compare(inner: &Opening) {
    if inner.broker_away() {
        return;
    }
    inner.compare_memory();
    inner.forget_old_leases();
    if let Ok(topics) = Topics::of(inner) {
        topics.compare(&inner.memory.files);
    }
}

/// Looks for storages that are no longer held and gives empty memory back to the broker: all, or what
/// this process has not just allocated in.
pub(super) fn reclaim(inner: &Opening, all: bool) -> u64 {
    inner.withdraw_done();
    inner.reclaim_pools(all) + Devices::reclaim(inner, all)
}
