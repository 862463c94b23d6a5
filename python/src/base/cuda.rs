//! Tensors on GPUs as Python asks for them: devices by name, streams as other libraries have them.

use std::time::Duration;

use baton::dlpack::device::CUDA;
use baton::{DType, Session, Stream};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyInt;

use crate::base::errors::OrRaise;
use crate::base::wait::wait;

/// Whether a tensor lies on a GPU.
pub(crate) fn on_gpu(t: &baton::Tensor) -> bool {
    t.device().device_type == CUDA
}

/// The name of a tensor's device: "cpu", "cuda:0".
pub(crate) fn name_of(t: &baton::Tensor) -> String {
    match t.device() {
        d if d.device_type == CUDA => format!("cuda:{}", d.device_id),
        _ => "cpu".to_owned(),
    }
}

/// A stream: None, the legacy default one; its number, as DLPack has it; an object with
/// `__cuda_stream__`, or a stream of torch's (`cuda_stream`) or CuPy's (`ptr`).
pub(crate) fn stream_of(ob: Option<&Bound<'_, PyAny>>) -> PyResult<Stream> {
    let Some(ob) = ob.filter(|ob| !ob.is_none()) else { return Ok(Stream::LEGACY) };
    let number: i64 = if ob.is_instance_of::<PyInt>() {
        ob.extract()?
    } else {
        let handle: i64 = if ob.hasattr("__cuda_stream__")? {
            ob.call_method0("__cuda_stream__")?.extract::<(i64, i64)>()?.1
        } else if let Some(n) = ob.getattr_opt("cuda_stream")? {
            n.extract()?
        } else if let Some(n) = ob.getattr_opt("ptr")? {
            n.extract()?
        } else {
            let kind = ob.get_type().name()?;
            return Err(PyTypeError::new_err(format!("a {kind} is no stream: give its number or the stream's object")));
        };
        if handle == 0 { 1 } else { handle } // as handles are written 0 is the legacy default stream
    };
    // SAFETY: a stream of the program's, as Python's callers answer for.
    unsafe { Stream::from_raw(number) }.or_raise(ob.py())
}

/// The stream of a consumer of `__dlpack__`, whose errors are BufferErrors.
pub(crate) fn consumer(t: &baton::Tensor, ob: Option<&Bound<'_, PyAny>>) -> PyResult<Stream> {
    let Some(ob) = ob else { return Ok(Stream::LEGACY) };
    if !on_gpu(t) {
        return Err(PyBufferError::new_err("a tensor on the CPU has no stream: leave it out"));
    }
    let refused = || PyBufferError::new_err("stream is None, 1, 2, -1 or the address of a stream; 0 is ambiguous");
    let number = ob.extract().map_err(|_| refused())?;
    // SAFETY: the standard says that a consumer gives its stream.
    unsafe { Stream::from_raw(number) }.map_err(|_| refused())
}

/// Memory on a device for a compact tensor.
pub(crate) fn alloc_on(
    py: Python<'_>,
    s: &Session,
    device: &str,
    d: DType,
    shape: &[i64],
    timeout: Option<Duration>,
) -> PyResult<baton::Tensor> {
    wait(py, || s.allocation(shape).timeout(timeout).on(device, d))
}

/// A compact copy of a tensor on its own GPU.
pub(crate) fn copied(py: Python<'_>, t: &baton::Tensor, stream: Stream) -> PyResult<baton::Tensor> {
    wait(py, || t.copied_on(stream))
}
