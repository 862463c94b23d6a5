//! Handles: what travels instead of a tensor.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use baton::Lease;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::base::errors::{OrRaise, invalid};
use crate::base::wait::time;

/// Where a tensor is and what it looks like: plain JSON, to be carried by any means and opened by any
/// process of the same broker.
///
/// >>> h = baton.zeros((2, 3)).handle()
/// >>> h.shape, h.dtype, h.readonly, len(h.host)
/// ((2, 3), 'float32', False, 32)
/// >>> baton.Handle.from_json(h.to_json()) == h
/// True
#[pyclass(frozen, module = "baton", eq, weakref)]
#[derive(PartialEq)]
pub(crate) struct Handle(pub(crate) baton::Handle);

/// The lease of so many seconds; None: until the session ends.
pub(crate) fn lease(py: Python<'_>, seconds: Option<f64>) -> PyResult<Lease> {
    const YEAR: Duration = Duration::from_secs(365 * 86_400);
    Ok(match seconds {
        None => Lease::Session,
        Some(s) => match time(s) {
            Some(t) => Lease::For(t.unwrap_or(YEAR)),
            None => {
                let remedy = "give seconds above 0, or None for the session's life";
                return Err(invalid(py, remedy, format!("lease of {s} seconds")));
            }
        },
    })
}

#[pymethods]
impl Handle {
    /// The JSON.
    fn to_json(&self) -> String {
        self.0.to_json()
    }

    /// Reads a handle that came from anywhere. Raises InvalidHandle.
    #[staticmethod]
    pub(crate) fn from_json(py: Python<'_>, json: &Bound<'_, PyString>) -> PyResult<Handle> {
        Ok(Handle(baton::Handle::from_json(&json.to_string_lossy()).or_raise(py)?))
    }

    /// The broker's instance that has the memory.
    #[getter]
    fn host(&self) -> &str {
        &self.0.host
    }

    /// The extents.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyTuple>> {
        pyo3::types::PyTuple::new(py, &self.0.shape)
    }

    /// What an element is.
    #[getter]
    fn dtype(&self) -> &str {
        &self.0.dtype
    }

    /// Whether the tensor opens read-only.
    #[getter]
    fn readonly(&self) -> bool {
        self.0.readonly
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (String,))> {
        Ok((slf.get_type().getattr("from_json")?, (slf.get().to_json(),)))
    }

    fn __hash__(&self) -> u64 {
        let mut h = DefaultHasher::new();
        self.0.to_json().hash(&mut h);
        h.finish()
    }

    fn __repr__(&self) -> String {
        let h = &self.0;
        let lease = h.lease.map_or_else(|| "None".to_owned(), |l| l.to_string());
        format!("baton.Handle({}{:?} of {}, lease={lease})", h.dtype, h.shape, h.host)
    }
}
