//! References that this process counts: holding what a place names, and letting go.

use std::any::Any;
use std::fmt::Debug;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use super::Opening;
use super::lane::{Acknowledge, LaneView};
use super::view::View;
use crate::crash_point;
use crate::dims::Dims;
use crate::dtype::DType;
use crate::memory::Held;
use crate::message::Description;

/// A set of storages that this process holds together: those of an allocation, or of a message. The
/// refcounts count each once; drop counts them down.
#[derive(Debug)]
pub(crate) struct Holding {
    pub(crate) kept_by: KeptBy,
    pub(crate) storages: Storages,
    /// The tensor that it was made for, if it was for one. That of a brief message is unchecked data from its sender,
    /// and checked when it is asked for.
    pub(crate) view: View,
    pub(crate) acknowledge: Option<Box<Acknowledge>>,
    /// What streams have to do with it; mostly nothing.
    pub(crate) device: OnceLock<Box<dyn Used>>,
    moved: AtomicBool,
    /// Whether nothing of it needs to be dropped but what it is kept by, one storage, and what `device` may have:
    /// then its end is short.
    plain: bool,
    pub(crate) era: u32,
}

/// What a message says besides its storages, and the lane in which it was found: of that the message
/// needs the writer's name and bell.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) lane: Arc<LaneView>,
    pub(crate) sequence: u64,
    pub(crate) stamp: u64,
    pub(crate) lost: u64,
    pub(crate) flags: u32,
    /// None of a brief message: that it is its holding's view says all.
    pub(crate) body: Option<Description>,
}

/// What keeps the session as long as something is held: itself, or the lane of a received message.
#[derive(Debug)]
pub(crate) enum KeptBy {
    Session(Arc<Opening>),
    Message(Received),
}

impl Holding {
    #[inline]
    pub(crate) fn new(inner: &Arc<Opening>, storages: Storages, view: View) -> Holding {
        let (kept_by, device, era) = (KeptBy::Session(inner.clone()), OnceLock::new(), inner.memory.era());
        Holding { kept_by, storages, view, acknowledge: None, device, moved: false.into(), plain: false, era }
    }

    #[inline]
    pub(crate) fn of_message(
        received: Received,
        storages: Storages,
        view: View,
        acknowledge: Option<Box<Acknowledge>>,
    ) -> Holding {
        let (device, era) = (OnceLock::new(), received.lane.inner.memory.era());
        let kept_by = KeptBy::Message(received);
        Holding { kept_by, storages, view, acknowledge, device, moved: false.into(), plain: false, era }
    }

    /// Writes, part by part, all but `kept_by` of a holding of one storage that is one compact tensor.
    ///
    /// # Safety
    /// There is room for a holding, and nothing in it but `kept_by`.
    #[inline(always)]
    pub(crate) unsafe fn write_one(at: *mut Holding, inner: &Opening, one: One, acknowledge: Option<Box<Acknowledge>>) {
        let One { held, dtype, shape, readonly } = one;
        // SAFETY: as the caller says.
        unsafe {
            (&raw mut (*at).plain).write(acknowledge.is_none() && shape.is_inline());
            (&raw mut (*at).storages).write(Storages::One([held]));
            View::write(&raw mut (*at).view, dtype, shape, readonly);
            (&raw mut (*at).acknowledge).write(acknowledge);
            (&raw mut (*at).device).write(OnceLock::new());
            (&raw mut (*at).moved).write(AtomicBool::new(false));
            (&raw mut (*at).era).write(inner.memory.era());
        }
    }

    /// The message that it is of, if it is one's.
    #[inline]
    pub(crate) fn received(&self) -> Option<&Received> {
        match &self.kept_by {
            KeptBy::Session(_) => None,
            KeptBy::Message(received) => Some(received),
        }
    }

    #[inline]
    pub(crate) fn inner(&self) -> &Arc<Opening> {
        match &self.kept_by {
            KeptBy::Session(inner) => inner,
            KeptBy::Message(received) => &received.lane.inner,
        }
    }

    /// Gives what the refcounts count for this holding to a place; dropping it counts nothing down then.
    pub(crate) fn give(&self) {
        self.moved.store(true, Ordering::Relaxed);
    }
}

/// What a holding of one storage that is one compact tensor consists of.
pub(crate) struct One {
    pub(crate) held: Held,
    pub(crate) dtype: DType,
    pub(crate) shape: Dims,
    pub(crate) readonly: bool,
}

/// Storages of a holding: mostly one, which stands inline.
#[derive(Debug)]
pub(crate) enum Storages {
    One([Held; 1]),
    Many(Vec<Held>),
}

impl Deref for Storages {
    type Target = [Held];

    #[inline]
    fn deref(&self) -> &[Held] {
        match self {
            Storages::One(one) => one,
            Storages::Many(all) => all,
        }
    }
}

impl Default for Storages {
    fn default() -> Storages {
        Storages::Many(Vec::new())
    }
}

impl From<Held> for Storages {
    fn from(one: Held) -> Storages {
        Storages::One([one])
    }
}

impl Holding {
    /// Drops a holding.
    ///
    /// # Safety
    /// As for `drop_in_place`.
    #[inline]
    pub(super) unsafe fn end(at: *mut Holding) {
        // SAFETY: as the caller says.
        let h = unsafe { &*at };
        let Storages::One([held]) = &h.storages else {
            // SAFETY: as the caller says.
            return unsafe { at.drop_in_place() };
        };
        let inner = h.inner();
        if !h.plain || h.device.get().is_some() || inner.is_foreign() {
            // SAFETY: as the caller says.
            return unsafe { at.drop_in_place() };
        }
        if !h.moved.load(Ordering::Relaxed) {
            crash_point::at("drop-before");
            inner.memory.let_go(held.reference.index, held.at.own);
            crash_point::at("drop-between");
        }
        // SAFETY: as the caller says; nothing else of a plain holding needs to be dropped.
        unsafe {
            match &mut (*at).kept_by {
                KeptBy::Session(inner) => (inner as *mut Arc<Opening>).drop_in_place(),
                KeptBy::Message(received) => (&raw mut received.lane).drop_in_place(),
            }
        }
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let inner = self.inner();
        if self.moved.load(Ordering::Relaxed) {
            return; // a place counts it
        }
        if inner.is_foreign() {
            return self.let_go_inherited(); // what is to be acknowledged is the parent's
        }
        if let Some(used) = self.device.get() {
            let uses = used.take();
            if let Some(uses) = uses.filter(|_| !inner.is_closed()) {
                return self.defer_release(uses);
            }
            used.close(); // before it is counted down: its owner frees what no holder counts
        }
        crash_point::at("drop-before");
        for s in self.storages.iter() {
            inner.memory.let_go(s.reference.index, s.at.own);
            crash_point::at("drop-between");
        }
        if let Some(a) = &self.acknowledge {
            crash_point::at("ack-before");
            a.done();
        }
    }
}

impl Holding {
    /// Puts what is held into a holding that ends when streams have passed.
    #[cold]
    fn defer_release(&mut self, uses: Box<dyn Uses>) {
        let inner = self.inner().clone();
        let mut deferred = Holding::new(&inner, std::mem::take(&mut self.storages), View::none());
        deferred.acknowledge = self.acknowledge.take();
        deferred.device = std::mem::take(&mut self.device);
        uses.defer_release(deferred);
    }
}

/// What streams of this process have to do with a holding, which a layer above knows.
pub(crate) trait Used: Any + Debug + Send + Sync {
    /// The uses that are noted, taken out, if there are any.
    fn take(&self) -> Option<Box<dyn Uses>>;

    /// Gives up what the holding has open besides its storages.
    fn close(&self);
}

/// Uses of a holding that has no owner any more.
pub(crate) trait Uses {
    /// Ends the holding when they are over.
    fn defer_release(self: Box<Self>, held: Holding);
}
