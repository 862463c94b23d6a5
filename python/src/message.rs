//! What a reader received.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyString;

use crate::errors::OrRaise;
use crate::value::{decode, json_to_py};

/// A message: its value, and who sent it. Its tensors hold the memory on their own.
#[pyclass(frozen, module = "baton")]
pub(crate) struct Message {
    message: baton::Message,
    value: PyOnceLock<Py<PyAny>>,
}

impl From<baton::Message> for Message {
    fn from(message: baton::Message) -> Message {
        Message { message, value: PyOnceLock::new() }
    }
}

/// The value of a message that nobody keeps.
pub(crate) fn value_of(py: Python<'_>, m: &baton::Message) -> PyResult<Py<PyAny>> {
    decode(py, &m.bundle().or_raise(py)?)
}

#[pymethods]
impl Message {
    /// What was sent, with the same structure.
    #[getter]
    fn value(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(self.value.get_or_try_init(py, || value_of(py, &self.message))?.clone_ref(py))
    }

    /// What was sent along as meta; None when nothing was.
    #[getter]
    fn meta(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let json = self.message.meta().or_raise(py)?;
        if json.is_empty() {
            return Ok(py.None());
        }
        let v = serde_json::from_slice(&json).map_err(|e| {
            let remedy = "the sender wrote what is not JSON: update it";
            crate::errors::error(py, baton::Code::Protocol, remedy, format!("the meta of a message is malformed: {e}"))
        })?;
        Ok(json_to_py(py, &v)?.unbind())
    }

    /// The session that sent it.
    #[getter]
    fn sender<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        PyString::new(py, self.message.sender())
    }

    /// Its number among its sender's messages, from 1.
    #[getter]
    fn sequence(&self) -> u64 {
        self.message.sequence()
    }

    /// This sender's messages that went by unseen before it.
    #[getter]
    fn lost(&self) -> u64 {
        self.message.lost()
    }

    /// When it was sent: seconds of time.monotonic().
    #[getter]
    fn time(&self) -> f64 {
        self.message.stamp() as f64 / 1e9
    }

    fn __getitem__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        Ok(self.value(py)?.bind(py).get_item(key)?.unbind())
    }

    fn __repr__(&self) -> String {
        let m = &self.message;
        format!("baton.Message(sequence={}, sender={:?}, lost={})", m.sequence(), m.sender(), m.lost())
    }
}
