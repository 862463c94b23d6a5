//! Handing a tensor to another library of this process.

use std::ffi::c_void;
use std::sync::Arc;

use super::copies;
use super::owned::Managed;
use super::{DLManagedTensor, DLManagedTensorVersioned, DLTensor, VERSION, flag};
use crate::cuda::Stream;
use crate::devices::Devices;
use crate::dims::Dims;
use crate::error::{Code, Error, Result};
use crate::sys::Mapping;
use crate::tensor::Tensor;
use crate::value::Bundle;

/// What an export keeps until its deleter is called.
struct Context<M> {
    managed: M,
    // The arrays that shape and strides point to; a Box moves, its content does not.
    shape: Box<[i64]>,
    strides: Box<[i64]>,
    _private: Option<Arc<Mapping>>,
    tensor: Tensor,
}

impl Tensor {
    /// Exports the tensor. Whoever takes it calls its deleter once, on any thread; with that a
    /// reference of its own is dropped. It is independent of this value. A read-only tensor has the
    /// flag; consumers that ignore it fault when they write. On a GPU it is for work of the legacy
    /// default stream and of those that are ordered with it; [`to_dlpack_on`](Tensor::to_dlpack_on)
    /// names another.
    pub fn to_dlpack(&self) -> Result<*mut DLManagedTensorVersioned> {
        self.to_dlpack_on(Stream::LEGACY)
    }

    /// As [`to_dlpack`](Tensor::to_dlpack), for work of a stream: on a GPU it waits until the tensor is
    /// written, as by [`use_on`](Tensor::use_on), and the deleter may be called while it still works.
    pub fn to_dlpack_on(&self, stream: Stream) -> Result<*mut DLManagedTensorVersioned> {
        self.use_on(stream)?;
        let flags = if self.is_read_only() { flag::READ_ONLY } else { 0 };
        Ok(export(self, versioned(flags, view(self)?), None))
    }

    /// As [`to_dlpack`](Tensor::to_dlpack); a read-only tensor is exported copy-on-write: consumers
    /// that ignore the flag may write, and what they write stays in this export.
    /// There is no such thing on a GPU: there it is as `to_dlpack`.
    pub fn to_dlpack_private(&self) -> Result<*mut DLManagedTensorVersioned> {
        if !self.is_read_only() || self.on_device().is_some() {
            return self.to_dlpack();
        }
        let (private, dl_tensor) = private(self)?;
        Ok(export(self, versioned(flag::READ_ONLY, dl_tensor), private))
    }

    /// As [`to_dlpack_private`](Tensor::to_dlpack_private), as the structure before 1.0.
    pub fn to_dlpack_legacy_private(&self) -> Result<*mut DLManagedTensor> {
        if !self.is_read_only() || self.on_device().is_some() {
            return self.to_dlpack_legacy();
        }
        let (private, dl_tensor) = private(self)?;
        Ok(export(self, legacy(dl_tensor), private))
    }

    /// As [`to_dlpack`](Tensor::to_dlpack) for consumers of the structure before 1.0, which has no
    /// read-only flag: a read-only tensor is refused (`ReadOnly`).
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// let x = session.from_slice(&[2], &[1i32, 2])?.freeze();
    /// let old = x.to_dlpack_legacy()?; // for a consumer of the structure before 1.0
    /// assert_eq!(unsafe { session.from_dlpack_legacy(old)? }.as_ptr()?, x.as_ptr()?);
    /// let read_only = x.as_read_only();
    /// assert_eq!(read_only.to_dlpack_legacy().unwrap_err().code(), baton::Code::ReadOnly);
    /// let private = read_only.to_dlpack_legacy_private()?;
    /// unsafe { *(*private).dl_tensor.data.cast::<i32>() = 7 }; // what is written there stays there
    /// drop(unsafe { session.from_dlpack_legacy(private)? });
    /// let private = read_only.to_dlpack_private()?;
    /// unsafe { *(*private).dl_tensor.data.cast::<i32>() = 7 };
    /// drop(unsafe { session.from_dlpack(private)? });
    /// assert_eq!(x.to_vec::<i32>()?, [1, 2]);
    /// # Ok(()) }
    /// ```
    pub fn to_dlpack_legacy(&self) -> Result<*mut DLManagedTensor> {
        self.to_dlpack_legacy_on(Stream::LEGACY)
    }

    /// As [`to_dlpack_legacy`](Tensor::to_dlpack_legacy), for work of a stream, as by
    /// [`to_dlpack_on`](Tensor::to_dlpack_on).
    pub fn to_dlpack_legacy_on(&self, stream: Stream) -> Result<*mut DLManagedTensor> {
        if self.is_read_only() {
            return Err(legacy_is_writable());
        }
        self.use_on(stream)?;
        Ok(export(self, legacy(view(self)?), None))
    }
}

impl Bundle {
    /// As [`to_dlpack_private`](Tensor::to_dlpack_private) of each tensor in order, at the cost of a mapping for
    /// each segment: tensors that share a storage share what a consumer writes, too.
    /// Each deleter is called once. With an error nothing was exported.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// let w = session.from_slice(&[2], &[1i32, 2])?.freeze();
    /// session.set("two", baton::Payload::named([("w", w.clone()), ("tied", w)]))?;
    /// let copies = session.get("two", None)?.to_dlpack_private()?;
    /// unsafe { *(*copies[0]).dl_tensor.data.cast::<i32>() = 7 }; // what is written stays in these exports
    /// assert_eq!(unsafe { *(*copies[1]).dl_tensor.data.cast::<i32>() }, 7);
    /// assert_eq!(session.get("two", None)?.get("w").unwrap().to_vec::<i32>()?, [1, 2]);
    /// for m in copies {
    ///     drop(unsafe { session.from_dlpack(m)? });
    /// }
    /// # Ok(()) }
    /// ```
    pub fn to_dlpack_private(&self) -> Result<Vec<*mut DLManagedTensorVersioned>> {
        let flags = |t: &Tensor| if t.is_read_only() { flag::READ_ONLY } else { 0 };
        self.private_exports(|t, dl_tensor| versioned(flags(t), dl_tensor))
    }

    /// As [`to_dlpack_private`](Bundle::to_dlpack_private), as the structure before 1.0, which has no read-only
    /// flag: what is read-only on a GPU is refused (`ReadOnly`).
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// let w = session.from_slice(&[2], &[1i32, 2])?.freeze();
    /// session.set("old", baton::Payload::named([("w", w.clone()), ("tied", w)]))?;
    /// let copies = session.get("old", None)?.to_dlpack_legacy_private()?;
    /// unsafe { *(*copies[0]).dl_tensor.data.cast::<i32>() = 7 };
    /// assert_eq!(unsafe { *(*copies[1]).dl_tensor.data.cast::<i32>() }, 7);
    /// for m in copies {
    ///     drop(unsafe { session.from_dlpack_legacy(m)? });
    /// }
    /// # Ok(()) }
    /// ```
    pub fn to_dlpack_legacy_private(&self) -> Result<Vec<*mut DLManagedTensor>> {
        if self.tensors.iter().any(|t| t.is_read_only() && t.on_device().is_some()) {
            return Err(legacy_is_writable());
        }
        self.private_exports(|_, dl_tensor| legacy(dl_tensor))
    }

    fn private_exports<M: Managed>(&self, structure: impl Fn(&Tensor, DLTensor) -> M) -> Result<Vec<*mut M>> {
        let is_copied = |t: &Tensor| t.is_read_only() && t.on_device().is_none();
        let copied: Vec<&Tensor> = self.tensors.iter().filter(|t| is_copied(t)).collect();
        let mut copies = copies::of(&copied)?.into_iter();
        // All that may fail comes first: an export that was made would have to be taken back.
        let mut all = Vec::with_capacity(self.tensors.len());
        for t in self.tensors.iter() {
            if is_copied(t) {
                let (map, data) = copies.next().unwrap_or((None, std::ptr::null_mut()));
                all.push((t, structure(t, described(t, data)), map));
            } else {
                t.use_on(Stream::LEGACY)?;
                all.push((t, structure(t, view(t)?), None));
            }
        }
        Ok(all.into_iter().map(|(t, m, map)| export(t, m, map)).collect())
    }
}

/// The deleter of every versioned export. It is a static because only that has one address for sure.
static DELETER: unsafe extern "C" fn(*mut DLManagedTensorVersioned) = delete::<DLManagedTensorVersioned>;

impl Tensor {
    /// The tensor of which a structure is an export of this crate, by whatever way it came back here;
    /// `None` for another library's.
    ///
    /// # Safety
    /// A live structure, that stays so as long as the tensor is used.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// let x = session.from_slice(&[2], &[1i32, 2])?.freeze();
    /// let m = x.to_dlpack()?;
    /// assert_eq!(unsafe { baton::Tensor::of_dlpack(m) }.unwrap().as_ptr()?, x.as_ptr()?);
    /// drop(unsafe { session.from_dlpack(m)? }); // whoever has it takes it once
    /// # Ok(()) }
    /// ```
    pub unsafe fn of_dlpack<'a>(m: *const DLManagedTensorVersioned) -> Option<&'a Tensor> {
        // SAFETY: as the caller says. The deleter is this crate's own and its alone, so the context is
        // what `export` put there.
        unsafe {
            let ours = (*m).deleter.is_some_and(|d| std::ptr::fn_addr_eq(d, DELETER));
            ours.then(|| &(*(*m).manager_ctx.cast::<Context<DLManagedTensorVersioned>>()).tensor)
        }
    }
}

/// The view, with the addresses of shape and strides to be filled in.
fn view(t: &Tensor) -> Result<DLTensor> {
    // Torch and others ignore READ_ONLY and would only fault: they get what this process may have.
    let data = match t.on_device() {
        _ if t.is_empty() => std::ptr::null_mut(),
        Some(_) => std::ptr::without_provenance_mut(t.device_ptr(!t.is_read_only())? as usize),
        None => t.address(!t.is_read_only())?.cast(),
    };
    Ok(described(t, data))
}

/// A copy-on-write mapping of the tensor's storage, and the view of it.
fn private(t: &Tensor) -> Result<(Option<Arc<Mapping>>, DLTensor)> {
    let (map, data) = copies::of(&[t])?.pop().unwrap_or((None, std::ptr::null_mut()));
    Ok((map, described(t, data)))
}

/// A structure whose context is still to be filled in.
fn versioned(flags: u64, dl_tensor: DLTensor) -> DLManagedTensorVersioned {
    let manager_ctx = std::ptr::null_mut();
    DLManagedTensorVersioned { version: VERSION, manager_ctx, deleter: Some(DELETER), flags, dl_tensor }
}

/// As `versioned`, of the structure before 1.0.
fn legacy(dl_tensor: DLTensor) -> DLManagedTensor {
    DLManagedTensor { dl_tensor, manager_ctx: std::ptr::null_mut(), deleter: Some(delete::<DLManagedTensor>) }
}

fn legacy_is_writable() -> Error {
    let what = "the legacy structure cannot say that a tensor is read-only";
    Error::new(Code::ReadOnly, "use the versioned structure, or copy it", what)
}

fn described(t: &Tensor, data: *mut c_void) -> DLTensor {
    DLTensor {
        data,
        device: t.device(),
        ndim: t.shape().len() as i32,
        dtype: t.dtype(),
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    }
}

fn export<M: Managed>(t: &Tensor, managed: M, private: Option<Arc<Mapping>>) -> *mut M {
    let boxed = |d: Dims| -> Box<[i64]> { d.to_vec().into() };
    let context = Context {
        managed,
        shape: boxed(Dims::from(t.shape())),
        strides: boxed(t.full_strides()),
        _private: private,
        tensor: t.clone(),
    };
    let context = Box::into_raw(Box::new(context));
    // SAFETY: the box was just made and nobody else has it.
    let c = unsafe { &mut *context };
    let first = |d: &mut [i64]| if d.is_empty() { std::ptr::null_mut() } else { d.as_mut_ptr() };
    let (shape, strides) = (first(&mut c.shape), first(&mut c.strides));
    c.managed.fill(context.cast(), shape, strides);
    &raw mut c.managed
}

/// The deleter: any thread, once. It calls no interpreter and takes no lock of others.
unsafe extern "C" fn delete<M: Managed>(managed: *mut M) {
    if managed.is_null() {
        return;
    }
    // SAFETY: the caller gives back what `export` made, once; its context is the box around it.
    let context = unsafe { Box::from_raw((*managed).context().cast::<Context<M>>()) };
    let inner = context.tensor.held.inner().clone();
    if context.tensor.on_device().is_some() && !inner.is_closed() {
        Devices::of(&inner.memory).deleted(Box::new(context.tensor)); // this thread may be one that must not call the driver
    }
}
