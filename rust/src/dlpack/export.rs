//! Handing a tensor to another library of this process.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use super::copies;
use super::owned::{Managed, Structure};
use super::{DLManagedTensor, DLManagedTensorVersioned, DLTensor, flag};
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

/// How a tensor is given to another library.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// use baton::dlpack::ExportOptions;
///
/// let x = session.from_slice(&[2], &[1i32, 2])?.freeze();
/// let old = x.to_dlpack_legacy(ExportOptions::default())?; // for a consumer of the structure before 1.0
/// assert_eq!(session.from_dlpack(old)?.as_ptr()?, x.as_ptr()?);
/// let read_only = x.to_read_only();
/// let e = read_only.to_dlpack_legacy(ExportOptions::default()).unwrap_err();
/// assert_eq!(e.code(), baton::Code::ReadOnly);
/// let private = read_only.to_dlpack(ExportOptions::default().private(true).copied(false))?;
/// unsafe { *(*private.as_ptr()).dl_tensor.data.cast::<i32>() = 7 }; // what is written there stays there
/// assert_eq!(x.to_vec::<i32>()?, [1, 2]);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct ExportOptions {
    stream: Stream,
    private: bool,
    copied: bool,
}

impl ExportOptions {
    /// The stream whose work uses the tensor, on a GPU: it waits until the tensor is written, as by
    /// [`Tensor::use_on`], and the deleter may be called while it still works. The default is the legacy
    /// default stream, for that and those that are ordered with it.
    #[must_use]
    pub fn stream(mut self, stream: Stream) -> Self {
        self.stream = stream;
        self
    }

    /// True exports a read-only tensor copy-on-write: consumers that ignore the flag may write, and what
    /// they write stays in this export, or in the exports of one bundle. There is no such thing on a GPU.
    #[must_use]
    pub fn private(mut self, yes: bool) -> Self {
        self.private = yes;
        self
    }

    /// True says to the consumer that the tensor is a copy made for it ([`flag::IS_COPIED`]).
    #[must_use]
    pub fn copied(mut self, yes: bool) -> Self {
        self.copied = yes;
        self
    }

    fn flags(self, t: &Tensor) -> u64 {
        let read_only = if t.is_read_only() { flag::READ_ONLY } else { 0 };
        read_only | if self.copied { flag::IS_COPIED } else { 0 }
    }

    fn is_private(self, t: &Tensor) -> bool {
        self.private && t.is_read_only() && t.on_device().is_none()
    }
}

impl Tensor {
    /// Exports the tensor: a reference of its own, independent of this value. A read-only tensor has the
    /// flag; consumers that ignore it fault when they write, if it is not [`private`](ExportOptions::private).
    ///
    /// # Errors
    /// Those of [`use_on`](Tensor::use_on).
    pub fn to_dlpack(&self, options: ExportOptions) -> Result<Managed<DLManagedTensorVersioned>> {
        export(self, options, DELETER)
    }

    /// As [`to_dlpack`](Tensor::to_dlpack), for consumers of the structure before 1.0, which has no
    /// read-only flag: a read-only tensor that is not private is refused (`ReadOnly`).
    pub fn to_dlpack_legacy(&self, options: ExportOptions) -> Result<Managed<DLManagedTensor>> {
        check_legacy(self, options)?;
        export(self, options, delete)
    }
}

impl Bundle {
    /// Exports each tensor in order, as [`Tensor::to_dlpack`]. Private ones cost a mapping for each segment,
    /// and tensors that share a storage share what a consumer writes, too. With an error nothing was exported.
    ///
    /// ```
    /// # fn main() -> Result<(), baton::Error> {
    /// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
    /// # let session = baton::Session::connect()?;
    /// use baton::dlpack::ExportOptions;
    ///
    /// let w = session.from_slice(&[2], &[1i32, 2])?.freeze();
    /// session.set("two", baton::Payload::named([("w", w.clone()), ("tied", w)]))?;
    /// let two = session.get("two", None)?;
    /// let copies = two.to_dlpack(ExportOptions::default().private(true))?;
    /// unsafe { *(*copies[0].as_ptr()).dl_tensor.data.cast::<i32>() = 7 }; // stays in these exports
    /// assert_eq!(unsafe { *(*copies[1].as_ptr()).dl_tensor.data.cast::<i32>() }, 7);
    /// assert_eq!(two.get("w").unwrap().to_vec::<i32>()?, [1, 2]);
    /// assert_eq!(two.to_dlpack_legacy(ExportOptions::default().private(true))?.len(), 2);
    /// # Ok(()) }
    /// ```
    pub fn to_dlpack(&self, options: ExportOptions) -> Result<Vec<Managed<DLManagedTensorVersioned>>> {
        export_all(self, options, DELETER)
    }

    /// As [`to_dlpack`](Bundle::to_dlpack), as the structure before 1.0, which has no read-only flag: what is
    /// read-only and not private is refused (`ReadOnly`).
    pub fn to_dlpack_legacy(&self, options: ExportOptions) -> Result<Vec<Managed<DLManagedTensor>>> {
        self.tensors.iter().try_for_each(|t| check_legacy(t, options))?;
        export_all(self, options, delete)
    }
}

fn check_legacy(t: &Tensor, options: ExportOptions) -> Result<()> {
    if !t.is_read_only() || options.is_private(t) {
        return Ok(());
    }
    let what = "the legacy structure cannot say that a tensor is read-only";
    Err(Error::new(Code::ReadOnly, "use the versioned structure, or copy it", what))
}

fn export<M: Structure>(
    t: &Tensor,
    options: ExportOptions,
    deleter: unsafe extern "C" fn(*mut M),
) -> Result<Managed<M>> {
    let (private, dl_tensor) = if options.is_private(t) {
        let (map, data) = copies::of(&[t])?.pop().unwrap_or((None, std::ptr::null_mut()));
        (map, described(t, data))
    } else {
        t.use_on(options.stream)?;
        (None, view(t)?)
    };
    Ok(exported(t, M::new(options.flags(t), dl_tensor, deleter), private))
}

fn export_all<M: Structure>(
    bundle: &Bundle,
    options: ExportOptions,
    deleter: unsafe extern "C" fn(*mut M),
) -> Result<Vec<Managed<M>>> {
    let tensors = &bundle.tensors;
    let copied: Vec<&Tensor> = tensors.iter().filter(|t| options.is_private(t)).collect();
    let mut copies = copies::of(&copied)?.into_iter();
    let one = |t: &Tensor| {
        if !options.is_private(t) {
            return export(t, options, deleter);
        }
        let (map, data) = copies.next().unwrap_or((None, std::ptr::null_mut()));
        Ok(exported(t, M::new(options.flags(t), described(t, data), deleter), map))
    };
    tensors.iter().map(one).collect()
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
    /// let m = x.to_dlpack(baton::dlpack::ExportOptions::default())?;
    /// assert_eq!(unsafe { baton::Tensor::of_dlpack(m.as_ptr()) }.unwrap().as_ptr()?, x.as_ptr()?);
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

/// The export, with the addresses of shape and strides filled in.
fn exported<M: Structure>(t: &Tensor, managed: M, private: Option<Arc<Mapping>>) -> Managed<M> {
    let boxed = |d: Dims| -> Box<[i64]> { d.to_vec().into() };
    let context = Context {
        managed,
        shape: boxed(Dims::from(t.shape())),
        strides: boxed(t.full_strides()),
        _private: private,
        tensor: t.clone(),
    };
    let context = Box::into_raw(Box::new(context));
    // SAFETY: the box was just made and has no other owner.
    let c = unsafe { &mut *context };
    let first = |d: &mut [i64]| if d.is_empty() { std::ptr::null_mut() } else { d.as_mut_ptr() };
    let (shape, strides) = (first(&mut c.shape), first(&mut c.strides));
    c.managed.fill(context.cast(), shape, strides);
    Managed::made(NonNull::from(&mut c.managed))
}

/// The deleter: any thread, once. It calls no interpreter and takes no lock of others.
unsafe extern "C" fn delete<M: Structure>(managed: *mut M) {
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
