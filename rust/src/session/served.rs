//! What a session's thread asks of the session.

use std::sync::Arc;
use std::time::Instant;

use super::core::Core;
use super::restore::restore;
use crate::devices::Devices;
use crate::error::Result;
use crate::holding::Opening;
use crate::lanes::Topics;
use crate::ledger::Pool;
use crate::link::{Broker, Ending, Job, Opened, Pools, Served};
use crate::wire::Control;
use crate::wire::ops::Nothing;

impl Served for Core {
    fn work(self: Arc<Self>, job: Job) {
        let inner = self.served();
        match job {
            Job::Reconcile => reconcile(&inner),
            Job::Reclaim => drop(reclaim(&inner, false)),
            Job::GiveBack => {
                self.end_legacies(); // a child that has ended holds nothing any more
                give_back(&inner);
            }
            Job::LetGo => self.lanes.late.look_in_turn(),
            Job::Custody => inner.take_custody(),
            Job::MemoryFreed => self.memory.memory_freed(),
            Job::Peers(all) => drop(inner.peers(Broker::This, all)),
            Job::Undo(late) => inner.undo(&late),
            Job::Kept(keep, failed) => inner.leased(keep, failed),
            Job::PendingRequest(_) => {} // the thread's own
        }
    }

    fn tick(&self) {
        self.end_legacies();
    }

    fn is_watched(&self) -> bool {
        !self.legacies.is_empty()
    }

    fn lets_go_at(&self) -> Option<Instant> {
        self.lanes.late.due()
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
        restore(self, control)
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
        if matches!(what, Pools::End) {
            self.memory.files.note_lost();
        }
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
fn reconcile(inner: &Opening) {
    if inner.broker_away() {
        return;
    }
    inner.compare_memory();
    inner.forget_old_leases();
    if let Ok(topics) = Topics::of(inner) {
        topics.reconcile(&inner.memory.files);
    }
}

/// Gives back all that is not held, since a request of a session is refused otherwise, and tells the broker, which
/// waits for that no longer once the connection is lost.
fn give_back(inner: &Opening) {
    reclaim(inner, true);
    inner.tell("reclaimed", &Nothing {});
}

/// Looks for storages that are no longer held and gives empty memory back to the broker: all, or what
/// this process has not just allocated in.
pub(super) fn reclaim(inner: &Opening, all: bool) -> u64 {
    inner.withdraw_done();
    inner.reclaim_pools(all) + Devices::reclaim(inner, all)
}
