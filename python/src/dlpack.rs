//! `__dlpack__`: both capsules, and the rules for producers.

use baton::dlpack::{CPU, flag};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

use crate::capsule::capsule;
use crate::errors::OrRaise;
use crate::memory::copied;

/// What a consumer asks of `__dlpack__`.
pub(crate) struct Request {
    /// The newest version that it reads; none: the structure before 1.0.
    pub(crate) max_version: Option<(u32, u32)>,
    /// Where it wants the tensor.
    pub(crate) device: Option<(i32, i32)>,
    /// Whether it wants a copy, or must not get one.
    pub(crate) copy: Option<bool>,
}

/// The capsule of a tensor. A read-only one is copy-on-write, and flagged where there is a flag.
pub(crate) fn export<'py>(py: Python<'py>, t: &baton::Tensor, r: Request) -> PyResult<Bound<'py, PyAny>> {
    if r.device.is_some_and(|d| d != (CPU, 0)) {
        return Err(PyBufferError::new_err("the tensor lies on the CPU, (1, 0), and is not moved to another device"));
    }
    let copy = match r.copy {
        Some(true) => Some(copied(py, t)?),
        _ => None,
    };
    let given = copy.as_ref().unwrap_or(t);
    if r.max_version.is_some_and(|(major, _)| major >= 1) {
        let m = given.to_dlpack_private().or_raise(py)?;
        if copy.is_some() {
            // SAFETY: just made, and nobody else has it.
            unsafe { (*m).flags |= flag::IS_COPIED };
        }
        // SAFETY: just made, to be given away.
        return unsafe { capsule(py, m) };
    }
    let m = given.to_dlpack_legacy_private().or_raise(py)?;
    // SAFETY: as above.
    unsafe { capsule(py, m) }
}
