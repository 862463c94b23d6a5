//! Handles: made from tensors, opened by any process of the broker.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::Session;
use super::bundle::Bundle;
use super::holding::{Held, Holding, Storages};
use super::inner::Inner;
use super::name::storage_ref;
use super::shared::Shared;
use super::tensor::{Place, Tensor, View};
use crate::crash_point;
use crate::dims::Dims;
use crate::dtype::DType;
use crate::error::{Code, Error, Result, expired};
use crate::handle::Handle;
use crate::message::Ref;
use crate::shm::fence;
use crate::sys;
use crate::wire::Keep;
use crate::wire::ops::{Ignored, LeaseRef, LeaseRequest, StorageRef};

/// How long a handle may take to arrive whose lease was refused.
const IN_FLIGHT: Duration = Duration::from_secs(30);

/// What a handle calls the place of its storage: a GPU by the broker's number.
fn device_name(s: &Held) -> String {
    s.at.segment.device().map_or_else(|| "cpu".to_owned(), |d| format!("cuda:{}", d.id))
}

/// How long a handle protects its tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lease {
    /// For a time; 30 s is usual.
    For(Duration),
    /// Until this session ends.
    Session,
    /// Until somebody has opened it, or 30 s after this session ended.
    Once,
}

impl Default for Lease {
    fn default() -> Lease {
        Lease::For(Duration::from_secs(30))
    }
}

impl Lease {
    fn of(self, lease: u64, refs: Vec<StorageRef>) -> LeaseRequest {
        let (seconds, once) = match self {
            Lease::For(d) => (Some(d.as_secs_f64()), false),
            Lease::Session => (None, false),
            Lease::Once => (None, true),
        };
        LeaseRequest { lease, refs, seconds, once }
    }
}

impl Tensor {
    /// A handle that can be carried by any means (it is plain JSON) and opened by any process of this
    /// broker. The broker holds the tensor for the lease's time, whatever becomes of this process.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// let x = session.from_slice(&[2], &[3.0f64, 4.0])?.freeze();
    /// let json = x.handle(baton::Lease::default())?.to_json();
    /// drop(x); // the lease holds it
    /// let y = session.open(&baton::Handle::from_json(&json)?)?;
    /// assert_eq!(y.to_vec::<f64>()?, [3.0, 4.0]);
    /// # Ok(()) }
    /// ```
    pub fn handle(&self, lease: Lease) -> Result<Handle> {
        self.held.inner().settle_written(std::iter::once(self))?;
        let mut h = self.describe()?;
        if let Some(s) = self.storage() {
            let kept = || vec![self.held.clone()];
            h.lease = Some(self.held.inner().here()?.lease(vec![storage_ref(s.reference)], lease, kept)?);
            crash_point::at("lease-made");
        }
        Ok(h)
    }

    /// The handle without a lease.
    fn describe(&self) -> Result<Handle> {
        self.check_shared()?;
        let mut h = Handle {
            host: self.held.inner().pages.instance.clone(),
            segment: 0,
            serial: 0,
            index: 0,
            generation: 0,
            offset: 0,
            bytes: 0,
            dtype: self.dtype().to_string(),
            shape: self.shape().to_vec(),
            strides: self.strides().map(Handle::strides_of),
            byte_offset: 0,
            device: "cpu".to_owned(),
            readonly: self.is_read_only(),
            lease: None,
        };
        if let Some(s) = self.storage() {
            let (r, inner) = (s.reference, self.held.inner());
            if s.at.own && !inner.is_foreign() {
                inner.pages.entries.share(r.index);
            }
            h.segment = s.at.chunk.segment_serial;
            (h.serial, h.index, h.generation) = (r.serial, r.index, r.generation);
            (h.offset, h.bytes, h.byte_offset) = (s.offset, s.bytes, self.view().offset);
            h.device = device_name(s);
        }
        Ok(h)
    }
}

impl Inner {
    /// Makes a lease; its number. One that ends with its first claim is told to the broker, and not waited for: what
    /// `kept` gives holds the storages until the broker does. Where it could not make one, the next is waited for, and
    /// is the error.
    fn lease(&self, refs: Vec<StorageRef>, lease: Lease, kept: impl FnOnce() -> Vec<Shared>) -> Result<u64> {
        let number = (sys::random()? >> 11).max(1); // JSON keeps 53 bits
        if lease == Lease::Once && !self.refused_leases.tell() {
            let link = self.link_locked();
            self.check_open()?;
            if !link.control.is_far_behind() {
                // What cannot be sent is owed.
                let _ = link.control.tell_keeping("lease", &lease.of(number, refs), Box::new(kept()));
                return Ok(number);
            }
        }
        let made = self.call::<_, Ignored>("lease", &lease.of(number, refs));
        if made.as_ref().is_err_and(Error::is_uncertain) {
            self.tell("lease.release", &LeaseRef { lease: number }); // a broker may have made it
        }
        made.map(|_| number)
    }
}

/// Leases that were sent to a broker without waiting, and that it did not make.
#[derive(Debug, Default)]
pub(super) struct RefusedLeases {
    any: AtomicBool,
    /// What they were to hold, and until when it is held here instead.
    held: Mutex<Vec<(Instant, Keep)>>,
}

impl RefusedLeases {
    /// Whether there was one since this was asked last.
    fn tell(&self) -> bool {
        self.any.load(Ordering::Relaxed) && self.any.swap(false, Ordering::Relaxed)
    }

    fn held(&self) -> MutexGuard<'_, Vec<(Instant, Keep)>> {
        self.held.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Lets go of what was held long enough for a handle to arrive.
    pub(super) fn forget_old(&self) {
        let now = Instant::now();
        let old: Vec<_> = self.held().extract_if(.., |(until, _)| *until <= now).collect();
        drop(old); // behind the lock: it may be the session's end
    }
}

impl Inner {
    /// The broker has answered a lease that was not waited for: it holds what was kept, or does not.
    pub(super) fn leased(&self, kept: Keep, failed: Option<Error>) {
        if failed.is_some() {
            self.refused_leases.held().push((Instant::now() + IN_FLIGHT, kept));
            self.refused_leases.any.store(true, Ordering::Relaxed);
        }
    }
}

impl Bundle {
    /// Handles of all tensors, in their order, under one lease: they are opened together, by
    /// [`Session::open_all`], which claims it once.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// let x = session.zeros::<f32>(&[3])?.freeze();
    /// session.set("state", baton::Payload::named([("w", x.clone()), ("b", x)]))?;
    /// let handles = session.get("state", None)?.handles(baton::Lease::default())?;
    /// assert!(handles.iter().all(|h| !h.is_empty() && h.check().is_ok()));
    /// let opened = session.open_all(&handles)?;
    /// assert_eq!(opened[1].shape(), [3]);
    /// let alone = opened[0].handle(baton::Lease::default())?;
    /// session.release_handle(&alone)?; // nobody will open it
    /// # Ok(()) }
    /// ```
    pub fn handles(&self, lease: Lease) -> Result<Vec<Handle>> {
        if let Some(first) = self.tensors.first() {
            first.held.inner().settle_written(self.tensors.iter())?;
        }
        let mut all = self.tensors.iter().map(Tensor::describe).collect::<Result<Vec<_>>>()?;
        let held = |t: &Tensor| t.storage().map(|s| s.reference);
        let mut refs: Vec<Ref> = self.tensors.iter().filter_map(held).collect();
        refs.sort_by_key(|r| (r.index, r.serial, r.generation));
        refs.dedup();
        let Some(first) = self.tensors.iter().find(|t| held(t).is_some()) else { return Ok(all) };
        let kept = || self.tensors.iter().map(|t| t.held.clone()).collect();
        let lease = first.held.inner().here()?.lease(refs.into_iter().map(storage_ref).collect(), lease, kept)?;
        for (h, t) in all.iter_mut().zip(&*self.tensors) {
            h.lease = held(t).map(|_| lease);
        }
        Ok(all)
    }
}

impl Session {
    /// Ends a handle's lease before its time; only the session that made it may (`PermissionDenied`).
    pub fn release_handle(&self, h: &Handle) -> Result<()> {
        match h.lease {
            Some(lease) => self.inner()?.call::<_, Ignored>("lease.release", &LeaseRef { lease }).map(|_| ()),
            None => Ok(()),
        }
    }

    /// The tensor of a handle, writable where the handle is. With a lease it claims it; a handle out
    /// of a tuple is opened while its topic keeps the message. No round trip is made where the memory
    /// is mapped already. Errors: `Expired`, `InvalidHandle`.
    pub fn open(&self, h: &Handle) -> Result<Tensor> {
        let t = self.open_unclaimed(h)?;
        crash_point::at("open-held");
        self.claim(h.lease)?;
        Ok(t)
    }

    /// The tensors of handles that were made together, or none. Errors as of [`open`](Session::open).
    pub fn open_all(&self, handles: &[Handle]) -> Result<Vec<Tensor>> {
        let all = handles.iter().map(|h| self.open_unclaimed(h)).collect::<Result<Vec<_>>>()?;
        let mut leases: Vec<u64> = handles.iter().filter_map(|h| h.lease).collect();
        leases.sort_unstable();
        leases.dedup();
        leases.into_iter().try_for_each(|lease| self.claim(Some(lease)))?;
        Ok(all)
    }

    fn claim(&self, lease: Option<u64>) -> Result<()> {
        if let Some(lease) = lease {
            self.inner()?.tell("lease.claim", &LeaseRef { lease });
        }
        Ok(())
    }

    fn open_unclaimed(&self, h: &Handle) -> Result<Tensor> {
        h.check()?;
        let inner = self.inner()?;
        inner.check_open()?;
        if h.host != inner.pages.instance {
            let what = format!("the handle is of broker {}, this is {}", h.host, inner.pages.instance);
            return Err(Error::new(Code::InvalidHandle, "open it with a client of the broker that made it", what));
        }
        let bad = |e: Error| Error::new(Code::InvalidHandle, "use the handle as it was made", e.message());
        let dtype = DType::parse(&h.dtype).map_err(bad)?;
        let (storages, place) = match h.is_empty() {
            true => (Storages::default(), Place::Nowhere),
            false => (self.hold_handle(h).map_err(|e| inner.refused(e))?.into(), Place::Storage(0)),
        };
        let holding = Holding::new(inner, storages, View::none());
        let (shape, strides) = (Dims::from(&h.shape[..]), h.strides.as_deref().map(Dims::from));
        Tensor::checked(holding.into(), place, h.byte_offset, dtype, shape, strides, h.readonly).map_err(bad)
    }

    /// Takes the reference: row up first, then the generation.
    fn hold_handle(&self, h: &Handle) -> Result<Held> {
        let inner = self.inner()?;
        let r = Ref { serial: h.serial, generation: h.generation, index: h.index };
        let a = inner.hold(r)?;
        crash_point::at("open-counted");
        // SYNC generation: the row was raised first; either the owner's second collect sees that, or
        // RETIRING or a later generation is seen here.
        fence();
        let located = if a.entries.word(r.index) == r.generation {
            a.locate(r).and_then(|s| {
                let there = (s.offset, s.bytes, a.chunk.segment_serial) == (h.offset, h.bytes, h.segment);
                if there && device_name(&s) == h.device {
                    return Ok(s);
                }
                let what = "it names another range than its storage has";
                Err(Error::new(Code::InvalidHandle, "use the handle as it was made", what))
            })
        } else {
            Err(expired("its lease is over, its topic has overwritten it, or it was never given away"))
        };
        let held = located.and_then(|s| if h.readonly { Ok(s) } else { inner.writable(&a.segment).map(|()| s) });
        held.inspect_err(|_| inner.let_go(r.index, a.own))
    }
}
