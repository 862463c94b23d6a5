//! Structures that are owned here: their deleter is called once.

use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;

use super::{DLManagedTensor, DLManagedTensorVersioned, DLTensor, VERSION};
use crate::error::{Code, Error, Result};

/// The two structures that own a tensor: [`DLManagedTensorVersioned`], and [`DLManagedTensor`] of before
/// DLPack 1.0. No other type is one.
pub trait Structure: Sized + sealed::Fields {}

impl Structure for DLManagedTensorVersioned {}
impl Structure for DLManagedTensor {}

/// A managed tensor that is this value's: dropping it calls the deleter, which is called once, on any
/// thread.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// use baton::dlpack::{DLManagedTensorVersioned, ExportOptions, Managed};
///
/// let x = session.from_slice(&[2], &[1i32, 2])?.freeze();
/// let m: Managed<DLManagedTensorVersioned> = x.to_dlpack(ExportOptions::default())?;
/// let raw = m.into_raw(); // a consumer that takes ownership calls its deleter
/// let m = unsafe { Managed::from_raw(raw)? }; // and of one that gives tensors away ownership is taken so
/// assert_eq!(session.from_dlpack(m)?.to_vec::<i32>()?, [1, 2]);
/// # Ok(()) }
/// ```
#[must_use = "dropping it gives the reference back"]
pub struct Managed<M: Structure = DLManagedTensorVersioned>(NonNull<M>);

// SAFETY: the caller of `from_raw` says that its deleter may be called on any thread, as may those of this
// crate's own; the pointer is of this value alone.
unsafe impl<M: Structure> Send for Managed<M> {}
// SAFETY: a shared reference gives out a pointer, and reads nothing.
unsafe impl<M: Structure> Sync for Managed<M> {}

impl<M: Structure> Managed<M> {
    /// Takes a structure over. One at an impossible address is refused and nothing of it touched
    /// (`InvalidArgument`).
    ///
    /// # Safety
    /// It is null, or a live structure that is the caller's to give away and keeps DLPack's rules until its
    /// deleter is called. Its addresses are right, and the deleter may be called on any thread. While the elements are
    /// read, only other processes and atomic stores write them.
    pub unsafe fn from_raw(m: *mut M) -> Result<Managed<M>> {
        match NonNull::new(m).filter(|m| m.is_aligned()) {
            Some(m) => Ok(Managed(m)),
            None => {
                let what = format!("DLPack: a managed tensor at {m:p}");
                Err(Error::new(Code::InvalidArgument, "give what to_dlpack returned", what))
            }
        }
    }

    /// One that this crate just made.
    pub(super) fn made(m: NonNull<M>) -> Managed<M> {
        Managed(m)
    }

    /// Gives it away: the owner of the address calls the deleter, once.
    #[must_use = "without its deleter being called the memory stays"]
    pub fn into_raw(self) -> *mut M {
        std::mem::ManuallyDrop::new(self).0.as_ptr()
    }

    /// Its address, valid as long as this value lives.
    pub fn as_ptr(&self) -> *mut M {
        self.0.as_ptr()
    }
}

impl<M: Structure> Drop for Managed<M> {
    fn drop(&mut self) {
        // SAFETY: its ownership was taken, and this is the one place that gives it back.
        unsafe { M::delete(self.0.as_ptr()) }
    }
}

impl<M: Structure> fmt::Debug for Managed<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Managed").field(&self.0).finish()
    }
}

/// What both structures have in common.
pub(super) mod sealed {
    use super::{DLTensor, Result, c_void};

    pub trait Fields {
        /// What an export of this crate begins as: with flags, where the structure has any.
        fn new(flags: u64, dl_tensor: DLTensor, deleter: unsafe extern "C" fn(*mut Self)) -> Self;
        /// Fills in what only its final place knows.
        fn fill(&mut self, context: *mut c_void, shape: *mut i64, strides: *mut i64);
        /// The producer's pointer.
        fn context(&self) -> *mut c_void;
        /// The view and the flags; `Unsupported` of another major version.
        ///
        /// # Safety
        /// A live structure.
        unsafe fn read(this: *const Self) -> Result<(DLTensor, u64)>;
        /// Calls the deleter, if there is one.
        ///
        /// # Safety
        /// Nothing uses the structure any more, and no other code calls it.
        unsafe fn delete(this: *mut Self);
    }
}

impl sealed::Fields for DLManagedTensorVersioned {
    fn new(flags: u64, dl_tensor: DLTensor, deleter: unsafe extern "C" fn(*mut Self)) -> Self {
        let manager_ctx = std::ptr::null_mut();
        DLManagedTensorVersioned { version: VERSION, manager_ctx, deleter: Some(deleter), flags, dl_tensor }
    }

    fn fill(&mut self, context: *mut c_void, shape: *mut i64, strides: *mut i64) {
        (self.manager_ctx, self.dl_tensor.shape, self.dl_tensor.strides) = (context, shape, strides);
    }

    fn context(&self) -> *mut c_void {
        self.manager_ctx
    }

    unsafe fn read(this: *const Self) -> Result<(DLTensor, u64)> {
        // SAFETY: the version stands first in every major version.
        let version = unsafe { (&raw const (*this).version).read() };
        if version.major != VERSION.major {
            let what = format!("DLPack {}.{} was given, {}.x is read", version.major, version.minor, VERSION.major);
            return Err(Error::new(Code::Unsupported, "ask the producer for max_version (1, 3)", what));
        }
        // SAFETY: a live structure of version 1.
        unsafe { Ok(((&raw const (*this).dl_tensor).read(), (&raw const (*this).flags).read())) }
    }

    unsafe fn delete(this: *mut Self) {
        // SAFETY: a live structure; of another major version this field alone is read.
        if let Some(delete) = unsafe { (&raw const (*this).deleter).read() } {
            // SAFETY: once, as the caller says.
            unsafe { delete(this) }
        }
    }
}

impl sealed::Fields for DLManagedTensor {
    fn new(_flags: u64, dl_tensor: DLTensor, deleter: unsafe extern "C" fn(*mut Self)) -> Self {
        DLManagedTensor { dl_tensor, manager_ctx: std::ptr::null_mut(), deleter: Some(deleter) }
    }

    fn fill(&mut self, context: *mut c_void, shape: *mut i64, strides: *mut i64) {
        (self.manager_ctx, self.dl_tensor.shape, self.dl_tensor.strides) = (context, shape, strides);
    }

    fn context(&self) -> *mut c_void {
        self.manager_ctx
    }

    unsafe fn read(this: *const Self) -> Result<(DLTensor, u64)> {
        // SAFETY: a live structure.
        Ok((unsafe { (&raw const (*this).dl_tensor).read() }, 0))
    }

    unsafe fn delete(this: *mut Self) {
        // SAFETY: a live structure.
        if let Some(delete) = unsafe { (*this).deleter } {
            // SAFETY: once, as the caller says.
            unsafe { delete(this) }
        }
    }
}
