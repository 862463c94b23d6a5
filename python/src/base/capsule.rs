//! Capsules of DLPack. Destructors are native: they run no Python and keep an exception in flight.

use std::ffi::{CStr, c_void};

use baton::dlpack::{DLManagedTensor, DLManagedTensorVersioned, Managed, Structure};
use pyo3::ffi;
use pyo3::prelude::*;

/// The name of an unconsumed capsule before DLPack 1.0.
pub(crate) const LEGACY: &CStr = c"dltensor";
/// The name of an unconsumed capsule of DLPack 1.
pub(crate) const VERSIONED: &CStr = c"dltensor_versioned";

/// A structure that a capsule can carry.
pub(crate) trait Carried: Structure {
    /// The capsule's name.
    const NAME: &CStr;
}

impl Carried for DLManagedTensorVersioned {
    const NAME: &CStr = VERSIONED;
}

impl Carried for DLManagedTensor {
    const NAME: &CStr = LEGACY;
}

/// A capsule that owns a structure until a consumer renames it.
pub(crate) fn capsule<M: Carried>(py: Python<'_>, m: Managed<M>) -> PyResult<Bound<'_, PyAny>> {
    let at = m.as_ptr().cast::<c_void>();
    // SAFETY: the name is static; the result is a new reference or null with an exception.
    let made =
        unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(at, M::NAME.as_ptr(), Some(destroy::<M>))) }?;
    let _ = m.into_raw(); // the capsule's now
    Ok(made)
}

/// What a capsule points to while it has this name: a consumer renames it. Neither call raises.
///
/// # Safety
/// `capsule` is a live object, or a capsule that is being destroyed.
pub(crate) unsafe fn content<T>(capsule: *mut ffi::PyObject, name: &CStr) -> *mut T {
    // SAFETY: as the caller says.
    if unsafe { ffi::PyCapsule_IsValid(capsule, name.as_ptr()) } == 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: as above.
    unsafe { ffi::PyCapsule_GetPointer(capsule, name.as_ptr()) }.cast()
}

/// # Safety
/// Called by Python with a capsule of `capsule`.
unsafe extern "C" fn destroy<M: Carried>(capsule: *mut ffi::PyObject) {
    // SAFETY: where it was not consumed it is still the capsule's, and no other code frees it; a capsule that was
    // consumed has nothing.
    drop(unsafe { Managed::from_raw(content::<M>(capsule, M::NAME)) });
}
