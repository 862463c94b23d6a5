//! `__dlpack__`: both capsules, and the rules for producers.

use baton::Stream;
use baton::dlpack::{CPU, ExportOptions};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

use crate::arrays::copies::copied;
use crate::base::capsule::capsule;
use crate::base::cuda::on_gpu;
use crate::base::errors::OrRaise;
use crate::base::wait::wait;

/// What a consumer asks of `__dlpack__`.
pub(crate) struct Request {
    /// The newest version that it reads; none: the structure before 1.0.
    pub(crate) max_version: Option<(u32, u32)>,
    /// Where it wants the tensor.
    pub(crate) device: Option<(i32, i32)>,
    /// Whether it wants a copy, or must not get one.
    pub(crate) copy: Option<bool>,
    /// Its stream, of a tensor on a GPU.
    pub(crate) stream: Stream,
}

/// The capsule of a tensor. A read-only one is copy-on-write, and flagged where there is a flag.
pub(crate) fn export<'py>(py: Python<'py>, t: &baton::Tensor, r: Request) -> PyResult<Bound<'py, PyAny>> {
    let here = t.device();
    let moved = r.device.is_some_and(|d| d != (here.device_type, here.device_id));
    if moved && (!on_gpu(t) || r.device != Some((CPU, 0)) || r.copy == Some(false)) {
        let what = format!("the tensor lies on {}, and is not moved to another device", crate::base::cuda::name_of(t));
        return Err(PyBufferError::new_err(what));
    }
    let copy = match r.copy {
        _ if moved => Some(wait(py, || t.to_device("cpu", r.stream))?),
        Some(true) if on_gpu(t) => Some(crate::base::cuda::copied(py, t, r.stream)?),
        Some(true) => Some(copied(py, t)?),
        _ => None,
    };
    let given = copy.as_ref().unwrap_or(t);
    let options = ExportOptions::default().stream(r.stream).private(true).copied(copy.is_some());
    if r.max_version.is_some_and(|(major, _)| major >= 1) {
        return capsule(py, given.to_dlpack(options).or_raise(py)?);
    }
    capsule(py, given.to_dlpack_legacy(options).or_raise(py)?)
}
