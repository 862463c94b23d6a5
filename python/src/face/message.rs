//! What a reader received.

use std::sync::{Arc, Mutex};

use baton::Code;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyString, PyTuple};

use crate::base::errors::{OrRaise, error};
use crate::base::meta::meta_to_py;
use crate::value::decode;

/// A message: its value, and its sender. Its tensors hold the memory on their own.
///
/// >>> t = baton.topic()
/// >>> r = t.reader()
/// >>> t.send({"x": np.arange(3), "step": 7}, meta={"epoch": 1})
/// >>> m = r.receive()
/// >>> m.value["step"], m["x"].tolist(), m.meta
/// (7, [0, 1, 2], {'epoch': 1})
/// >>> m.sequence, m.lost, m.time <= time.monotonic(), type(m.sender)
/// (1, 0, True, <class 'str'>)
#[pyclass(frozen, module = "baton", weakref)]
pub(crate) struct Message {
    held: Mutex<Option<Arc<Held>>>,
    about: About,
}

/// What a message holds until it is released.
struct Held {
    message: baton::Message,
    value: PyOnceLock<Py<PyAny>>,
}

struct About {
    sender: String,
    sequence: u64,
    lost: u64,
    stamp: u64,
}

impl From<baton::Message> for Message {
    fn from(message: baton::Message) -> Message {
        let about = About {
            sender: message.sender().to_owned(),
            sequence: message.sequence(),
            lost: message.lost(),
            stamp: message.stamp(),
        };
        Message { held: Mutex::new(Some(Arc::new(Held { message, value: PyOnceLock::new() }))), about }
    }
}

/// The value of a message that is not kept.
pub(crate) fn value_of(py: Python<'_>, m: &baton::Message) -> PyResult<Py<PyAny>> {
    decode(py, |b| m.build(b))
}

impl Message {
    fn held(&self, py: Python<'_>) -> PyResult<Arc<Held>> {
        let held = self.held.lock().unwrap_or_else(|p| p.into_inner()).clone();
        held.ok_or_else(|| error(py, Code::Closed, "take its value before", "the message was released"))
    }
}

#[pymethods]
impl Message {
    /// What was sent, with the same structure.
    #[getter]
    fn value(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let held = self.held(py)?;
        Ok(held.value.get_or_try_init(py, || value_of(py, &held.message))?.clone_ref(py))
    }

    /// What was sent along as meta; None when nothing was.
    #[getter]
    fn meta(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        meta_to_py(py, "a message", &self.held(py)?.message.meta().or_raise(py)?)
    }

    /// The session that sent it.
    #[getter]
    fn sender<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        PyString::new(py, &self.about.sender)
    }

    /// Its number among its sender's messages, from 1.
    #[getter]
    fn sequence(&self) -> u64 {
        self.about.sequence
    }

    /// Messages that this reader missed before this one and that no earlier message reported: of its sender, and of
    /// senders that have left.
    #[getter]
    fn lost(&self) -> u64 {
        self.about.lost
    }

    /// When it was sent: seconds of time.monotonic().
    #[getter]
    fn time(&self) -> f64 {
        self.about.stamp as f64 / 1e9
    }

    /// Releases this message. Tensors and arrays taken from it keep their memory.
    ///
    /// >>> t = baton.topic()
    /// >>> r = t.reader()
    /// >>> t.send(np.arange(3))
    /// >>> with r.receive() as m:  # released at its end
    /// ...     x = m.value
    /// >>> m.release()
    /// >>> x.tolist()
    /// [0, 1, 2]
    fn release(&self) {
        let held = self.held.lock().unwrap_or_else(|p| p.into_inner()).take();
        drop(held);
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) {
        self.release();
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("a message belongs to its reader's process: pickle m.value"))
    }

    fn __getitem__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        Ok(self.value(py)?.bind(py).get_item(key)?.unbind())
    }

    fn __contains__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.value(py)?.bind(py).contains(key)
    }

    fn __repr__(&self) -> String {
        let a = &self.about;
        format!("baton.Message(sequence={}, sender={:?}, lost={})", a.sequence, a.sender, a.lost)
    }
}
