//! The buffer protocol: how `np.asarray(x)` and `memoryview(x)` look at the memory.

use std::ffi::c_int;

use baton::Dims;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::base::dtype;
use crate::base::errors::OrRaise;
use crate::objects::tensor::Tensor;

/// A number of the protocol is one of Baton's.
const _: () = assert!(size_of::<ffi::Py_ssize_t>() == size_of::<i64>());

/// What a buffer keeps until it is released. It holds the memory itself: the tensor object may be
/// released before.
struct Lent {
    tensor: baton::Tensor,
    strides: Dims, // in bytes
}

fn f_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    let mut step = 1i64;
    for (n, s) in shape.iter().zip(strides) {
        if *n != 1 && *s != step {
            return shape.contains(&0);
        }
        step = step.wrapping_mul(*n);
    }
    true
}

/// The strides in bytes.
fn strides(t: &baton::Tensor, item: i64) -> Dims {
    match t.strides() {
        Some(all) => all.iter().map(|s| s * item).collect(),
        None => {
            let behind = |d: usize| t.shape()[d + 1..].iter().fold(item, |step, n| step.wrapping_mul((*n).max(1)));
            (0..t.shape().len()).map(behind).collect()
        }
    }
}

/// Fills a view of a tensor.
///
/// # Safety
/// `view` points to a Py_buffer that may be written.
pub(crate) unsafe fn lend(slf: Bound<'_, Tensor>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
    // SAFETY: the caller's view; on an error its owner must be null.
    unsafe { (*view).obj = std::ptr::null_mut() };
    // SAFETY: as the caller says.
    slf.get().look(slf.py(), |t| unsafe { fill(t, view, flags) })?.or_raise(slf.py())??;
    // SAFETY: as above; releasing the view releases its owner.
    unsafe { (*view).obj = slf.into_any().into_ptr() };
    Ok(())
}

/// Fills all of a view but its owner. What it refuses is raised later.
///
/// # Safety
/// As of `lend`.
unsafe fn fill(t: &baton::Tensor, view: *mut ffi::Py_buffer, flags: c_int) -> baton::Result<PyResult<()>> {
    let asked = |f: c_int| flags & f == f;
    let d = t.dtype();
    let Some(format) = dtype::format(d) else { return Ok(Err(dtype::no_format(d))) };
    if asked(ffi::PyBUF_WRITABLE) && t.is_read_only() {
        return Ok(Err(PyBufferError::new_err(
            "the tensor is read-only: copy it, or have its sender give it away for writing",
        )));
    }
    let c_contiguous = t.is_contiguous();
    let f_contiguous = || f_contiguous(t.shape(), &crate::views::view::strides_of(t));
    if (!asked(ffi::PyBUF_STRIDES) || asked(ffi::PyBUF_C_CONTIGUOUS)) && !c_contiguous
        || asked(ffi::PyBUF_F_CONTIGUOUS) && !f_contiguous()
        || asked(ffi::PyBUF_ANY_CONTIGUOUS) && !c_contiguous && !f_contiguous()
    {
        return Ok(Err(PyBufferError::new_err("the tensor's elements do not lie as asked: copy it")));
    }
    let data = match t.is_read_only() {
        true => t.as_ptr()?.cast_mut(),
        false => t.as_mut_ptr()?,
    };
    let item = (d.item_bits() / 8) as i64;
    let lent = Box::new(Lent { tensor: t.clone(), strides: strides(t, item) });
    let or_null = |is: bool, d: &[i64]| if is { d.as_ptr().cast_mut().cast() } else { std::ptr::null_mut() };
    // SAFETY: the caller's view; shape and strides live in the box, which release drops.
    unsafe {
        (*view).buf = data.cast();
        (*view).len = t.num_bytes() as ffi::Py_ssize_t;
        (*view).itemsize = item as ffi::Py_ssize_t;
        (*view).readonly = t.is_read_only().into();
        (*view).ndim = t.shape().len() as c_int;
        (*view).format = if asked(ffi::PyBUF_FORMAT) { format.as_ptr().cast_mut() } else { std::ptr::null_mut() };
        (*view).shape = or_null(asked(ffi::PyBUF_ND), lent.tensor.shape());
        (*view).strides = or_null(asked(ffi::PyBUF_STRIDES), &lent.strides);
        (*view).suboffsets = std::ptr::null_mut();
        (*view).internal = Box::into_raw(lent).cast();
    }
    Ok(Ok(()))
}

/// Ends a view.
///
/// # Safety
/// `view` was filled by `lend` and is released for the first time.
pub(crate) unsafe fn take_back(view: *mut ffi::Py_buffer) {
    // SAFETY: the box that `lend` made.
    drop(unsafe { Box::from_raw((*view).internal.cast::<Lent>()) });
}
