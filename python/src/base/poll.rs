//! What asyncio needs: the session's descriptor, and the coroutines of `baton._aio`.

use std::os::fd::AsRawFd;

use baton::Session;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::base::errors::OrRaise;

/// The descriptor that is readable when something may have changed for a session.
pub(crate) fn poll_fd(py: Python<'_>, s: &Session) -> PyResult<i32> {
    Ok(s.poll_fd().or_raise(py)?.as_raw_fd())
}

/// The coroutine of a function of `baton._aio`.
pub(crate) fn coroutine<'py>(
    py: Python<'py>,
    name: &str,
    arguments: impl pyo3::call::PyCallArgs<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    py.import("baton._aio")?.getattr(name)?.call1(arguments)
}

/// The coroutine of the next step of an asynchronous iteration by a method.
pub(crate) fn following<'py, T: pyo3::PyClass>(slf: &Bound<'py, T>, method: &str) -> PyResult<Bound<'py, PyAny>> {
    coroutine(slf.py(), "following", PyTuple::new(slf.py(), [slf.as_any().getattr(method)?])?)
}
