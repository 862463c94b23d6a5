//! Arrays of others: anything with the buffer protocol or `__dlpack__`, to be copied into shared
//! memory.

use std::ffi::CStr;
use std::pin::Pin;

use baton::{Code, DType};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::copy::{Address, Layout, copy};
use crate::dlpack::Imported;
use crate::dtype;
use crate::errors::{error, to_py};

/// A view of somebody's memory, held until it is dropped.
pub(crate) struct Source {
    data: *mut u8,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<i64>,
    strides: Vec<i64>, // in bytes
    _keep: Keep,
}

#[expect(dead_code, reason = "held for their drop")]
enum Keep {
    Buffer(Buffer),
    Capsule(Imported),
}

/// A Py_buffer, which must not move while it is lent.
struct Buffer(Pin<Box<ffi::Py_buffer>>);

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: it was filled by PyObject_GetBuffer and is released once, by a holder of the
        // interpreter: sources never leave the call that made them.
        unsafe { ffi::PyBuffer_Release(&mut *self.0) }
    }
}

impl Source {
    /// The view of an object; `None` when it is no array.
    pub(crate) fn of(ob: &Bound<'_, PyAny>) -> PyResult<Option<Source>> {
        // SAFETY: a live object.
        if unsafe { ffi::PyObject_CheckBuffer(ob.as_ptr()) } != 0 {
            match Source::of_buffer(ob) {
                Ok(Some(s)) => return Ok(Some(s)),
                Ok(None) => {}
                // NumPy has no letters for ml_dtypes and others: by the other door, if there is one.
                Err(e) if ob.hasattr("__dlpack__")? => drop(e),
                Err(e) => return Err(e),
            }
        }
        if ob.hasattr("__dlpack__")? {
            return Source::of_dlpack(ob).map(Some);
        }
        Ok(None)
    }

    fn of_buffer(ob: &Bound<'_, PyAny>) -> PyResult<Option<Source>> {
        let mut b = Box::pin(ffi::Py_buffer::new());
        // SAFETY: a live object and a buffer to fill.
        if unsafe { ffi::PyObject_GetBuffer(ob.as_ptr(), &mut *b, ffi::PyBUF_STRIDES | ffi::PyBUF_FORMAT) } != 0 {
            return Err(PyErr::fetch(ob.py()));
        }
        let b = Buffer(b);
        let v = &*b.0;
        let item = v.itemsize as usize;
        let format = match v.format.is_null() {
            true => c"B",
            // SAFETY: a string of the exporter, alive as long as the view.
            false => unsafe { CStr::from_ptr(v.format) },
        };
        let Some(dtype) = dtype::from_format(format, item) else { return Ok(None) };
        // SAFETY: `ndim` numbers each, alive as long as the view; strides were asked for.
        let (shape, strides) = unsafe { (numbers(v.shape, v.ndim), numbers(v.strides, v.ndim)) };
        Ok(Some(Source { data: v.buf.cast(), dtype, shape, strides, _keep: Keep::Buffer(b) }))
    }

    fn of_dlpack(ob: &Bound<'_, PyAny>) -> PyResult<Source> {
        let m = Imported::of(ob)?;
        let t = m.tensor();
        let item = t.dtype.item_bits() / 8;
        if t.dtype.item_bits() % 8 != 0 {
            return Err(PyBufferError::new_err(format!(
                "{} is narrower than a byte: pack it into uint8 first",
                t.dtype
            )));
        }
        // SAFETY: `ndim` numbers, alive as long as the capsule.
        let shape = unsafe { numbers(t.shape, t.ndim) };
        let strides = match t.strides.is_null() {
            true => crate::copy::compact(&shape, item as usize),
            // SAFETY: as above.
            false => unsafe { numbers(t.strides, t.ndim) }.iter().map(|s| s.wrapping_mul(item as i64)).collect(),
        };
        let data = t.data.cast::<u8>().wrapping_add(t.byte_offset as usize);
        if data.is_null() && !shape.contains(&0) {
            return Err(PyBufferError::new_err("the array has elements and no memory"));
        }
        Ok(Source { data, dtype: t.dtype, shape, strides, _keep: Keep::Capsule(m) })
    }

    /// Bytes that a compact copy takes.
    pub(crate) fn num_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.dtype.num_bytes(&self.shape).map_err(|e| to_py(py, &e))
    }

    /// Copies the elements to a tensor of the same shape and size of elements, without the
    /// interpreter where that is worth it.
    pub(crate) fn copy_to(&self, py: Python<'_>, t: &baton::Tensor) -> PyResult<()> {
        let data = Address(t.as_mut_ptr().map_err(|e| to_py(py, &e))?);
        let item = (self.dtype.item_bits() / 8) as usize;
        let strides: Vec<i64> = crate::tensor::strides_of(t).iter().map(|s| s.wrapping_mul(item as i64)).collect();
        let (from, shape, own) = (Address(self.data), &self.shape[..], &self.strides[..]);
        let run = || {
            let to = Layout { data: data.get(), strides: &strides };
            // SAFETY: the source's owner says that its view may be read while it is lent, the tensor's
            // view was checked against its storage.
            unsafe { copy(to, Layout { data: from.get(), strides: own }, shape, item) }
        };
        match self.num_bytes(py)? {
            0..65_536 => run(),
            _ => py.detach(run),
        }
        Ok(())
    }
}

/// # Safety
/// `p` points to `n` numbers, or is null, which gives none.
unsafe fn numbers<T: Copy>(p: *const T, n: i32) -> Vec<i64>
where
    i64: TryFrom<T>,
{
    if p.is_null() {
        return Vec::new();
    }
    // SAFETY: as the caller says.
    let all = unsafe { std::slice::from_raw_parts(p, n.max(0) as usize) };
    all.iter().map(|v| i64::try_from(*v).unwrap_or(0)).collect()
}

/// Copies an array into shared memory; a tensor is given back as it is.
pub(crate) fn share(session: &baton::Session, ob: &Bound<'_, PyAny>) -> PyResult<baton::Tensor> {
    let py = ob.py();
    let Some(s) = Source::of(ob)? else {
        let what = format!("a {} is no array: give what has __dlpack__ or a buffer", ob.get_type().name()?);
        return Err(PyTypeError::new_err(what));
    };
    let t = crate::session::alloc(py, session, s.dtype, &s.shape)?;
    s.copy_to(py, &t)?;
    Ok(t)
}

/// Refuses what lies where this process's processor does not look.
pub(crate) fn host_only(py: Python<'_>, device: i32) -> PyResult<()> {
    const CUDA_HOST: i32 = 3;
    if device == baton::dlpack::CPU || device == CUDA_HOST {
        return Ok(());
    }
    let what = format!("the array lies on DLPack device type {device}");
    Err(error(py, Code::Unsupported, "copy it to the host first, as by .cpu()", what))
}
