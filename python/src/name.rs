//! Names: what `get` and `watch` give.

use std::sync::{Arc, Mutex};

use baton::Code;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

use crate::errors::error;
use crate::tensor::Tensor;
use crate::value::decode;
use crate::wait::{timeout as seconds, wait};

/// The tensors of a name's revision: a mapping of paths to tensors, in their order. `value` is what
/// was set, with its structure.
#[pyclass(frozen, mapping, module = "baton")]
pub(crate) struct Bundle {
    bundle: baton::Bundle,
    value: PyOnceLock<Py<PyAny>>,
}

impl From<baton::Bundle> for Bundle {
    fn from(bundle: baton::Bundle) -> Bundle {
        Bundle { bundle, value: PyOnceLock::new() }
    }
}

#[pymethods]
impl Bundle {
    /// What was set, with the same structure.
    #[getter]
    pub(crate) fn value(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(self.value.get_or_try_init(py, || decode(py, &self.bundle))?.clone_ref(py))
    }

    /// The number of the revision.
    #[getter]
    fn revision(&self) -> u64 {
        self.bundle.revision()
    }

    /// Whether everybody may write it in place, so that reads may tear.
    #[getter]
    fn live(&self) -> bool {
        self.bundle.is_live()
    }

    /// The paths.
    fn keys(&self) -> Vec<&str> {
        self.bundle.iter().map(|(n, _)| n).collect()
    }

    /// The tensors.
    fn values(&self) -> Vec<Tensor> {
        self.bundle.iter().map(|(_, t)| t.clone().into()).collect()
    }

    /// Paths and tensors.
    fn items(&self) -> Vec<(&str, Tensor)> {
        self.bundle.iter().map(|(n, t)| (n, t.clone().into())).collect()
    }

    /// The tensor of a path, else the default.
    #[pyo3(signature = (path, default=None))]
    fn get(&self, py: Python<'_>, path: &str, default: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        match self.bundle.get(path) {
            Some(t) => Ok(Bound::new(py, Tensor::from(t.clone()))?.into_any().unbind()),
            None => Ok(default.unwrap_or_else(|| py.None())),
        }
    }

    /// NumPy arrays of the same memory, by path.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let d = PyDict::new(py);
        for (n, t) in self.bundle.iter() {
            d.set_item(n, Tensor::numpy(&Bound::new(py, Tensor::from(t.clone()))?)?)?;
        }
        Ok(d)
    }

    fn __getitem__(&self, path: &str) -> PyResult<Tensor> {
        match self.bundle.get(path) {
            Some(t) => Ok(t.clone().into()),
            None => Err(PyKeyError::new_err(path.to_owned())),
        }
    }

    fn __contains__(&self, path: &Bound<'_, PyAny>) -> bool {
        path.extract::<&str>().is_ok_and(|p| self.bundle.get(p).is_some())
    }

    fn __len__(&self) -> usize {
        self.bundle.len()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(PyTuple::new(py, self.keys())?.try_iter()?.into_any())
    }

    fn __repr__(&self) -> String {
        let b = &self.bundle;
        format!("baton.Bundle({} tensors, revision={}, live={})", b.len(), b.revision(), b.is_live())
    }
}

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

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }
}
