//! Tensors as Python sees them.

use std::ffi::c_int;
use std::sync::Mutex;

use baton::{Code, DType};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyTuple};

use crate::copy::{Layout, copy};
use crate::dlpack::{Request, export};
use crate::errors::{OrRaise, error, invalid};
use crate::handle::{Handle, lease};
use crate::source::Source;
use crate::wait::wait;
use crate::{buffer, dtype, index};

/// A view of shared memory: shape, strides in elements, dtype. Slices and reshapes are views of the
/// same storage. np.asarray(x), memoryview(x) and torch.from_dlpack(x) look at the memory itself.
///
/// Published names and topic messages arrive read-only; queue items, live names and opened handles may
/// be written where the handle may. What was sent is not written any more by its sender.
#[pyclass(frozen, module = "baton", weakref)]
pub(crate) struct Tensor(Mutex<Option<baton::Tensor>>);

impl From<baton::Tensor> for Tensor {
    fn from(t: baton::Tensor) -> Tensor {
        Tensor(Mutex::new(Some(t)))
    }
}

/// The strides in elements, written out.
pub(crate) fn strides_of(t: &baton::Tensor) -> Vec<i64> {
    match t.strides() {
        Some(s) => s.to_vec(),
        None => crate::copy::compact(t.shape(), 1),
    }
}

/// The session that a tensor's copies are made in: its own.
pub(crate) fn copied(py: Python<'_>, t: &baton::Tensor) -> PyResult<baton::Tensor> {
    let bits = t.dtype().item_bits();
    if !bits.is_multiple_of(8) && !t.is_contiguous() {
        return Err(invalid(py, "copy the whole tensor", format!("a strided {} cannot be copied", t.dtype())));
    }
    let made = crate::session::alloc(py, &t.session(), t.dtype(), t.shape())?;
    let (to, from) = (made.as_mut_ptr().or_raise(py)?, t.as_ptr().or_raise(py)?.cast_mut());
    if !bits.is_multiple_of(8) {
        // SAFETY: both are compact tensors of the same bytes, the new one nobody else's.
        unsafe { std::ptr::copy_nonoverlapping(from, to, t.num_bytes() as usize) };
        return Ok(made);
    }
    let item = bits / 8;
    let bytes = |t: &baton::Tensor| -> Vec<i64> { strides_of(t).iter().map(|s| s.wrapping_mul(item as i64)).collect() };
    let (by, own) = (bytes(&made), bytes(t));
    // SAFETY: both views were checked against their storages, which are held.
    unsafe { copy(Layout { data: to, strides: &by }, Layout { data: from, strides: &own }, t.shape(), item as usize) };
    Ok(made)
}

impl Tensor {
    /// The client's tensor. Raises Closed after release.
    pub(crate) fn tensor(&self, py: Python<'_>) -> PyResult<baton::Tensor> {
        let held = self.0.lock().unwrap_or_else(|p| p.into_inner());
        match &*held {
            Some(t) => Ok(t.clone()),
            None => {
                Err(error(py, Code::Closed, "arrays made from it before keep the memory", "the tensor was released"))
            }
        }
    }
}

fn dims<'py>(py: Python<'py>, d: &[i64]) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(py, d)
}

/// Extents: an int or a sequence of ints.
pub(crate) fn shape_of(ob: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    if ob.is_instance_of::<PyInt>() || !ob.hasattr("__len__")? && ob.hasattr("__index__")? {
        return Ok(vec![ob.call_method0("__index__")?.extract()?]);
    }
    ob.try_iter()
        .map_err(|_| PyTypeError::new_err("a shape is an integer or a sequence of integers"))?
        .map(|n| n?.call_method0("__index__")?.extract())
        .collect()
}

/// Extents as arguments: `f(2, 3)` and `f((2, 3))`.
fn arguments(all: &Bound<'_, PyTuple>) -> PyResult<Vec<i64>> {
    match all.len() {
        1 => shape_of(&all.get_item(0)?),
        _ => shape_of(all.as_any()),
    }
}

#[pymethods]
impl Tensor {
    /// The extents.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        dims(py, self.tensor(py)?.shape())
    }

    /// The strides, in elements.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        dims(py, &strides_of(&self.tensor(py)?))
    }

    /// What an element is, as ml_dtypes names it: "float32", "bfloat16".
    #[getter]
    fn dtype(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.tensor(py)?.dtype().to_string())
    }

    /// Where the memory is: "cpu".
    #[getter]
    fn device(&self) -> &'static str {
        "cpu"
    }

    /// The number of dimensions.
    #[getter]
    fn ndim(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.tensor(py)?.shape().len())
    }

    /// The number of elements.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.tensor(py)?.len())
    }

    /// The bytes of the elements.
    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.tensor(py)?.num_bytes())
    }

    /// Whether the tensor must not be written.
    #[getter]
    fn readonly(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.tensor(py)?.is_read_only())
    }

    /// The view with its dimensions reversed.
    #[getter(T)]
    fn transposed(&self, py: Python<'_>) -> PyResult<Tensor> {
        let t = self.tensor(py)?;
        let (mut shape, mut strides) = (t.shape().to_vec(), strides_of(&t));
        shape.reverse();
        strides.reverse();
        Ok(t.as_strided(&shape, Some(&strides), 0).or_raise(py)?.into())
    }

    /// The view with two dimensions exchanged.
    fn transpose(&self, py: Python<'_>, a: isize, b: isize) -> PyResult<Tensor> {
        let t = self.tensor(py)?;
        let (mut shape, mut strides) = (t.shape().to_vec(), strides_of(&t));
        let n = shape.len() as isize;
        let at = |i: isize| match if i < 0 { i + n } else { i } {
            i if (0..n).contains(&i) => Ok(i as usize),
            _ => Err(invalid(py, "count dimensions from 0, or from -1 backwards", format!("dimension {i} of {n}"))),
        };
        let (a, b) = (at(a)?, at(b)?);
        shape.swap(a, b);
        strides.swap(a, b);
        Ok(t.as_strided(&shape, Some(&strides), 0).or_raise(py)?.into())
    }

    /// The view of another shape; one extent may be -1. The elements must be contiguous.
    #[pyo3(signature = (*shape))]
    fn reshape(&self, py: Python<'_>, shape: &Bound<'_, PyTuple>) -> PyResult<Tensor> {
        let t = self.tensor(py)?;
        let mut to = arguments(shape)?;
        if !t.is_contiguous() {
            return Err(invalid(py, "copy it by baton.share(x.numpy())", "the elements are not contiguous"));
        }
        let n = t.len() as i64;
        if let Some(open) = to.iter().position(|d| *d == -1) {
            let rest = to.iter().enumerate().filter(|(i, _)| *i != open).try_fold(1i64, |n, (_, d)| n.checked_mul(*d));
            to[open] = rest.filter(|r| *r > 0).map_or(-1, |r| n / r);
        }
        let product = to.iter().try_fold(1i64, |n, d| n.checked_mul(*d).filter(|_| *d >= 0));
        if product != Some(n) {
            return Err(invalid(py, "keep the number of elements", format!("{n} elements as {to:?}")));
        }
        Ok(t.as_strided(&to, None, 0).or_raise(py)?.into())
    }

    /// The same bits as another dtype; the last dimension shrinks or grows with its size.
    fn view(&self, py: Python<'_>, dtype: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        let t = self.tensor(py)?;
        let d = dtype::parse(dtype)?;
        let (old, new) = (t.dtype().item_bits(), d.item_bits());
        if old == new {
            return Ok(t.view_as(d, t.shape(), t.strides(), 0).or_raise(py)?.into());
        }
        let mut shape = t.shape().to_vec();
        let bits = shape.last().map(|n| u128::from(n.unsigned_abs()) * u128::from(old));
        let (Some(bits), true) = (bits, t.is_contiguous()) else {
            return Err(invalid(py, "view a contiguous tensor", format!("{} as {d}", t.dtype())));
        };
        let (Ok(n), 0) = (i64::try_from(bits / u128::from(new)), bits % u128::from(new)) else {
            return Err(invalid(
                py,
                "use a dtype whose size divides the last dimension",
                format!("{} as {d}", t.dtype()),
            ));
        };
        if let Some(last) = shape.last_mut() {
            *last = n;
        }
        Ok(t.view_as(d, &shape, None, 0).or_raise(py)?.into())
    }

    /// The view of any shape and strides (in elements) inside the storage.
    fn as_strided(&self, py: Python<'_>, shape: &Bound<'_, PyAny>, strides: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        let t = self.tensor(py)?;
        Ok(t.as_strided(&shape_of(shape)?, Some(&shape_of(strides)?), 0).or_raise(py)?.into())
    }

    /// The same tensor, read-only.
    fn as_readonly(&self, py: Python<'_>) -> PyResult<Tensor> {
        Ok(self.tensor(py)?.as_read_only().into())
    }

    /// Copies an array of the same shape and dtype into the tensor.
    fn copy_from(&self, py: Python<'_>, a: &Bound<'_, PyAny>) -> PyResult<()> {
        let t = self.tensor(py)?;
        let Some(s) = Source::of(a)? else {
            return Err(PyTypeError::new_err("copy_from takes what has __dlpack__ or a buffer"));
        };
        if s.dtype != t.dtype() || s.shape != t.shape() {
            let what = format!("{}{:?} into {}{:?}", s.dtype, s.shape, t.dtype(), t.shape());
            return Err(invalid(py, "give the same dtype and shape", what));
        }
        s.copy_to(py, &t)
    }

    /// The value of the only element.
    fn item<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let t = self.tensor(py)?;
        if t.len() != 1 || t.dtype().item_bits() % 8 != 0 {
            return Err(PyValueError::new_err(format!(
                "item() is for one element, this is {}{:?}",
                t.dtype(),
                t.shape()
            )));
        }
        let n = t.num_bytes() as usize;
        let mut bytes = vec![0u8; n];
        // SAFETY: the element lies inside the storage, which `t` holds; others may write it meanwhile,
        // then the bytes are some of both.
        unsafe { std::ptr::copy_nonoverlapping(t.as_ptr().or_raise(py)?, bytes.as_mut_ptr(), n) };
        dtype::unpack(py, &bytes, t.dtype())
    }

    /// A NumPy array of the same memory; read-only where the tensor is. Types that NumPy has not need
    /// ml_dtypes.
    pub(crate) fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("baton._views")?.call_method1("numpy", (slf,))
    }

    /// For NumPy, where the buffer protocol has no letter for the dtype.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("baton._views")?.call_method1("array", (slf, dtype, copy))
    }

    /// A handle to carry by any means. The broker keeps the tensor for `lease` seconds; None: until
    /// this session ends.
    #[pyo3(signature = (lease=Some(30.0)))]
    fn handle(&self, py: Python<'_>, lease: Option<f64>) -> PyResult<Handle> {
        let t = self.tensor(py)?;
        let lease = self::lease(py, lease)?;
        Ok(Handle(wait(py, || t.handle(lease))?))
    }

    /// Ends this object. Arrays made from it keep the memory.
    fn release(&self) {
        let held = self.0.lock().unwrap_or_else(|p| p.into_inner()).take();
        drop(held);
    }

    /// Pickles a handle, never the bytes. The tensor is kept until it is unpickled once, or until 30 s
    /// after this session ended.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        let t = self.tensor(py)?;
        let h = wait(py, || t.handle(baton::Lease::Once))?;
        Ok((py.import("baton")?.getattr("open")?, (h.to_json(),)))
    }

    /// DLPack: a capsule of the memory. Without max_version of 1.0 or later it is the old one, which
    /// cannot say read-only: a read-only tensor is copy-on-write there, and flagged in the new one.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if stream.is_some() {
            return Err(pyo3::exceptions::PyBufferError::new_err("a tensor on the CPU has no stream: leave it out"));
        }
        export(py, &self.tensor(py)?, Request { max_version, device: dl_device, copy })
    }

    /// DLPack: the CPU.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (baton::dlpack::CPU, 0)
    }

    /// # Safety
    /// Called by Python with a view to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        // SAFETY: as the caller says.
        unsafe { buffer::lend(slf, view, flags) }
    }

    /// # Safety
    /// Called by Python with a view that `__getbuffer__` filled, once.
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: as the caller says.
        unsafe { buffer::take_back(view) }
    }

    fn __getitem__(&self, key: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        Ok(index::get(&self.tensor(key.py())?, key)?.into())
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        match self.tensor(py)?.shape().first() {
            Some(n) => Ok(*n as usize),
            None => Err(PyTypeError::new_err("a tensor without dimensions has no length")),
        }
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) {
        self.release();
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let held = self.0.lock().unwrap_or_else(|p| p.into_inner()).clone();
        let Some(t) = held else { return Ok("baton.Tensor(released)".to_owned()) };
        let shape = dims(py, t.shape())?.repr()?;
        let shape = shape.to_str()?;
        let readonly = if t.is_read_only() { ", readonly" } else { "" };
        Ok(format!("baton.Tensor({}, shape={}, device=cpu{readonly})", t.dtype(), shape))
    }
}

/// Fills a new tensor with copies of one element.
pub(crate) fn fill(py: Python<'_>, t: &baton::Tensor, element: &[u8]) -> PyResult<()> {
    let n = t.num_bytes() as usize;
    if n == 0 {
        return Ok(());
    }
    let to = crate::copy::Address(t.as_mut_ptr().or_raise(py)?);
    py.detach(|| {
        let mut done = element.len().min(n);
        // SAFETY: the tensor is compact, new, and has `n` bytes, of which `done` are filled.
        unsafe {
            std::ptr::copy_nonoverlapping(element.as_ptr(), to.get(), done);
            while done < n {
                let more = done.min(n - done);
                std::ptr::copy_nonoverlapping(to.get(), to.get().add(done), more);
                done += more;
            }
        }
    });
    Ok(())
}

/// The dtype that a Python number has when none is given.
pub(crate) fn natural(value: &Bound<'_, PyAny>) -> DType {
    use pyo3::types::{PyBool, PyComplex, PyFloat};
    if value.is_instance_of::<PyBool>() {
        DType::BOOL
    } else if value.is_instance_of::<PyInt>() {
        DType::INT64
    } else if value.is_instance_of::<PyComplex>() {
        DType::COMPLEX128
    } else if value.is_instance_of::<PyFloat>() {
        DType::FLOAT64
    } else {
        DType::FLOAT32
    }
}
