//! One opening of a session, which all keep that hold something of it.

use std::any::{Any, TypeId};
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, RwLock, RwLockReadGuard};

use super::Holding;
use super::leases::RefusedLeases;
use super::view::View;
use crate::error::{Error, Result, closed};
use crate::layout::limits;
use crate::link::forked;
use crate::memory::Access;
use crate::message::Ref;
use crate::sys::PerProcess;
use crate::waits::{Relay, Watchers};

/// What the layers above have of an opening. It keeps no opening.
pub(crate) trait Above: Send + Sync {
    /// Withdraws messages that are done, which frees storages.
    fn withdraw_done(&self);

    /// Nothing refers to the opening any more.
    fn unused(&self, opening: &Opening);

    /// The part of one layer, by its type.
    fn part(&self, of: TypeId) -> Option<&(dyn Any + Send + Sync)>;
}

/// What a child of a fork has in the place of an opening that it inherited.
pub(crate) trait Heir: Send + Sync {
    /// The opening, made at the first call.
    fn session(&self) -> Result<&Arc<Opening>>;

    /// The opening if there is one.
    fn opened(&self) -> Option<&Arc<Opening>>;

    /// Whether a reference was inherited and is still there.
    fn has(&self, r: Ref) -> bool;

    /// Drops an inherited reference.
    fn let_go(&self, r: Ref);

    /// Why a reference of before the fork was not inherited.
    fn why_missed(&self, r: Ref) -> Error;
}

/// The heir of one session, in each process of a line of forks.
pub(crate) type Heirs = PerProcess<Arc<dyn Heir>>;

/// One opening of a session. Tensors, topics and readers keep it; the last to go ends it.
pub(crate) struct Opening {
    pub(crate) access: Access,
    heirs: Arc<Heirs>,
    pub(crate) handovers: AtomicU64,
    pub(crate) watchers: Watchers,
    /// Rings what waits within calls that it runs.
    pub(crate) relay: Arc<Relay>,
    pub(super) refused_leases: RefusedLeases,
    /// Held for reading from the look whether the session is closed to a claim or its acknowledgement.
    claiming: RwLock<()>,
    above: Box<dyn Above>,
}

impl Deref for Opening {
    type Target = Access;

    #[inline]
    fn deref(&self) -> &Access {
        &self.access
    }
}

impl fmt::Debug for Opening {
    /// Short: whatever is shared has its session in it. And it has a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p = &self.memory.files;
        f.debug_struct("Session").field("slot", &p.slot).field("serial", &p.serial).finish_non_exhaustive()
    }
}

impl Opening {
    pub(crate) fn new(access: Access, heirs: Arc<Heirs>, above: Box<dyn Above>) -> Arc<Opening> {
        Arc::new(Opening {
            relay: Relay::new(&access.waiter.parking),
            access,
            heirs,
            handovers: AtomicU64::new(0),
            watchers: Watchers::default(),
            refused_leases: RefusedLeases::default(),
            claiming: RwLock::new(()),
            above,
        })
    }

    /// What a layer above has of it.
    pub(crate) fn part<T: Any>(&self) -> Option<&T> {
        self.above.part(TypeId::of::<T>())?.downcast_ref()
    }

    /// Withdraws messages that are done, which frees storages.
    pub(crate) fn withdraw_done(&self) {
        self.above.withdraw_done();
    }

    /// In the child of a fork: what took its place.
    pub(crate) fn heir(&self) -> Option<&Arc<dyn Heir>> {
        self.heirs.get()
    }

    /// Whether nothing can be done with the session any more, nor in the child of a fork with its heir.
    pub(crate) fn is_ended(&self) -> bool {
        let ended = || self.heir().is_none_or(|h| h.opened().is_some_and(|s| s.is_closed()));
        self.closed.is_set() || self.is_lost() || self.is_foreign() && ended()
    }

    /// The error of a session that takes no calls any more. What a broker ends of a session that it evicts is seen in
    /// shared memory, and perhaps before anything here has read that the session is over.
    pub(crate) fn check_goes_on(&self) -> Result<()> {
        self.check_open()?;
        match self.is_evicted() || self.memory.files.is_being_evicted() {
            true => Err(self.evicted_by()),
            false => Ok(()),
        }
    }

    /// Why something is refused: that the session is over, where it is.
    #[cold]
    pub(crate) fn refused(&self, why: Error) -> Error {
        self.check_goes_on().err().unwrap_or(why)
    }

    /// The right to change claims of a group; `None` when the session is closed: nothing would undo a
    /// claim, and one of before may be another's.
    #[inline]
    pub(crate) fn claiming(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let right = self.claiming.read().unwrap_or_else(|p| p.into_inner());
        (!self.is_closed()).then_some(right)
    }

    /// The right to acknowledge them: also `None` once a broker has said that it evicts the session. A request may be
    /// refused for that before the end is noted here, and what is released then goes to another.
    #[inline]
    pub(crate) fn acknowledging(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.claiming().filter(|_| !self.is_evicted())
    }

    /// Waits until claims that are under way have been made: none is made from here on.
    pub(crate) fn await_claims(&self) {
        drop(self.claiming.write().unwrap_or_else(|p| p.into_inner()));
    }

    /// The session to use in this process: this one, or in the child of a fork its heir.
    #[inline]
    pub(crate) fn here(self: &Arc<Opening>) -> Result<&Arc<Opening>> {
        if self.is_foreign() { self.succeeded() } else { Ok(self) }
    }

    #[cold]
    fn succeeded(&self) -> Result<&Arc<Opening>> {
        let heir = self.heir().ok_or_else(forked)?;
        if self.is_lost() {
            return Err(self.why_closed());
        }
        if self.closed.is_set() {
            return Err(closed("the session"));
        }
        heir.session()
    }

    /// As [`here`](Opening::here), without opening one.
    pub(crate) fn opened_here(self: &Arc<Opening>) -> Option<&Arc<Opening>> {
        if self.is_foreign() { self.heir()?.opened() } else { Some(self) }
    }

    /// Whether another session took the place of this one in a child.
    pub(crate) fn is_succeeded_by(&self, other: &Arc<Opening>) -> bool {
        let heir = self.heir().and_then(|h| h.opened());
        heir.is_some_and(|s| Arc::ptr_eq(s, other))
    }

    /// The storage in which `n` bytes at an address of this process lie, when the process holds it:
    /// held once more, where the bytes begin in it, and whether the address may be written. The caller that
    /// gives the address keeps its memory meanwhile.
    pub(crate) fn holder_of(self: &Arc<Opening>, address: *const u8, n: u64) -> Option<(Holding, u64, bool)> {
        if self.memory.beside().is_some_and(|b| b.is_rented(address as u64, n)) {
            return None; // whose use the framework decides that has it
        }
        let (segment, at, writable) = self.memory.segment_of(address, n)?;
        for chunk in segment.chunks() {
            let first = chunk * limits::CHUNK_INDICES;
            // What these refcounts count cannot be recycled, so its entry stays as it is.
            for index in (first..first + limits::CHUNK_INDICES).filter(|i| self.memory.files.refcounts.count(*i) > 0) {
                if self.count_up(index).is_err() {
                    continue; // it has all the references that there may be, and another may be what is looked for
                }
                let serial = self.memory.attached.serial(chunk);
                let found = self.memory.attached.find(chunk, serial).filter(|_| serial != 0);
                let Some(a) = found.filter(|a| a.chunk.segment_serial == segment.serial) else {
                    self.memory.let_go(index, found.is_some_and(|a| a.own));
                    continue;
                };
                let e = a.entries.load(index);
                let inside = at >= e.offset && at - e.offset <= e.bytes && n <= e.bytes - (at - e.offset);
                let reference = Ref { serial, generation: e.generation, index };
                match a.locate(reference) {
                    Ok(held) if inside => {
                        return Some((Holding::new(self, held.into(), View::none()), at - e.offset, writable));
                    }
                    _ => self.memory.let_go(index, a.own),
                }
            }
        }
        None
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.above.unused(self);
    }
}
