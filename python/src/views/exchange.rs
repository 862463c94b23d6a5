//! The exchange table, by which other libraries take and make tensors without calling Python.

use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;

use baton::DType;
use baton::dlpack::{
    DLDevice, DLManagedTensorVersioned, DLPackExchangeAPI, DLTensor, ExportOptions, Managed, VERSION, exchange_api,
};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::arrays::tables::NAME;
use crate::base::errors::OrRaise;
use crate::base::wait::wait;
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

/// The tensor of a structure, which stays its owner's: where it lies in shared memory of whichever session, else copied
/// into that of the default one.
///
/// # Safety
/// It keeps DLPack's rules during the call.
unsafe fn taken_from(py: Python<'_>, m: &Managed) -> PyResult<baton::Tensor> {
    if let Some(t) = m.in_place().or_raise(py)? {
        return Ok(t);
    }
    // SAFETY: a live structure, of version 1: another one was refused above.
    let mut lent = unsafe { DLManagedTensorVersioned { deleter: None, ..m.as_ptr().read() } };
    // SAFETY: as the caller says; without a deleter nothing is given back.
    let lent = unsafe { Managed::from_raw(&mut lent) }.or_raise(py)?;
    let session = crate::objects::default::default(py)?;
    wait(py, || session.from_dlpack(lent))
}

/// # Safety
/// As the DLPack header says: a tensor whose ownership is taken, a place for the result, the interpreter held.
unsafe extern "C" fn to_py(m: *mut DLManagedTensorVersioned, out: *mut *mut c_void) -> c_int {
    // SAFETY: as the caller says.
    unsafe {
        raising(|py| {
            // The caller's until there is an object: one that gets an error deletes it, as tvm-ffi does.
            let m = ManuallyDrop::new(Managed::from_raw(m).or_raise(py)?);
            let t = taken_from(py, &m)?;
            *out = Tensor::object(py, t)?.into_ptr().cast();
            drop(ManuallyDrop::into_inner(m));
            Ok(())
        })
    }
}

/// The tensor of elements that are lent for this call: where they lie in shared memory, else copied. Strides are those
/// of elements, and none of a compact one.
#[pyfunction]
pub(crate) fn of_lent(
    py: Python<'_>,
    data: usize,
    mut shape: Vec<i64>,
    mut strides: Vec<i64>,
    dtype: (u8, u8, u16),
    device: (i32, i32),
) -> PyResult<Py<Tensor>> {
    if !strides.is_empty() && strides.len() != shape.len() {
        return Err(PyBufferError::new_err("a tensor has as many strides as dimensions"));
    }
    let dl_tensor = DLTensor {
        data: std::ptr::with_exposed_provenance_mut(data),
        device: DLDevice { device_type: device.0, device_id: device.1 },
        ndim: shape.len() as i32,
        dtype: DType { code: dtype.0, bits: dtype.1, lanes: dtype.2 },
        shape: shape.as_mut_ptr(),
        strides: if strides.is_empty() { std::ptr::null_mut() } else { strides.as_mut_ptr() },
        byte_offset: 0,
    };
    let (manager_ctx, flags) = (std::ptr::null_mut(), 0);
    let mut lent = DLManagedTensorVersioned { version: VERSION, manager_ctx, deleter: None, flags, dl_tensor };
    // SAFETY: a structure that lives as long as this call and has no deleter; the addresses are those of a view that
    // another library has given a function of this process, as `baton.tvm_ffi` calls it.
    let t = unsafe { taken_from(py, &Managed::from_raw(&mut lent).or_raise(py)?)? };
    Ok(Tensor::object(py, t)?.unbind())
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
