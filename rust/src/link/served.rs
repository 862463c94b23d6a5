//! What a session's thread works for, and what it is asked to do there.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::pending::Asked;
use crate::error::{Error, Result};
use crate::wire::{Control, Keep, OrphanedReply};

/// One opening of a session, as the layer above makes it.
pub(crate) type Opened = dyn Any + Send + Sync;

/// What the thread is asked to do.
#[derive(Debug)]
pub(crate) enum Job {
    /// Look what the broker has taken back.
    Reconcile,
    /// Recycle and give back.
    Reclaim,
    /// As that, all, and tell the broker.
    GiveBack,
    /// Ask whose files to keep for the next broker.
    Custody,
    /// Let go of messages that nothing waits for any more.
    LetGo,
    /// Tell allocations that wait of memory.
    MemoryFreed,
    /// Map the files of sessions, which are named by serial and slot.
    Peers(BTreeMap<u64, u32>),
    /// Undo what the broker did for nothing.
    Undo(OrphanedReply),
    /// Let go of what was kept until the broker had done what it was told, or why it has not.
    Kept(Keep, Option<Error>),
    /// Await the answer to a pending request.
    PendingRequest(Asked),
}

/// What becomes of pools where a session's end is decided.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pools {
    /// They hand nothing out until that is decided.
    Pause,
    Resume,
    End,
}

/// The session that the thread works for.
pub(crate) trait Served: Send + Sync {
    /// Does a job, of any kind but a pending request.
    fn work(self: Arc<Self>, job: Job);

    /// Does what is due from time to time, or after each job.
    fn tick(&self);

    /// Whether something of it may end without a word: then a tick is due about once a second.
    fn is_watched(&self) -> bool;

    /// When it is next to be looked for messages that nothing waits for any more.
    fn lets_go_at(&self) -> Option<Instant>;

    /// Whether its refcounts count anything.
    fn counts_any(&self) -> bool;

    /// Whether nothing is counted, and nothing will be from here on.
    fn empties(&self) -> bool;

    /// Why no broker takes it back, as the last one has written.
    fn ending(&self) -> Option<Ending>;

    /// Hands a new broker all that is mapped, by `ask`.
    fn restore(&self, control: &Control) -> Result<()>;

    /// There is a new connection, and an answer may have been lost with the former one.
    fn relinked(&self);

    fn pools(&self, what: Pools);

    /// It is lost, which an opening of it is to show.
    fn lost(&self, opening: &Opened);

    /// Gives up what lanes of a lost opening name, once that may be; whether nothing is left.
    fn gives_up(&self, opening: &Opened) -> bool;

    /// Nothing is left to be done with it.
    fn over(&self);
}

/// Why a session is over that was not closed here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Stopped,
    Evicted,
}
