//! Capsules of DLPack. Destructors are native: they run no Python and keep an exception in flight.

use std::ffi::{CStr, c_void};

use baton::dlpack::{DLManagedTensor, DLManagedTensorVersioned};
use pyo3::ffi;
use pyo3::prelude::*;

/// The name of an unconsumed capsule before DLPack 1.0.
pub(crate) const LEGACY: &CStr = c"dltensor";
/// The name of an unconsumed capsule of DLPack 1.
pub(crate) const VERSIONED: &CStr = c"dltensor_versioned";

/// A structure that a capsule can carry.
pub(crate) trait Managed: Sized {
    /// The capsule's name.
    const NAME: &CStr;
    /// # Safety
    /// A live structure, whatever its version.
    unsafe fn deleter(this: *const Self) -> Option<unsafe extern "C" fn(*mut Self)>;
}

impl Managed for DLManagedTensorVersioned {
    const NAME: &CStr = VERSIONED;

    unsafe fn deleter(this: *const Self) -> Option<unsafe extern "C" fn(*mut Self)> {
        // SAFETY: as the caller says.
        unsafe { (*this).deleter }
    }
}

impl Managed for DLManagedTensor {
    const NAME: &CStr = LEGACY;

    unsafe fn deleter(this: *const Self) -> Option<unsafe extern "C" fn(*mut Self)> {
        // SAFETY: as the caller says.
        unsafe { (*this).deleter }
    }
}

/// A capsule that owns a structure until a consumer renames it.
///
/// # Safety
/// The structure is the caller's to give away.
pub(crate) unsafe fn capsule<M: Managed>(py: Python<'_>, m: *mut M) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: the name is static; the result is a new reference or null with an exception.
    let made = unsafe {
        Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(m.cast::<c_void>(), M::NAME.as_ptr(), Some(destroy::<M>)))
    };
    made.inspect_err(|_| {
        // SAFETY: no capsule took it.
        unsafe { delete(m) }
    })
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
unsafe extern "C" fn destroy<M: Managed>(capsule: *mut ffi::PyObject) {
    // SAFETY: where it was not consumed nobody else frees it.
    unsafe { delete(content::<M>(capsule, M::NAME)) }
}

/// Calls the deleter, if there is one.
///
/// # Safety
/// Null, or a structure that nobody uses any more.
pub(crate) unsafe fn delete<M: Managed>(m: *mut M) {
    if m.is_null() {
        return;
    }
    // SAFETY: as the caller says.
    if let Some(delete) = unsafe { M::deleter(m) } {
        // SAFETY: once.
        unsafe { delete(m) }
    }
}
