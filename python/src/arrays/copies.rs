//! Copies of arrays in shared memory, and memory that is filled.

use baton::dlpack::Gather;
use baton::{Code, DType, Session, Stream};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyComplex, PyInt};

use crate::arrays::room::{AT_ONCE, alloc};
use crate::arrays::source::Source;
use crate::base::dtype;
use crate::base::errors::{OrRaise, error};
use crate::objects::default::default;
use crate::objects::tensor::Tensor;

/// A copy in shared memory, in the tensor's own session; see `copied_from`.
pub(crate) fn copied(py: Python<'_>, t: &baton::Tensor) -> PyResult<baton::Tensor> {
    copied_from(py, &t.session(), &Source::of_tensor(py, t)?)
}

/// The client's tensor of an object; what lies in a file is copied into shared memory.
pub(crate) fn shared(py: Python<'_>, x: &Tensor) -> PyResult<baton::Tensor> {
    let t = x.tensor(py)?;
    if t.is_shared() { Ok(t) } else { copied(py, &t) }
}

/// A copy of an array in shared memory, on the array's own device. It has no gaps; an array that has none keeps the
/// order of its dimensions.
pub(crate) fn copied_from(py: Python<'_>, session: &Session, s: &Source) -> PyResult<baton::Tensor> {
    if let Some(gpu) = s.gpu() {
        return s.copied_on(py, session, &gpu, Stream::LEGACY);
    }
    if s.is_strided() {
        let made = Source::gather(py, session, std::iter::once(s), Gather::Copy)?;
        return made.into_iter().next().ok_or_else(|| {
            error(py, Code::Internal, "report this with the broker's log, see docs/support.md", "an array was lost")
        });
    }
    let t = alloc(py, session, s.dtype(), &s.shape(), AT_ONCE)?;
    s.copy_to(py, &t, Stream::LEGACY)?;
    Ok(t)
}

/// Buffers of bytes as their receiver alone is to have them: in place of one that lies in shared memory, or that has
/// bytes of another one, a copy in shared memory. The others are copied when they are sent.
#[pyfunction]
pub(crate) fn own_buffers<'py>(py: Python<'py>, buffers: Vec<Bound<'py, PyAny>>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let session = default(py)?;
    let mut all = Vec::with_capacity(buffers.len());
    for (k, b) in buffers.iter().enumerate() {
        if let Some(s) = Source::of(b)? {
            all.push((s.range(py)?, k, s));
        }
    }
    all.sort_by_key(|(range, ..)| range.start);
    let (mut made, mut end) = (buffers.clone(), 0);
    for (range, k, s) in &all {
        if range.start < end || s.in_place(py, &session)?.is_some() {
            made[*k] = Bound::new(py, Tensor::from(copied_from(py, &session, s)?))?.into_any();
        }
        end = end.max(range.end);
    }
    Ok(made)
}

/// An address that may go to another thread: its maker answers for what it points to.
#[derive(Clone, Copy)]
struct Address(*mut u8);

// SAFETY: an address is a number; uses of it are unsafe on their own.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

impl Address {
    // A method, so that closures take the whole.
    fn get(self) -> *mut u8 {
        self.0
    }
}

/// Fills a new tensor with copies of one element.
pub(crate) fn fill(py: Python<'_>, t: &baton::Tensor, element: &[u8]) -> PyResult<()> {
    let n = t.num_bytes() as usize;
    if n == 0 {
        return Ok(());
    }
    let to = Address(t.as_mut_ptr().or_raise(py)?);
    if let [byte] = element {
        // SAFETY: the tensor is new and has `n` bytes.
        py.detach(|| unsafe { to.get().write_bytes(*byte, n) });
        return Ok(());
    }
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

/// The type that a number has on its own.
pub(crate) fn natural(value: &Bound<'_, PyAny>) -> PyResult<DType> {
    if let Some(d) = value.getattr_opt("dtype")? {
        return dtype::parse(&d);
    }
    Ok(if value.is_instance_of::<PyBool>() {
        DType::BOOL
    } else if value.is_instance_of::<PyInt>() {
        DType::INT64
    } else if value.is_instance_of::<PyComplex>() {
        DType::COMPLEX128
    } else {
        DType::FLOAT64
    })
}
