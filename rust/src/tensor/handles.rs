//! Handles: made from tensors, opened by any process of the broker.

use std::sync::Arc;

use super::{Tensor, await_written};
use crate::crash_point;
use crate::dims::Dims;
use crate::dtype::DType;
use crate::error::{Code, Error, Result, expired};
use crate::handle::Handle;
use crate::holding::{Holding, Lease, Opening, Place, Storages, View, storage_ref};
use crate::memory::Held;
use crate::message::Ref;
use crate::shm::fence;

/// What a handle calls the place of its storage: a GPU by the broker's number.
fn device_name(s: &Held) -> String {
    s.at.segment.device().map_or_else(|| "cpu".to_owned(), |d| format!("cuda:{}", d.id))
}

impl Tensor {
    /// A handle that can be carried by any means (it is plain JSON) and opened by any process of this broker.
    /// The broker holds the tensor for the lease's time, whatever becomes of this process. Errors:
    /// `InvalidArgument` for a lease that does not last, `TooMany`, and `Expired` if the sender of a
    /// tensor on a GPU ended before it had written.
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
        await_written(std::iter::once(self))?;
        let mut h = self.describe()?;
        if let Some(s) = self.storage() {
            let kept = || vec![self.held.clone()];
            h.lease = Some(self.held.inner().here()?.lease(vec![storage_ref(s.reference)], lease, kept)?);
            crash_point::at("lease-made");
        }
        Ok(h)
    }

    /// The handle without a lease.
    pub(crate) fn describe(&self) -> Result<Handle> {
        self.check_shared()?;
        let mut h = Handle {
            host: self.held.inner().memory.files.instance.clone(),
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
            match inner.is_foreign() {
                false => inner.memory.share(r, s.at.own)?,
                true => inner.here()?.memory.share(r, false)?,
            }
            h.segment = s.at.chunk.segment_serial;
            (h.serial, h.index, h.generation) = (r.serial, r.index, r.generation);
            (h.offset, h.bytes, h.byte_offset) = (s.offset, s.bytes, self.view().offset);
            h.device = device_name(s);
        }
        Ok(h)
    }
}

impl Tensor {
    /// The tensor of a handle, whose lease is not claimed.
    pub(crate) fn open_unclaimed(inner: &Arc<Opening>, h: &Handle) -> Result<Tensor> {
        h.check()?;
        inner.check_open()?;
        if h.host != inner.memory.files.instance {
            let what = format!("the handle is of host {}, this is {}", h.host, inner.memory.files.instance);
            return Err(Error::new(Code::Protocol, "stop the broker and start one of this client's version", what));
        }
        let bad = |e: Error| Error::new(Code::InvalidHandle, "use the handle as it was made", e.message());
        let dtype = DType::parse(&h.dtype).map_err(bad)?;
        let (storages, place) = match h.is_empty() {
            true => (Storages::default(), Place::Nowhere),
            false => (Tensor::hold_handle(inner, h).map_err(|e| inner.refused(e))?.into(), Place::Storage(0)),
        };
        let holding = Holding::new(inner, storages, View::none());
        let (shape, strides) = (Dims::from(&h.shape[..]), h.strides.as_deref().map(Dims::from));
        Tensor::checked(holding.into(), place, h.byte_offset, dtype, shape, strides, h.readonly).map_err(bad)
    }

    /// Takes the reference: refcount up first, then the generation.
    fn hold_handle(inner: &Opening, h: &Handle) -> Result<Held> {
        let r = Ref { serial: h.serial, generation: h.generation, index: h.index };
        let a = inner.hold(r)?;
        crash_point::at("open-counted");
        // SYNC generation: the refcounts were raised first; either the owner's second collect sees that, or
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
        held.inspect_err(|_| inner.memory.let_go(r.index, a.own))
    }
}
