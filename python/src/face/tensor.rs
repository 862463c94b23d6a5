//! The methods of tensors.

use std::ffi::c_int;
use std::os::fd::IntoRawFd;

use baton::dlpack::VERSION;
use baton::{DType, Dims};
use pyo3::basic::CompareOp;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyFloat, PyInt, PyNotImplemented, PyTuple};

use crate::arrays::copies::copied;
use crate::arrays::copies::shared;
use crate::arrays::source::Source;
use crate::base::errors::{OrRaise, invalid};
use crate::base::shape::{arguments, shape_of};
use crate::base::text::Text;
use crate::base::wait::{timeout as seconds, wait};
use crate::base::{cuda, dtype};
use crate::objects::handle::{Handle, lease};
use crate::objects::tensor::Tensor;
use crate::views::dlpack::{Request, export};
use crate::views::view::strides_of;
use crate::views::{buffer, exchange, index, torch, view};

/// Where a tensor's memory is and its holders.
fn whereabouts(t: &baton::Tensor) -> String {
    if !t.is_shared() {
        return "in a mapped file".to_owned();
    }
    let own = std::process::id();
    let holders = t.holders().into_iter().map(|h| match h.name.as_str() {
        "" => "the broker".to_owned(),
        _ if h.pid == own => "this process".to_owned(),
        name => format!("{name} (pid {})", h.pid),
    });
    match holders.collect::<Vec<_>>() {
        none if none.is_empty() => "without elements or session".to_owned(),
        some => format!("held by {}", some.join(", ")),
    }
}

fn dims<'py>(py: Python<'py>, d: &[i64]) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(py, d)
}

#[pymethods]
impl Tensor {
    /// The extents.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        dims(py, &self.look(py, |t| Dims::from(t.shape()))?)
    }

    /// The strides, in elements.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        dims(py, &strides_of(&self.tensor(py)?))
    }

    /// What an element is, as ml_dtypes names it: "float32", "bfloat16".
    #[getter]
    fn dtype(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.look(py, baton::Tensor::dtype)?.to_string())
    }

    /// Where the memory is: "cpu", or "cuda:0" as this process counts.
    #[getter]
    fn device(&self, py: Python<'_>) -> PyResult<String> {
        Ok(cuda::name_of(&self.tensor(py)?))
    }

    /// The number of dimensions.
    #[getter]
    fn ndim(&self, py: Python<'_>) -> PyResult<usize> {
        self.look(py, |t| t.shape().len())
    }

    /// The number of elements.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<usize> {
        self.look(py, baton::Tensor::len)
    }

    /// The bytes of the elements.
    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.look(py, baton::Tensor::num_bytes)
    }

    /// Whether the tensor must not be written.
    #[getter]
    fn readonly(&self, py: Python<'_>) -> PyResult<bool> {
        self.look(py, baton::Tensor::is_read_only)
    }

    /// The view with its dimensions reversed.
    #[getter(T)]
    fn transposed(&self, py: Python<'_>) -> PyResult<Tensor> {
        Ok(view::reversed(&self.tensor(py)?).or_raise(py)?.into())
    }

    /// The view with two dimensions exchanged.
    ///
    /// >>> baton.share(np.arange(6).reshape(2, 3)).transpose(0, 1).tolist()
    /// [[0, 3], [1, 4], [2, 5]]
    fn transpose(&self, py: Python<'_>, a: isize, b: isize) -> PyResult<Tensor> {
        Ok(view::exchanged(py, &self.tensor(py)?, a, b)?.into())
    }

    /// The view of another shape; one extent may be -1. The elements must be contiguous.
    ///
    /// >>> baton.share(np.arange(6)).reshape(-1, 3).tolist()
    /// [[0, 1, 2], [3, 4, 5]]
    #[pyo3(signature = (*shape))]
    fn reshape(&self, py: Python<'_>, shape: &Bound<'_, PyTuple>) -> PyResult<Tensor> {
        Ok(view::reshaped(py, &self.tensor(py)?, arguments(shape)?)?.into())
    }

    /// The same bits as another dtype; the last dimension shrinks or grows with its size.
    ///
    /// >>> baton.share(np.ones(2, "float32")).view("uint8").tolist()
    /// [0, 0, 128, 63, 0, 0, 128, 63]
    fn view(&self, py: Python<'_>, dtype: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        Ok(view::retyped(py, &self.tensor(py)?, dtype::parse(dtype)?)?.into())
    }

    /// The view of any shape and strides (in elements) inside the storage.
    ///
    /// >>> baton.share(np.arange(6)).as_strided((2, 4), (2, 1)).tolist()
    /// [[0, 1, 2, 3], [2, 3, 4, 5]]
    fn as_strided(&self, py: Python<'_>, shape: &Bound<'_, PyAny>, strides: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        let t = self.tensor(py)?;
        Ok(t.as_strided(&shape_of(shape)?, Some(&shape_of(strides)?), 0).or_raise(py)?.into())
    }

    /// The same tensor, read-only.
    ///
    /// >>> baton.zeros(3).as_readonly().numpy().flags.writeable
    /// False
    fn as_readonly(&self, py: Python<'_>) -> PyResult<Tensor> {
        Ok(self.tensor(py)?.to_read_only().into())
    }

    /// The tensor on a device, "cuda:0" or "cpu": itself if it is there, else a copy. To a GPU it is
    /// copied after the work of a stream and not waited for; to the CPU it is waited for. stream: None
    /// (the legacy default one), a number, or torch's or CuPy's object.
    ///
    /// >>> x = baton.zeros(3)
    /// >>> x.to("cpu").handle() == x.handle(), x.cpu().device
    /// (False, 'cpu')
    #[pyo3(signature = (device, *, stream=None))]
    fn to(&self, py: Python<'_>, device: Text<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<Tensor> {
        let (t, stream) = (self.tensor(py)?, cuda::stream_of(stream)?);
        Ok(wait(py, || t.to_device(&device, stream))?.into())
    }

    /// The tensor in the machine's memory: to("cpu").
    #[pyo3(signature = (*, stream=None))]
    fn cpu(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<Tensor> {
        self.to(py, Text("cpu"), stream)
    }

    /// The tensor, whose memory a GPU's driver knows from now on: copies by other libraries run beside the processor too;
    /// they keep the tensor until their stream has passed. A slab is registered once and whole. Raises Unsupported.
    ///
    /// >>> baton.zeros(3).pin_memory().torch().is_pinned()  # doctest: +SKIP
    /// True
    #[pyo3(signature = (device=Text("cuda")), text_signature = "($self, device='cuda')")]
    fn pin_memory<'py>(slf: &Bound<'py, Self>, device: Text<'_>) -> PyResult<Bound<'py, Self>> {
        let t = slf.get().tensor(slf.py())?;
        wait(slf.py(), || t.pin(&device))?;
        Ok(slf.clone())
    }

    /// Waits until the sender's stream has written a tensor on a GPU; for one on the CPU it does nothing. timeout:
    /// seconds to wait; None: no limit. Raises Timeout; Expired when the sender ended before it had written.
    ///
    /// >>> baton.zeros(3).written(timeout=5)
    #[pyo3(signature = (timeout=None))]
    fn written(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let (t, timeout) = (self.tensor(py)?, seconds(py, timeout)?);
        wait(py, || t.written(timeout))
    }

    /// Copies an array of the same shape and dtype into the tensor. If one of the two lies on a GPU
    /// it is done after the work of a stream, and waited for unless it goes from the CPU to a GPU.
    ///
    /// >>> x = baton.empty((2, 2), "int64")
    /// >>> x.copy_from(np.eye(2, dtype="int64"))
    /// >>> x.tolist()
    /// [[1, 0], [0, 1]]
    #[pyo3(signature = (a, *, stream=None))]
    fn copy_from(&self, py: Python<'_>, a: &Bound<'_, PyAny>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let t = self.tensor(py)?;
        let stream = cuda::stream_of(stream)?;
        if let Ok(from) = a.cast::<Tensor>() {
            let from = from.get().tensor(py)?;
            if cuda::on_gpu(&t) || cuda::on_gpu(&from) {
                // SAFETY: as of every write by Python: the program answers for what else uses the tensor.
                return wait(py, || unsafe { t.copy_tensor(&from, stream) });
            }
        }
        let Some(s) = Source::of(a)? else {
            return Err(PyTypeError::new_err("copy_from takes what has __dlpack__ or a buffer"));
        };
        if s.dtype() != t.dtype() || *s.shape() != *t.shape() {
            let what = format!("{}{:?} into {}{:?}", s.dtype(), s.shape(), t.dtype(), t.shape());
            return Err(invalid(py, "give the same dtype and shape", what));
        }
        s.copy_to(py, &t, stream)
    }

    /// The value of the only element.
    ///
    /// >>> baton.full(1, 2.5).item()
    /// 2.5
    fn item<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let t = self.tensor(py)?;
        if t.len() != 1 || t.dtype().item_bits() % 8 != 0 {
            let what = format!("{}{:?} is not one number: use np.asarray(x)", t.dtype(), t.shape());
            return Err(PyValueError::new_err(what));
        }
        t.as_ptr().or_raise(py)?; // the processor's memory
        // Others may write the element meanwhile: then the bytes are some of both.
        let bytes = t.view_as(DType::UINT8, &[t.num_bytes() as i64], None, 0).and_then(|b| b.to_vec::<u8>());
        let bytes = bytes.or_raise(py)?;
        dtype::unpack(py, &bytes, t.dtype())
    }

    /// A NumPy array of the same memory; read-only if the tensor is. Types that NumPy has not need
    /// ml_dtypes.
    ///
    /// >>> x = baton.zeros(3)
    /// >>> x.numpy()[:] = [1, 2, 3]
    /// >>> x.tolist()
    /// [1.0, 2.0, 3.0]
    pub(crate) fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("baton._views")?.call_method1("numpy", (slf,))
    }

    /// A torch tensor of the same memory. What is written to that of a read-only tensor stays there.
    ///
    /// >>> x = baton.zeros(3)
    /// >>> x.torch().add_(1)
    /// tensor([1., 1., 1.])
    /// >>> x.tolist()
    /// [1.0, 1.0, 1.0]
    pub(crate) fn torch<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        torch::of(slf)
    }

    /// As `torch`, for a caller that only reads it: then a read-only tensor needs no mapping of its own.
    pub(crate) fn _torch_to_read<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let t = slf.get().tensor(slf.py())?;
        if !cuda::on_gpu(&t)
            && let Ok(seen) = torch::torch(slf.py(), &torch::ToRead(&t))
        {
            return Ok(seen);
        }
        torch::of(slf)
    }

    /// A JAX array of the same memory. JAX holds arrays to be constant: do not write the tensor then.
    ///
    /// >>> baton.full(3, 2.0, "float32").jax().sum()
    /// Array(6., dtype=float32)
    pub(crate) fn jax<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("baton._views")?.call_method1("jax", (slf,))
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

    /// A handle to carry by any means. The broker keeps the tensor for `lease` seconds, whatever becomes of this process;
    /// None: until this session ends.
    ///
    /// >>> h = baton.share(np.arange(3)).handle(lease=10)
    /// >>> baton.open(h).tolist()
    /// [0, 1, 2]
    #[pyo3(signature = (lease=Some(30.0)), text_signature = "($self, lease=30.0)")]
    fn handle(&self, py: Python<'_>, lease: Option<f64>) -> PyResult<Handle> {
        let t = shared(py, self)?;
        let lease = self::lease(py, lease)?;
        Ok(Handle(wait(py, || t.handle(lease))?))
    }

    /// For torch's own sharing: a duplicate of the descriptor of the writable file that the tensor lies
    /// in, the file's bytes, and where the tensor begins; None without elements.
    fn _file(&self, py: Python<'_>) -> PyResult<Option<(i32, u64, u64)>> {
        let t = self.tensor(py)?;
        // SAFETY: torch maps it whole and makes a tensor of this one's bytes alone.
        let Some((fd, bytes, at)) = unsafe { t.file() }.or_raise(py)? else { return Ok(None) };
        Ok(Some((fd.try_clone()?.into_raw_fd(), bytes, at)))
    }

    /// Ends this object, which raises Closed from then on. Arrays made from it keep the memory.
    ///
    /// >>> x = baton.zeros(3)
    /// >>> a = x.numpy()
    /// >>> x.release()
    /// >>> x, a.sum()
    /// (baton.Tensor(released), np.float32(0.0))
    fn release(&self) {
        self.let_go();
    }

    /// Pickles the bytes; where the pickle carries arguments to a process of this machine, as
    /// multiprocessing's and loky's do, or within `baton.pickle_handles()`, a handle.
    fn __reduce_ex__<'py>(slf: &Bound<'py, Self>, protocol: i32) -> PyResult<Bound<'py, PyAny>> {
        static REDUCE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        REDUCE.import(slf.py(), "baton._pickle", "reduce_tensor")?.call1((slf, protocol))
    }

    /// The same memory, as `copy.copy` is to give it.
    fn __copy__(&self, py: Python<'_>) -> PyResult<Tensor> {
        Ok(self.tensor(py)?.into())
    }

    /// DLPack: the exchange table, as version 1.3 names it.
    #[classattr]
    fn __dlpack_c_exchange_api__(py: Python<'_>) -> PyResult<Py<PyAny>> {
        exchange::table_capsule(py)
    }

    /// DLPack: the exchange table, as version 1.2 named it.
    #[classattr]
    fn __c_dlpack_exchange_api__() -> usize {
        exchange::table_address()
    }

    /// DLPack: the newest version that is written.
    fn __dlpack_info__(&self) -> (u32, u32) {
        (VERSION.major, VERSION.minor)
    }

    /// DLPack: a capsule of the memory. Without max_version of 1.0 or later it is the old one, which
    /// cannot say read-only: a read-only tensor is copy-on-write there, and flagged in the new one.
    /// On a GPU stream is the consumer's, which waits until the memory is written: None and 1 the legacy
    /// default one, 2 the thread's, -1 none, else its address.
    /// `version` is what a draft called max_version.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None, version=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
        version: Option<(u32, u32)>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let max_version = max_version.or(version);
        let t = self.tensor(py)?;
        let stream = cuda::consumer(&t, stream.as_ref())?;
        export(py, &t, Request { max_version, device: dl_device, copy, stream })
    }

    /// DLPack: the kind of device, and which.
    fn __dlpack_device__(&self, py: Python<'_>) -> PyResult<(i32, i32)> {
        let d = self.tensor(py)?.device();
        Ok((d.device_type, d.device_id))
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

    /// Writes into the same memory: a number, or what NumPy broadcasts to the part.
    fn __setitem__<'py>(slf: &Bound<'py, Self>, key: &Bound<'py, PyAny>, value: &Bound<'py, PyAny>) -> PyResult<()> {
        slf.get().tensor(slf.py())?.as_mut_ptr().or_raise(slf.py())?;
        Tensor::numpy(slf)?.set_item(key, value)
    }

    /// Refused: it would compare objects where arrays compare elements. What is no tensor decides by itself.
    fn __richcmp__<'py>(
        slf: &Bound<'py, Self>,
        other: &Bound<'py, PyAny>,
        op: CompareOp,
    ) -> PyResult<Borrowed<'py, 'py, PyNotImplemented>> {
        if matches!(op, CompareOp::Eq | CompareOp::Ne) && other.is_instance_of::<Tensor>() {
            let text = "tensors do not compare: ask their arrays, `np.array_equal(a, b)`, or `a is b`";
            return Err(PyTypeError::new_err(text));
        }
        Ok(PyNotImplemented::get(slf.py()))
    }

    /// As of any object: by what it is, not by its elements.
    fn __hash__(slf: &Bound<'_, Self>) -> isize {
        (slf.as_ptr() as usize).rotate_right(4).cast_signed()
    }

    /// Refused: without it `in` would compare objects.
    fn __contains__(&self, _value: &Bound<'_, PyAny>) -> PyResult<bool> {
        Err(PyTypeError::new_err("a tensor does not look for values: ask its array, `value in x.numpy()`"))
    }

    /// The only element's truth. Of several, or none, it is an error, as in NumPy: ask `len(x)`.
    fn __bool__<'py>(slf: &Bound<'py, Self>) -> PyResult<bool> {
        slf.get().item(slf.py())?.is_truthy()
    }

    /// The only element as a float.
    fn __float__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().get_type::<PyFloat>().call1((slf.get().item(slf.py())?,))
    }

    /// The only element as an int.
    fn __int__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().get_type::<PyInt>().call1((slf.get().item(slf.py())?,))
    }

    /// The elements as nested lists of Python's numbers.
    fn tolist<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Tensor::numpy(slf)?.call_method0("tolist")
    }

    /// The views along the first dimension.
    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.len()?; // a tensor without dimensions has none
        // SAFETY: a live object that has items; what is given is a new reference, or null with an error.
        unsafe { Bound::from_owned_ptr_or_err(slf.py(), ffi::PySeqIter_New(slf.as_ptr())) }
    }

    /// A copy of its own memory, as `copy.deepcopy` is to make.
    fn __deepcopy__(&self, py: Python<'_>, _memo: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        Ok(copied(py, &self.tensor(py)?)?.into())
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

    /// For Jupyter: the facts, and a small picture of what looks like one.
    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("baton._show")?.call_method1("html", (slf,))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let Some(t) = self.held() else { return Ok("baton.Tensor(released)".to_owned()) };
        let shape = dims(py, t.shape())?.repr()?;
        let shape = shape.to_str()?;
        let readonly = if t.is_read_only() { ", readonly" } else { "" };
        let device = cuda::name_of(&t);
        let waits =
            if device == "cpu" || t.is_ordered_by_streams() { "" } else { " (its processor waits for streams)" };
        Ok(format!(
            "baton.Tensor({}, shape={}, device={device}{waits}{readonly}, {})",
            t.dtype(),
            shape,
            whereabouts(&t)
        ))
    }
}
