//! DLPack, both ways, both capsules. Destructors are native: they run no Python and keep an exception
//! in flight.

use std::ffi::CStr;

use baton::dlpack::{CPU, DLManagedTensor, DLManagedTensorVersioned, DLTensor, flag};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::OrRaise;
use crate::source::host_only;

const LEGACY: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";

/// What a consumer asks of `__dlpack__`.
pub(crate) struct Request {
    pub(crate) max_version: Option<(u32, u32)>,
    pub(crate) device: Option<(i32, i32)>,
    pub(crate) copy: Option<bool>,
}

/// The capsule of a tensor.
pub(crate) fn export<'py>(py: Python<'py>, t: &baton::Tensor, r: Request) -> PyResult<Bound<'py, PyAny>> {
    if r.device.is_some_and(|d| d != (CPU, 0)) {
        return Err(PyBufferError::new_err("the tensor lies on the CPU, (1, 0), and is not moved to another device"));
    }
    let copied = r.copy == Some(true);
    let owned;
    let t = match copied {
        true => {
            owned = crate::tensor::copied(py, t)?;
            &owned
        }
        false => t,
    };
    if r.max_version.is_some_and(|(major, _)| major >= 1) {
        let m = t.to_dlpack_private().or_raise(py)?;
        if copied {
            // SAFETY: just made, and nobody else has it.
            unsafe { (*m).flags |= flag::IS_COPIED };
        }
        // SAFETY: the capsule owns the export, and its destructor is of the same type.
        return unsafe { capsule(py, m.cast(), VERSIONED, drop_versioned) }.inspect_err(|_| {
            // SAFETY: no capsule took it.
            unsafe { delete_versioned(m) }
        });
    }
    let m = t.to_dlpack_legacy_private().or_raise(py)?;
    // SAFETY: as above.
    unsafe { capsule(py, m.cast(), LEGACY, drop_legacy) }.inspect_err(|_| {
        // SAFETY: as above.
        unsafe { delete_legacy(m) }
    })
}

/// # Safety
/// The destructor frees what `p` points to.
unsafe fn capsule<'py>(
    py: Python<'py>,
    p: *mut std::ffi::c_void,
    name: &'static CStr,
    destructor: unsafe extern "C" fn(*mut ffi::PyObject),
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the name is static; the result is a new reference or null with an exception.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(p, name.as_ptr(), Some(destructor))) }
}

/// What a capsule points to while it has this name: a consumer renames it. Neither call raises.
///
/// # Safety
/// `capsule` is a capsule that is being destroyed, or held.
unsafe fn content<T>(capsule: *mut ffi::PyObject, name: &CStr) -> *mut T {
    // SAFETY: as the caller says.
    unsafe {
        match ffi::PyCapsule_IsValid(capsule, name.as_ptr()) {
            0 => std::ptr::null_mut(),
            _ => ffi::PyCapsule_GetPointer(capsule, name.as_ptr()).cast(),
        }
    }
}

/// # Safety
/// Called by Python with a capsule of `export`.
unsafe extern "C" fn drop_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: not consumed, so nobody else frees it.
    unsafe { delete_versioned(content(capsule, VERSIONED)) }
}

/// # Safety
/// Called by Python with a capsule of `export`.
unsafe extern "C" fn drop_legacy(capsule: *mut ffi::PyObject) {
    // SAFETY: not consumed, so nobody else frees it.
    unsafe { delete_legacy(content(capsule, LEGACY)) }
}

/// # Safety
/// Null, or an export that nobody uses any more.
unsafe fn delete_versioned(m: *mut DLManagedTensorVersioned) {
    if m.is_null() {
        return;
    }
    // SAFETY: as the caller says.
    if let Some(delete) = unsafe { (*m).deleter } {
        // SAFETY: once.
        unsafe { delete(m) }
    }
}

/// # Safety
/// As `delete_versioned`.
unsafe fn delete_legacy(m: *mut DLManagedTensor) {
    if m.is_null() {
        return;
    }
    // SAFETY: as the caller says.
    if let Some(delete) = unsafe { (*m).deleter } {
        // SAFETY: once.
        unsafe { delete(m) }
    }
}

/// Somebody's capsule, looked at and not consumed: its own destructor frees it.
pub(crate) struct Imported {
    tensor: *const DLTensor,
    _capsule: Py<PyAny>,
}

impl Imported {
    /// Asks an object for its capsule. Producers older than DLPack 1.0 know no keywords.
    pub(crate) fn of(ob: &Bound<'_, PyAny>) -> PyResult<Imported> {
        let py = ob.py();
        if let Ok(device) = ob.call_method0("__dlpack_device__") {
            let (device, _): (i32, i32) = device.extract()?;
            host_only(py, device)?;
        }
        let keywords = PyDict::new(py);
        keywords.set_item("max_version", (1, 3))?;
        let capsule = match ob.call_method("__dlpack__", (), Some(&keywords)) {
            Err(e) if e.is_instance_of::<PyTypeError>(py) => ob.call_method0("__dlpack__")?,
            capsule => capsule?,
        };
        // SAFETY: a live object; what it points to is read only when it is a capsule of that name.
        let (new, old) = unsafe {
            (
                content::<DLManagedTensorVersioned>(capsule.as_ptr(), VERSIONED),
                content::<DLManagedTensor>(capsule.as_ptr(), LEGACY),
            )
        };
        let tensor: *const DLTensor = if !new.is_null() {
            // SAFETY: the version stands first in every major version.
            let version = unsafe { (*new).version };
            if version.major != 1 {
                let what =
                    format!("the array came as DLPack {}.{}; this package reads 1.x", version.major, version.minor);
                return Err(PyBufferError::new_err(what));
            }
            // SAFETY: a structure of version 1.
            unsafe { &raw const (*new).dl_tensor }
        } else if !old.is_null() {
            // SAFETY: a structure before 1.0.
            unsafe { &raw const (*old).dl_tensor }
        } else {
            return Err(PyBufferError::new_err("__dlpack__ gave no capsule named dltensor or dltensor_versioned"));
        };
        let m = Imported { tensor, _capsule: capsule.unbind() };
        host_only(py, m.tensor().device.device_type)?;
        if m.tensor().ndim < 0 || m.tensor().ndim > 0 && m.tensor().shape.is_null() {
            return Err(PyBufferError::new_err("the array came with an impossible shape"));
        }
        Ok(m)
    }

    /// The tensor.
    pub(crate) fn tensor(&self) -> &DLTensor {
        // SAFETY: it lives as long as the capsule, which this value holds.
        unsafe { &*self.tensor }
    }
}
