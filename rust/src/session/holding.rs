//! References that this process counts: holding what a place names, and letting go.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use super::attach::Attached;
use super::core::Core;
use super::inner::Inner;
use super::members::LaneView;
use super::order::{DeviceUse, Use};
use super::reader::Acknowledge;
use super::tensor::View;
use crate::crash_point;
use crate::dims::Dims;
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::layout::limits;
use crate::message::{Description, Ref};
use crate::shm::Segment;

/// A storage that this process counts, and where it lies.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) reference: Ref,
    pub(crate) at: Attached,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// A set of storages that this process holds together: those of an allocation, or of a message. The
/// row counts each once; drop counts them down.
#[derive(Debug)]
pub(crate) struct Holding {
    pub(crate) keeper: Keeper,
    pub(crate) storages: Storages,
    /// The tensor that it was made for, if it was for one. That of a brief message is its sender's word, and checked
    /// when it is asked for.
    pub(crate) view: View,
    pub(crate) acknowledge: Option<Box<Acknowledge>>,
    /// What streams have to do with it; mostly nothing.
    pub(crate) device: OnceLock<Box<DeviceUse>>,
    moved: AtomicBool,
    /// Whether nothing of it needs to be dropped but the keeper, one storage, and what `device` may have: then its
    /// end is short.
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
pub(crate) enum Keeper {
    Session(Arc<Inner>),
    Message(Received),
}

impl Holding {
    #[inline]
    pub(crate) fn new(inner: &Arc<Inner>, storages: Storages, view: View) -> Holding {
        let (keeper, device, era) = (Keeper::Session(inner.clone()), OnceLock::new(), inner.era());
        Holding { keeper, storages, view, acknowledge: None, device, moved: false.into(), plain: false, era }
    }

    #[inline]
    pub(crate) fn of_message(
        received: Received,
        storages: Storages,
        view: View,
        acknowledge: Option<Box<Acknowledge>>,
    ) -> Holding {
        let (device, era) = (OnceLock::new(), received.lane.inner.era());
        let keeper = Keeper::Message(received);
        Holding { keeper, storages, view, acknowledge, device, moved: false.into(), plain: false, era }
    }

    /// Writes, part by part, all but the keeper of a holding of one storage that is one compact tensor.
    ///
    /// # Safety
    /// There is room for a holding, and nothing in it but the keeper.
    #[inline(always)]
    pub(crate) unsafe fn write_one(at: *mut Holding, inner: &Inner, one: One, acknowledge: Option<Box<Acknowledge>>) {
        let One { held, dtype, shape, readonly } = one;
        // SAFETY: as the caller says.
        unsafe {
            (&raw mut (*at).plain).write(acknowledge.is_none() && shape.is_inline());
            (&raw mut (*at).storages).write(Storages::One([held]));
            View::write(&raw mut (*at).view, dtype, shape, readonly);
            (&raw mut (*at).acknowledge).write(acknowledge);
            (&raw mut (*at).device).write(OnceLock::new());
            (&raw mut (*at).moved).write(AtomicBool::new(false));
            (&raw mut (*at).era).write(inner.era());
        }
    }

    /// The message that it is of, if it is one's.
    #[inline]
    pub(crate) fn received(&self) -> Option<&Received> {
        match &self.keeper {
            Keeper::Session(_) => None,
            Keeper::Message(received) => Some(received),
        }
    }

    #[inline]
    pub(crate) fn inner(&self) -> &Arc<Inner> {
        match &self.keeper {
            Keeper::Session(inner) => inner,
            Keeper::Message(received) => &received.lane.inner,
        }
    }

    /// Gives what the row counts for this holding to a place; dropping it counts nothing down then.
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
            inner.let_go(held.reference.index, held.at.own);
            crash_point::at("drop-between");
        }
        // SAFETY: as the caller says; nothing else of a plain holding needs to be dropped.
        unsafe {
            match &mut (*at).keeper {
                Keeper::Session(inner) => (inner as *mut Arc<Inner>).drop_in_place(),
                Keeper::Message(received) => (&raw mut received.lane).drop_in_place(),
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
            if !uses.is_empty() && !inner.is_closed() {
                return self.retire(uses);
            }
            used.close(); // before it is counted down: its owner frees what nobody counts
        }
        crash_point::at("drop-before");
        for s in self.storages.iter() {
            inner.let_go(s.reference.index, s.at.own);
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
    fn retire(&mut self, uses: Vec<Use>) {
        let inner = self.inner().clone();
        let mut late = Holding::new(&inner, std::mem::take(&mut self.storages), View::none());
        late.acknowledge = self.acknowledge.take();
        late.device = std::mem::take(&mut self.device);
        inner.devices().retire(&inner, late, uses);
    }
}

impl Held {
    /// The device address of the storage's bytes, mapped for a use.
    pub(crate) fn device_address(&self, write: bool) -> Result<u64> {
        let base = self.at.segment.device_address(write)?;
        if self.offset > self.at.segment.bytes || self.bytes > self.at.segment.bytes - self.offset {
            let what = format!("storage {} lies outside its segment", self.reference.index);
            return Err(Error::new(Code::InvalidHandle, "its owner is at fault: restart it", what));
        }
        Ok(base + self.offset)
    }

    /// The address of the storage's bytes, mapped for a use.
    pub(crate) fn address(&self, write: bool) -> Result<*mut u8> {
        self.address_in(&self.at.segment, write)
    }

    /// As `address`, in a mapping of this process's.
    pub(crate) fn address_in(&self, segment: &Segment, write: bool) -> Result<*mut u8> {
        let region = segment.region(write)?;
        if !region.has(self.offset, self.bytes) {
            let what = format!("storage {} lies outside its segment", self.reference.index);
            return Err(Error::new(Code::InvalidHandle, "its owner is at fault: restart it", what));
        }
        Ok(region.address(self.offset, self.bytes))
    }
}

impl Core {
    /// Counts a reference down and offers an own storage for recycling.
    #[inline]
    pub(crate) fn let_go(&self, index: u32, own: bool) {
        if self.count_down(index, own) {
            self.pool.dropped(index);
            self.offered(index);
        }
    }

    /// Counts a reference down. Whether the storage is an own one that may be free now: then the caller
    /// offers it to the pool, and says so by `offered`.
    #[inline]
    pub(super) fn count_down(&self, index: u32, own: bool) -> bool {
        self.pages.row.drop(index) && own
    }

    /// Tells all others that may wait for it of a storage that the pool was offered.
    #[inline]
    pub(super) fn offered(&self, index: u32) {
        if let Some(d) = self.devices.get() {
            d.dropped(index);
        }
        if let Some(h) = self.huge.get() {
            h.dropped(index);
        }
        self.room_made();
    }
}

impl Inner {
    /// Counts a ref up in the own row. The caller then looks again at the place that named it, and
    /// lets go if it has changed. The count keeps the memory mapped whatever the broker trims.
    #[inline(always)]
    pub(crate) fn hold(&self, reference: Ref) -> Result<Attached> {
        match self.hold_known(reference) {
            Some(a) => Ok(a),
            None => self.hold_any(reference),
        }
    }

    /// As `hold`, where the session is attached to the chunk and nothing comes in between.
    #[inline(always)]
    pub(super) fn hold_known(&self, reference: Ref) -> Option<Attached> {
        let Ref { serial, index, .. } = reference;
        let place = self.attached.place(index / limits::CHUNK_INDICES)?;
        if serial == 0 || !place.is_of(serial) {
            return None;
        }
        let open = self.closed.take_known(&self.pages.row, index)?;
        match place.find(serial) {
            Some(a) if open && !self.is_lost() && !self.is_in_limbo() => Some(a),
            _ => {
                self.let_go(index, true); // as in `hold_any`
                None
            }
        }
    }

    #[cold]
    fn hold_any(&self, reference: Ref) -> Result<Attached> {
        let chunk = reference.index / limits::CHUNK_INDICES;
        loop {
            if reference.serial == 0 || !self.attached.has(chunk, reference.serial) {
                self.attach(chunk, reference)?;
            }
            let taken = self.closed.take(&self.pages.row, reference.index);
            let ended = !taken.map_err(|e| self.refused(e))? || self.is_lost();
            let limbo = self.is_in_limbo();
            if let Some(a) = self.attached.find(chunk, reference.serial).filter(|_| !ended && !limbo) {
                return Ok(a);
            }
            self.let_go(reference.index, true); // trimmed meanwhile; the index may be the pool's by now
            if ended {
                return Err(self.why_closed());
            }
            if limbo {
                self.await_decision()?;
            }
        }
    }

    /// Counts all refs up, or none.
    pub(crate) fn hold_all(&self, refs: &[Ref], into: &mut Vec<Attached>) -> Result<()> {
        into.clear();
        for r in refs {
            match self.hold(*r) {
                Ok(a) => {
                    into.push(a);
                    crash_point::at("take-counting");
                }
                Err(e) => {
                    self.let_go_all(refs, into);
                    into.clear();
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    /// Counts down what `hold_all` counted up.
    pub(crate) fn let_go_all(&self, refs: &[Ref], held: &[Attached]) {
        for (r, a) in refs.iter().zip(held) {
            self.let_go(r.index, a.own);
        }
    }

    /// The storage in which `n` bytes at an address of this process lie, when the process holds it:
    /// held once more, where the bytes begin in it, and whether the address may be written. Whoever
    /// gives the address keeps its memory meanwhile.
    pub(crate) fn holder_of(self: &Arc<Inner>, address: *const u8, n: u64) -> Option<(Holding, u64, bool)> {
        if self.rented_segment(address as u64, n).is_some() {
            return None; // whose use the framework decides that has it
        }
        let (segment, at, writable) = self.segment_of(address, n)?;
        for chunk in segment.chunks() {
            let first = chunk * limits::CHUNK_INDICES;
            // What this row counts cannot be recycled, so its entry stays as it is.
            for index in (first..first + limits::CHUNK_INDICES).filter(|i| self.pages.row.count(*i) > 0) {
                if self.count_up(index).is_err() {
                    continue; // it has all the references that there may be, and another may be what is looked for
                }
                let serial = self.attached.serial(chunk);
                let found = self.attached.find(chunk, serial).filter(|_| serial != 0);
                let Some(a) = found.filter(|a| a.chunk.segment_serial == segment.serial) else {
                    self.let_go(index, found.is_some_and(|a| a.own));
                    continue;
                };
                let e = a.entries.load(index);
                let inside = at >= e.offset && at - e.offset <= e.bytes && n <= e.bytes - (at - e.offset);
                let reference = Ref { serial, generation: e.generation, index };
                match a.locate(reference) {
                    Ok(held) if inside => {
                        return Some((Holding::new(self, held.into(), View::none()), at - e.offset, writable));
                    }
                    _ => self.let_go(index, a.own),
                }
            }
        }
        None
    }
}
