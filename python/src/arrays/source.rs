//! Arrays of others: anything with the buffer protocol, an exchange table or `__dlpack__`, to be
//! copied into shared memory, or referenced where it lies there.

use std::ffi::{CStr, c_char};
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Range;

use baton::dlpack::{DLDevice, DLPackExchangeAPI, DLTensor, Gather, device, flag};
use baton::{DType, Dims, Session, Stream};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::arrays::import::Imported;
use crate::arrays::room::Room;
use crate::arrays::tables::{borrow_to, table_for};
use crate::base::cuda::on_gpu;
use crate::base::dtype;
use crate::base::errors::{OrRaise, invalid};
use crate::base::refused::{
    of_no_dtype, of_no_format, of_no_memory, reachable, refuse_mask, refuse_narrow, refuse_strings,
};
use crate::base::wait::wait;
use crate::objects::tensor::Tensor;

/// Dimensions that an array may have.
const MOST_DIMENSIONS: i32 = 64;
/// Copies shorter than this keep the interpreter.
const SHORT: u64 = 65_536;

/// A view of another library's memory, held until it is dropped. Its shape and strides stand in what is kept.
pub(crate) struct Source {
    view: DLTensor,
    flags: u64,
    _keep: Keep,
}

#[expect(dead_code, reason = "held for their drop")]
enum Keep {
    Buffer(Box<Buffer>),
    Import(Imported),
    Object(Py<PyAny>),
    /// Whose bytes they are, and how many.
    Bytes(Py<PyAny>, Box<i64>),
    Tensor(Box<baton::Tensor>),
}

/// A Py_buffer, which must not move while it is lent, and its strides in elements unless they are compact.
struct Buffer {
    lent: ffi::Py_buffer,
    strides: Option<Dims>,
}

impl Buffer {
    /// The buffer of an object, with its shape, strides and format.
    fn of(ob: &Bound<'_, PyAny>) -> PyResult<Box<Buffer>> {
        let mut b = Box::new(Buffer { lent: ffi::Py_buffer::new(), strides: None });
        // SAFETY: a live object and a buffer to fill.
        if unsafe { ffi::PyObject_GetBuffer(ob.as_ptr(), &mut b.lent, ffi::PyBUF_STRIDES | ffi::PyBUF_FORMAT) } != 0 {
            b.lent.obj = std::ptr::null_mut(); // nothing was lent
            return Err(PyErr::fetch(ob.py()));
        }
        Ok(b)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: it was filled by PyObject_GetBuffer, or lends nothing, and is released once, by a holder of
        // the interpreter: sources never leave the call that made them.
        unsafe { ffi::PyBuffer_Release(&mut self.lent) }
    }
}

/// A source that the client keeps, and lets go on any thread.
struct Kept(ManuallyDrop<Source>);

// SAFETY: it is not looked at any more, and dropped by a holder of the interpreter.
unsafe impl Send for Kept {}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: once, here. When the interpreter has ended its objects are gone.
        let _ = Python::try_attach(|_| unsafe { ManuallyDrop::drop(&mut self.0) });
    }
}

/// Views that a call without the interpreter looks at, each with its flags.
struct Lent<'a, V>(V, PhantomData<&'a Source>);

// SAFETY: addresses are numbers; what they lead to is kept by the sources, which outlive the call.
unsafe impl<V> Send for Lent<'_, V> {}
// SAFETY: as above; nothing writes the views meanwhile.
unsafe impl<V> Sync for Lent<'_, V> {}

impl<V> Lent<'_, V> {
    // Methods, so that closures take the whole.
    fn get(&self) -> &V {
        &self.0
    }

    fn take(self) -> V {
        self.0
    }
}

/// Whether an object is a tensor or an array.
pub(crate) fn is_array(ob: &Bound<'_, PyAny>) -> PyResult<bool> {
    // SAFETY: a live object.
    let buffer = unsafe { ffi::PyObject_CheckBuffer(ob.as_ptr()) } != 0;
    Ok(buffer || ob.hasattr("__dlpack__")?)
}

/// Whether a tensor's elements may be lent without a conjugation or a negation that torch has put off: of
/// numbers that are not complex only those that are the imaginary parts of some. These do not lie side by side,
/// and where `as_strided` says that they do, they begin behind a real part. To ask torch for each of many
/// tensors would cost as much as the copy.
pub(crate) fn may_be_lazy(t: &DLTensor) -> bool {
    match t.dtype {
        DType { code: 5, .. } => true,
        DType::FLOAT16 | DType::FLOAT32 | DType::FLOAT64 if !t.strides.is_null() => {
            let item = usize::from(t.dtype.bits) / 8;
            if !(t.data.addr().wrapping_add(t.byte_offset as usize)).is_multiple_of(2 * item) {
                return true;
            }
            let mut next = 1i64;
            for i in (0..t.ndim.max(0) as usize).rev() {
                // SAFETY: `ndim` numbers each, lent with the view.
                let (n, by) = unsafe { (t.shape.add(i).read_unaligned(), t.strides.add(i).read_unaligned()) };
                if n != 1 && by != next {
                    return true;
                }
                next = next.wrapping_mul(n);
            }
            next == 1
        }
        _ => false,
    }
}

/// The tensor with what torch has put off done; `None` where that is nothing.
fn made_real<'py>(ob: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let put_off = |what: &str| match ob.getattr_opt(what)? {
        Some(f) => f.call0()?.is_truthy(),
        None => Ok(false),
    };
    Ok(match put_off("is_conj")? || put_off("is_neg")? {
        true => Some(ob.call_method0("resolve_conj")?.call_method0("resolve_neg")?),
        false => None,
    })
}

impl Source {
    /// The view of an object; `None` when it is no array.
    pub(crate) fn of(ob: &Bound<'_, PyAny>) -> PyResult<Option<Source>> {
        if let Ok(t) = ob.cast::<Tensor>() {
            let t = t.get().tensor(ob.py())?;
            if on_gpu(&t) {
                return Source::of_tensor(ob.py(), &t).map(Some);
            }
        }
        // SAFETY: a live object.
        let buffer = unsafe { ffi::PyObject_CheckBuffer(ob.as_ptr()) } != 0;
        let mut refused = None;
        if buffer {
            refuse_mask(ob)?;
            refused = match Source::of_buffer(ob) {
                // NumPy's scalars of time lend eight bytes as if they were numbers.
                Ok(Some(s)) if s.dtype() == DType::UINT8 && *s.shape() == [8] => {
                    return of_no_dtype(ob).map_or(Ok(Some(s)), Err);
                }
                Ok(Some(s)) => return Ok(Some(s)),
                Ok(None) => None,
                Err(e) => Some(e),
            };
            // NumPy has no letters for ml_dtypes.
            if let Some(s) = Source::of_bits(ob)? {
                return Ok(Some(s));
            }
        }
        if let Some(s) = Source::of_lent(ob)? {
            return Ok(Some(s));
        }
        if ob.hasattr("__dlpack__")? {
            let own = refused.filter(|e| e.is_instance_of::<PyValueError>(ob.py()));
            let better = |e| of_no_dtype(ob).or_else(|| of_no_memory(ob)).or(own).unwrap_or(e);
            return Source::of_dlpack(ob).map(Some).map_err(better);
        }
        match refused {
            Some(e) => Err(e),
            None if buffer => Err(of_no_format(ob)?),
            None => Ok(None),
        }
    }

    /// The view that a tensor's type lends by its table: the cheapest there is. On a GPU it would not wait
    /// for the stream that writes it.
    pub(crate) fn of_lent(ob: &Bound<'_, PyAny>) -> PyResult<Option<Source>> {
        match table_for(ob)? {
            Some(table) => Source::lent_by(ob, table),
            None => Ok(None),
        }
    }

    /// As `of_lent`, by the table of the object's type.
    fn lent_by(ob: &Bound<'_, PyAny>, table: &DLPackExchangeAPI) -> PyResult<Option<Source>> {
        let mut made = MaybeUninit::uninit();
        // SAFETY: it was written, as is said.
        Ok(Source::lend_to(ob, table, &mut made)?.then(|| unsafe { made.assume_init() }))
    }

    /// As `of_lent`, by the table of the object's type, behind others; false where there is none.
    #[inline(always)]
    pub(crate) fn push_lent(all: &mut Vec<Source>, ob: &Bound<'_, PyAny>, table: &DLPackExchangeAPI) -> PyResult<bool> {
        let n = all.len();
        all.reserve(1);
        let Some(at) = all.spare_capacity_mut().first_mut() else { return Ok(false) };
        let lent = Source::lend_to(ob, table, at)?;
        // SAFETY: it was written, as is said, in the room that was reserved.
        unsafe { all.set_len(n + usize::from(lent)) };
        Ok(lent)
    }

    /// Makes the view that a table lends where it is to stay, and tells whether it did. The table writes it in
    /// parts: to move it then, in larger ones, would wait for all of them.
    #[inline(always)]
    fn lend_to(ob: &Bound<'_, PyAny>, table: &DLPackExchangeAPI, at: &mut MaybeUninit<Source>) -> PyResult<bool> {
        let at = at.as_mut_ptr();
        // SAFETY: the place is exclusive, and what is not yet written may be anything.
        let view = unsafe { &mut *(&raw mut (*at).view).cast::<MaybeUninit<DLTensor>>() };
        if !borrow_to(ob, table, view) {
            return Ok(false);
        }
        // SAFETY: filled, as it says.
        let t = unsafe { view.assume_init_ref() };
        if !device::is_host(t.device.device_type) {
            return Ok(false);
        }
        if may_be_lazy(t)
            && let Some(made) = made_real(ob)?
        {
            return Source::lend_anew(&made, table, at);
        }
        refuse_narrow(ob, t)?;
        check(ob.py(), t)?;
        // SAFETY: a place for each; nothing that must be dropped stood there.
        unsafe {
            (&raw mut (*at).flags).write(0);
            (&raw mut (*at)._keep).write(Keep::Object(ob.clone().unbind()));
        }
        Ok(true)
    }

    #[cold]
    fn lend_anew(ob: &Bound<'_, PyAny>, table: &DLPackExchangeAPI, at: *mut Source) -> PyResult<bool> {
        let made = Source::lent_by(ob, table)?;
        // SAFETY: the place of `lend_to`, in which nothing stands that must be dropped.
        Ok(made.map(|made| unsafe { at.write(made) }).is_some())
    }

    /// The view of a tensor, to be copied.
    pub(crate) fn of_tensor(py: Python<'_>, t: &baton::Tensor) -> PyResult<Source> {
        let data = match on_gpu(t) {
            true => std::ptr::without_provenance_mut(t.device_ptr(false).or_raise(py)? as usize),
            false => t.as_ptr().or_raise(py)?.cast_mut(),
        };
        let t = Box::new(t.clone()); // which stays where it is
        let (shape, strides) = (t.shape(), t.strides().map_or(std::ptr::null(), <[i64]>::as_ptr));
        let mut view = host(data, t.dtype(), (shape.as_ptr(), shape.len() as i32), strides);
        view.device = t.device();
        let flags = if t.is_read_only() { flag::READ_ONLY } else { 0 };
        Ok(Source { view, flags, _keep: Keep::Tensor(t) })
    }

    /// Whether it is the view of a tensor of Baton's.
    pub(crate) fn is_tensor(&self) -> bool {
        matches!(self._keep, Keep::Tensor(_))
    }

    fn lent(&self) -> Lent<'_, (&DLTensor, u64)> {
        Lent((&self.view, self.flags), PhantomData)
    }

    /// The tensors of sources on the host, of which those that are copied have one storage together.
    pub(crate) fn gather<'a>(
        py: Python<'_>,
        session: &Session,
        all: impl Iterator<Item = &'a Source>,
        how: Gather,
    ) -> PyResult<Vec<baton::Tensor>> {
        let mut all = all.map(|s| (&s.view, s.flags)).peekable();
        if all.peek().is_none() {
            return Ok(Vec::new());
        }
        let lent = Lent(all, PhantomData);
        // SAFETY: the owners say that their views may be read while they are lent.
        wait(py, || unsafe { session.gather(lent.take(), how) })
    }

    /// Room for tensors like sources on the host, in one storage.
    pub(crate) fn room_for<'a>(
        py: Python<'_>,
        session: &Session,
        all: impl Iterator<Item = &'a Source> + Clone,
        room: Room,
    ) -> PyResult<Vec<baton::Tensor>> {
        let lent = Lent(all.map(|s| (s.dtype(), s.shape())), PhantomData);
        wait(py, || session.room_for(lent.take(), room.pages, room.timeout))
    }

    fn of_buffer(ob: &Bound<'_, PyAny>) -> PyResult<Option<Source>> {
        let py = ob.py();
        let mut b = Buffer::of(ob)?;
        let v = &b.lent;
        let format = match v.format.is_null() {
            true => c"B",
            // SAFETY: a string of the exporter, alive as long as the view.
            false => unsafe { CStr::from_ptr(v.format) },
        };
        let Some(dtype) = dtype::from_format(format, v.itemsize as usize) else { return Ok(None) };
        // SAFETY: a live view.
        if unsafe { ffi::PyBuffer_IsContiguous(v, b'C' as c_char) } == 0 {
            let item = v.itemsize as i64;
            // SAFETY: `ndim` numbers, alive as long as the view; strides were asked for.
            let strides = unsafe { numbers(v.strides.cast(), v.ndim) };
            if let Some(s) = strides.iter().find(|s| **s % item != 0) {
                let what = format!("elements of {item} bytes lie {s} bytes apart");
                return Err(invalid(py, "give np.ascontiguousarray(a)", what));
            }
            b.strides = Some(strides.iter().map(|s| s / item).collect());
        }
        let (v, strides) = (&b.lent, b.strides.as_ref().map_or(std::ptr::null(), |s| s.as_ptr()));
        let view = host(v.buf.cast(), dtype, (v.shape.cast(), v.ndim), strides);
        let flags = if v.readonly != 0 { flag::READ_ONLY } else { 0 };
        Ok(Some(Source { view, flags, _keep: Keep::Buffer(b) }))
    }

    /// The view of an array of NumPy's or JAX's of a type that ml_dtypes has and the buffer protocol has not.
    fn of_bits(ob: &Bound<'_, PyAny>) -> PyResult<Option<Source>> {
        let Some(class) = ob.getattr_opt("dtype")? else { return Ok(None) };
        let Ok(dtype) = dtype::parse(&class) else { return Ok(None) };
        // TensorFlow's types have no size: its tensors come by DLPack.
        let bits = match class.getattr_opt("itemsize")?.map(|n| n.extract()).transpose()? {
            Some(1) => "uint8",
            Some(2) => "uint16",
            Some(4) if dtype == DType::COMPLEX32 => "uint32",
            _ => return Ok(None),
        };
        // JAX's view packs what is narrower than a byte, where NumPy's has a byte for each element.
        let a = match dtype.bits < 8 {
            true => ob.py().import("numpy")?.call_method1("asarray", (ob,))?,
            false => ob.clone(),
        };
        let Some(mut s) = Source::of_buffer(&a.call_method1("view", (bits,))?)? else { return Ok(None) };
        s.view.dtype = dtype;
        if dtype.bits < 8 {
            s.flags |= flag::SUBBYTE_TYPE_PADDED;
        }
        Ok(Some(s))
    }

    /// Bytes of the machine's memory.
    ///
    /// # Safety
    /// The owner keeps `n` bytes at the address as long as it lives.
    pub(crate) unsafe fn of_bytes(owner: &Bound<'_, PyAny>, at: *mut u8, n: i64) -> Source {
        let n = Box::new(n);
        let view = host(at, DType::UINT8, (&raw const *n, 1), std::ptr::null());
        Source { view, flags: 0, _keep: Keep::Bytes(owner.clone().unbind(), n) }
    }

    fn of_dlpack(ob: &Bound<'_, PyAny>) -> PyResult<Source> {
        if let Some(made) = made_real(ob)? {
            return Source::of_dlpack(&made);
        }
        refuse_strings(ob)?;
        let m = Imported::of(ob)?;
        let (t, flags) = (*m.tensor(), m.flags());
        refuse_narrow(ob, &t)?;
        Source::of_view(ob.py(), &t, flags, Keep::Import(m))
    }

    /// A view that is alive as long as what is kept.
    fn of_view(py: Python<'_>, t: &DLTensor, flags: u64, keep: Keep) -> PyResult<Source> {
        check(py, t)?;
        Ok(Source { view: *t, flags, _keep: keep })
    }

    /// The name of the GPU that it lies on; `None` in the machine's memory.
    pub(crate) fn gpu(&self) -> Option<String> {
        let d = self.view.device;
        (d.device_type == device::CUDA).then(|| format!("cuda:{}", d.device_id))
    }

    /// A copy on a device, after the work of a stream.
    pub(crate) fn copied_on(&self, py: Python<'_>, s: &Session, name: &str, stream: Stream) -> PyResult<baton::Tensor> {
        let lent = self.lent();
        wait(py, || {
            let (view, flags) = lent.get();
            // SAFETY: the owner says that its view may be read while it is lent. Where that is memory of a
            // GPU its writer was asked to come before the legacy default stream, and the copy is waited
            // for.
            unsafe { s.share_on(name, view, *flags, stream) }
        })
    }

    /// Whether it lies in memory that torch allocated in the session's slabs: to be lent, since torch decides
    /// when it is used anew.
    pub(crate) fn is_rented(&self, py: Python<'_>, session: &Session) -> PyResult<bool> {
        // SAFETY: the owner lends the view, whose numbers were copied.
        Ok(self.gpu().is_some() && unsafe { session.is_rented(&self.view, self.flags) }.or_raise(py)?)
    }

    /// The tensor of elements on a GPU as they lie, which are kept as long as it is held.
    pub(crate) fn lend(self, py: Python<'_>, session: &Session) -> PyResult<baton::Tensor> {
        let kept = Box::new(Kept(ManuallyDrop::new(self)));
        let lent = Lent((kept.0.view, kept.0.flags), PhantomData);
        wait(py, move || {
            let (view, flags) = lent.get();
            // SAFETY: the owner lends the view, and lets nothing else use it while it is kept. Its writer was
            // asked to come before the legacy default stream.
            unsafe { session.lend(view, *flags, Stream::LEGACY, kept) }
        })
    }

    /// What an element is.
    pub(crate) fn dtype(&self) -> DType {
        self.view.dtype
    }

    /// The extents.
    #[inline]
    pub(crate) fn shape(&self) -> Dims {
        // SAFETY: `ndim` numbers, alive as long as what is kept.
        unsafe { numbers(self.view.shape, self.view.ndim) }
    }

    /// Whether the elements lie otherwise than in C's order without gaps.
    pub(crate) fn is_strided(&self) -> bool {
        if self.view.strides.is_null() {
            return false;
        }
        let shape = self.shape();
        // SAFETY: `ndim` numbers, alive as long as what is kept.
        let strides = unsafe { numbers(self.view.strides, self.view.ndim) };
        let mut step = 1i64;
        let in_order = shape.iter().zip(strides.iter()).rev().all(|(n, by)| {
            let next = step;
            step = step.saturating_mul(*n);
            *n == 1 || *by == next
        });
        !in_order && !shape.contains(&0)
    }

    /// Bytes that a compact copy takes.
    pub(crate) fn num_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.dtype().num_bytes(&self.shape()).or_raise(py)
    }

    /// Where the elements of a compact view lie.
    pub(crate) fn range(&self, py: Python<'_>) -> PyResult<Range<usize>> {
        let at = self.view.data.addr() + self.view.byte_offset as usize;
        Ok(at..at + self.num_bytes(py)? as usize)
    }

    /// The tensor that the view is of, where it lies in shared memory of the session.
    pub(crate) fn in_place(&self, py: Python<'_>, session: &Session) -> PyResult<Option<baton::Tensor>> {
        // SAFETY: the owner lends the view, whose numbers were copied.
        unsafe { session.share_in_place(&self.view, self.flags) }.or_raise(py)
    }

    /// Copies the elements to a tensor of the same shape and type, without the interpreter where that
    /// is worth it.
    pub(crate) fn copy_to(&self, py: Python<'_>, t: &baton::Tensor, stream: Stream) -> PyResult<()> {
        let lent = self.lent();
        let run = || {
            let (view, flags) = lent.get();
            // SAFETY: the owner says that its view may be read while it is lent; the tensor is new, or
            // its user asked for it to be written.
            unsafe { t.copy_from_on(view, *flags, stream) }
        };
        let host = self.gpu().is_none() && !on_gpu(t);
        match self.num_bytes(py)? {
            0..SHORT if host => run().or_raise(py),
            _ => wait(py, run),
        }
    }
}

/// A view of the machine's memory by its address, type, shape and strides in elements, which may be null.
fn host(data: *mut u8, dtype: DType, (shape, ndim): (*const i64, i32), strides: *const i64) -> DLTensor {
    DLTensor {
        data: data.cast(),
        device: DLDevice { device_type: device::CPU, device_id: 0 },
        ndim,
        dtype,
        shape: shape.cast_mut(),
        strides: strides.cast_mut(),
        byte_offset: 0,
    }
}

/// # Safety
/// `p` points to `n` numbers, or is null, which gives none.
#[inline]
unsafe fn numbers(p: *const i64, n: i32) -> Dims {
    if p.is_null() {
        return Dims::SCALAR;
    }
    // SAFETY: as the caller says; the address of a foreign array may be unaligned.
    Dims::from_fn(n.max(0) as usize, |i| unsafe { p.add(i).read_unaligned() })
}

/// Refuses what cannot be looked at here.
#[inline(always)]
fn check(py: Python<'_>, t: &DLTensor) -> PyResult<()> {
    reachable(py, t.device.device_type)?;
    if !(0..=MOST_DIMENSIONS).contains(&t.ndim) || t.ndim > 0 && t.shape.is_null() {
        return Err(PyBufferError::new_err("the array came with an impossible shape"));
    }
    Ok(())
}
