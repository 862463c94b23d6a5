//! Names: what `watch` gives.

use std::sync::{Arc, Mutex};

use baton::Code;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::bundle::Bundle;
use crate::errors::error;
use crate::wait::{timeout as seconds, wait};

/// Follows a name: the current revision at once, then always the newest.
#[pyclass(frozen, module = "baton")]
pub(crate) struct Watch {
    pub(crate) watch: Arc<Mutex<Option<baton::Watch>>>,
}

#[pymethods]
impl Watch {
    /// The newest revision not seen yet. timeout: None waits for ever, 0 polls. Raises Timeout.
    #[pyo3(signature = (timeout=None))]
    fn receive(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Bundle> {
        let t = seconds(py, timeout)?;
        let watch = self.watch.clone();
        let got = wait(py, move || match &mut *watch.lock().unwrap_or_else(|p| p.into_inner()) {
            None => Ok(None),
            Some(w) => w.next(t).map(Some),
        })?;
        let b = got.ok_or_else(|| error(py, Code::Closed, "open a new one", "the watch was closed"))?;
        Ok(b.into())
    }

    /// Ends the watch. Waits for a thread that is receiving.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.watch.lock().unwrap_or_else(|p| p.into_inner()).take());
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Bundle> {
        self.receive(py, None)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("a watch belongs to its process: watch the name there"))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }
}
