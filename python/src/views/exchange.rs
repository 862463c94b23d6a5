//! The exchange table, by which other libraries take and make tensors without calling Python.

use std::ffi::{c_int, c_void};

use baton::dlpack::{DLManagedTensorVersioned, DLPackExchangeAPI, DLTensor, ExportOptions, Managed, exchange_api};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::arrays::tables::NAME;
use crate::base::errors::OrRaise;
use crate::objects::tensor::Tensor;

/// The table of `baton.Tensor`. Its allocator needs no interpreter.
static TABLE: DLPackExchangeAPI = exchange_api(from_py, to_py, Some(borrow));

/// The capsule of the table, as DLPack 1.3 names it.
pub(crate) fn table_capsule(py: Python<'_>) -> PyResult<Py<PyAny>> {
    let table = (&raw const TABLE).cast_mut().cast::<c_void>();
    // SAFETY: table and name are static, and there is nothing to destroy.
    let made = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(table, NAME.as_ptr(), None)) };
    Ok(made?.unbind())
}

/// The address of the table, as DLPack 1.2 had it.
pub(crate) fn table_address() -> usize {
    &raw const TABLE as usize
}

/// Runs what may raise in a function of the table: the error is set as the exception, and -1 returned.
///
/// # Safety
/// The interpreter is held, as the standard says of functions that meet Python objects.
unsafe fn raising(f: impl FnOnce(Python<'_>) -> PyResult<()>) -> c_int {
    // SAFETY: as the caller says.
    let py = unsafe { Python::assume_attached() };
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| f(py))) {
        Ok(Ok(())) => 0,
        Ok(Err(e)) => {
            e.restore(py);
            -1
        }
        Err(_) => {
            PyBufferError::new_err("the exchange table failed: report this").restore(py);
            -1
        }
    }
}

/// The tensor of an object.
///
/// # Safety
/// A live object.
unsafe fn tensor_of(py: Python<'_>, ob: *mut c_void) -> PyResult<baton::Tensor> {
    // SAFETY: as the caller says.
    let ob = unsafe { Bound::from_borrowed_ptr(py, ob.cast()) };
    ob.cast::<Tensor>()?.get().tensor(py)
}

/// # Safety
/// As the DLPack header says: a live object, a place for the result, the interpreter held.
unsafe extern "C" fn from_py(ob: *mut c_void, out: *mut *mut DLManagedTensorVersioned) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        raising(|py| {
            *out = tensor_of(py, ob)?.to_dlpack(ExportOptions::default().private(true)).or_raise(py)?.into_raw();
            Ok(())
        })
    }
}

/// # Safety
/// As the DLPack header says: a tensor to be taken over, a place for the result, the interpreter held.
unsafe extern "C" fn to_py(m: *mut DLManagedTensorVersioned, out: *mut *mut c_void) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        raising(|py| {
            let m = Managed::from_raw(m).or_raise(py)?;
            let t = match m.in_place().or_raise(py)? {
                Some(t) => t, // of whichever session
                None => crate::objects::default::default(py)?.from_dlpack(m).or_raise(py)?,
            };
            *out = Tensor::object(py, t)?.into_ptr().cast();
            Ok(())
        })
    }
}

/// # Safety
/// As the DLPack header says: a live object, a place for the view, the interpreter held.
unsafe extern "C" fn borrow(ob: *mut c_void, out: *mut DLTensor) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        raising(|py| {
            let object = Bound::from_borrowed_ptr(py, ob.cast());
            *out = object.cast::<Tensor>()?.get().lent(py)?;
            Ok(())
        })
    }
}
