//! The buffer protocol: how `np.asarray(x)` and `memoryview(x)` look at the memory.

use std::ffi::c_int;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::dtype;
use crate::errors::OrRaise;
use crate::tensor::Tensor;

/// What a buffer keeps until it is released. It holds the memory itself: the tensor object may be
/// released before.
struct Lent {
    numbers: Box<[ffi::Py_ssize_t]>, // the shape, then the strides in bytes
    _tensor: baton::Tensor,
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

/// The extents, then the strides in bytes.
fn numbers(t: &baton::Tensor, item: ffi::Py_ssize_t) -> Box<[ffi::Py_ssize_t]> {
    let n = t.shape().len();
    let mut out = vec![0; 2 * n].into_boxed_slice();
    let (shape, strides) = out.split_at_mut(n);
    shape.iter_mut().zip(t.shape()).for_each(|(to, n)| *to = *n as ffi::Py_ssize_t);
    match t.strides() {
        Some(all) => strides.iter_mut().zip(all).for_each(|(to, s)| *to = *s as ffi::Py_ssize_t * item),
        None => {
            let mut step = item;
            for (to, n) in strides.iter_mut().zip(t.shape()).rev() {
                *to = step;
                step = step.wrapping_mul((*n).max(1) as ffi::Py_ssize_t);
            }
        }
    }
    out
}

/// Fills a view of a tensor.
///
/// # Safety
/// `view` points to a Py_buffer that may be written.
pub(crate) unsafe fn lend(slf: Bound<'_, Tensor>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
    let py = slf.py();
    let asked = |f: c_int| flags & f == f;
    // SAFETY: the caller's view; on an error its owner must be null.
    unsafe { (*view).obj = std::ptr::null_mut() };
    let t = slf.get().tensor(py)?;
    let d = t.dtype();
    let Some(format) = dtype::format(d) else { return Err(dtype::no_format(d)) };
    if asked(ffi::PyBUF_WRITABLE) && t.is_read_only() {
        return Err(PyBufferError::new_err(
            "the tensor is read-only: copy it, or have its sender give it away for writing",
        ));
    }
    let c_contiguous = t.is_contiguous();
    let f_contiguous = || f_contiguous(t.shape(), &crate::tensor::strides_of(&t));
    if (!asked(ffi::PyBUF_STRIDES) || asked(ffi::PyBUF_C_CONTIGUOUS)) && !c_contiguous
        || asked(ffi::PyBUF_F_CONTIGUOUS) && !f_contiguous()
        || asked(ffi::PyBUF_ANY_CONTIGUOUS) && !c_contiguous && !f_contiguous()
    {
        return Err(PyBufferError::new_err("the tensor's elements do not lie as asked: copy it"));
    }
    let data = match t.is_read_only() {
        true => t.as_ptr().or_raise(py)?.cast_mut(),
        false => t.as_mut_ptr().or_raise(py)?,
    };
    let item = (d.item_bits() / 8) as ffi::Py_ssize_t;
    let (readonly, len, ndim) = (t.is_read_only(), t.num_bytes(), t.shape().len());
    let mut lent = Box::new(Lent { numbers: numbers(&t, item), _tensor: t });
    let (shape, strides) = lent.numbers.split_at_mut(ndim);
    let (shape, strides) = (shape.as_mut_ptr(), strides.as_mut_ptr());
    let or_null = |is: bool, p| if is { p } else { std::ptr::null_mut() };
    // SAFETY: the caller's view; shape and strides live in the box, which release drops.
    unsafe {
        (*view).buf = data.cast();
        (*view).len = len as ffi::Py_ssize_t;
        (*view).itemsize = item;
        (*view).readonly = readonly.into();
        (*view).ndim = ndim as c_int;
        (*view).format = if asked(ffi::PyBUF_FORMAT) { format.as_ptr().cast_mut() } else { std::ptr::null_mut() };
        (*view).shape = or_null(asked(ffi::PyBUF_ND), shape);
        (*view).strides = or_null(asked(ffi::PyBUF_STRIDES), strides);
        (*view).suboffsets = std::ptr::null_mut();
        (*view).internal = Box::into_raw(lent).cast();
        (*view).obj = slf.into_any().into_ptr();
    }
    Ok(())
}

/// Ends a view.
///
/// # Safety
/// `view` was filled by `lend` and is released for the first time.
pub(crate) unsafe fn take_back(view: *mut ffi::Py_buffer) {
    // SAFETY: the box that `lend` made.
    drop(unsafe { Box::from_raw((*view).internal.cast::<Lent>()) });
}
