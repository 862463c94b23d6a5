//! The client's errors as Python exceptions: one class for each code of the protocol.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard};

use baton::{Code, Error};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString};

use crate::base::json::json_to_py;

/// Code → class; `baton._errors` defines them.
static CLASSES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();

fn class<'py>(py: Python<'py>, code: &str) -> PyResult<Bound<'py, PyAny>> {
    let classes = CLASSES.get_or_try_init(py, || -> PyResult<_> {
        Ok(py.import("baton._errors")?.getattr("BY_CODE")?.cast_into::<PyDict>()?.unbind())
    })?;
    let classes = classes.bind(py);
    match classes.get_item(code)? {
        Some(c) => Ok(c),
        None => Ok(py.import("baton._errors")?.getattr("Error")?),
    }
}

fn make(py: Python<'_>, code: &str, message: &str, remedy: &str, detail: Option<Bound<'_, PyAny>>) -> PyResult<PyErr> {
    let text = match remedy {
        "" => message.to_owned(),
        remedy => format!("{message} ({remedy})"),
    };
    let e = class(py, code)?.call1((PyString::new(py, &text),))?;
    e.setattr("code", code)?;
    e.setattr("remedy", remedy)?;
    if let Some(detail) = detail {
        e.setattr("detail", detail)?;
    }
    Ok(PyErr::from_value(e))
}

/// The sessions whose loss was raised, by instance and serial.
static SAID: Mutex<BTreeSet<(String, u64)>> = Mutex::new(BTreeSet::new());

fn said() -> MutexGuard<'static, BTreeSet<(String, u64)>> {
    SAID.lock().unwrap_or_else(|p| p.into_inner())
}

/// Raises that a session is lost, unless it is not, or a call has raised it.
pub(crate) fn say_lost(py: Python<'_>, s: &baton::Session) -> PyResult<()> {
    match s.why_lost().filter(|e| !said().contains(&session_of(e))) {
        Some(e) => Err(to_py(py, &e)),
        None => Ok(()),
    }
}

fn session_of(lost: &Error) -> (String, u64) {
    let of = |key| lost.detail().get(key);
    let instance = of("instance").and_then(serde_json::Value::as_str).unwrap_or_default();
    (instance.to_owned(), of("session").and_then(serde_json::Value::as_u64).unwrap_or_default())
}

/// How a provider is waited for.
const WAITS: &str = ": get_function(name, wait=5), or f.options(wait=5)";

/// The exception of an error of the client.
pub(crate) fn to_py(py: Python<'_>, e: &Error) -> PyErr {
    // Of a session whose user may not use the broker any more it is PermissionDenied.
    let of_session = e.code() == Code::PermissionDenied && e.detail().contains_key("session");
    if e.code() == Code::SessionLost || of_session {
        said().insert(session_of(e));
    }
    let detail = match e.detail().is_empty() {
        true => None,
        false => json_to_py(py, &serde_json::Value::Object(e.detail().clone())).ok(),
    };
    let mut remedy = e.remedy().to_owned();
    if e.code() == Code::NoProvider && !remedy.is_empty() {
        remedy += WAITS; // the keywords of a call are the function's
    }
    let made = make(py, e.code().as_str(), e.message(), &remedy, detail).unwrap_or_else(|other| other);
    if e.code() == Code::Remote { remote(py, made).unwrap_or_else(|other| other) } else { made }
}

/// What is raised for the error of a function.
#[cold]
fn remote(py: Python<'_>, e: PyErr) -> PyResult<PyErr> {
    let raised = py.import("baton._errors")?.getattr("raised_for")?.call1((e.value(py),))?;
    Ok(PyErr::from_value(raised))
}

/// An error that is found on this side.
pub(crate) fn error(py: Python<'_>, code: Code, remedy: &str, message: impl AsRef<str>) -> PyErr {
    make(py, code.as_str(), message.as_ref(), remedy, None).unwrap_or_else(|other| other)
}

/// An argument that cannot be.
pub(crate) fn invalid(py: Python<'_>, remedy: &str, message: impl AsRef<str>) -> PyErr {
    error(py, Code::InvalidArgument, remedy, message)
}

/// Whether an exception is InvalidArgument.
pub(crate) fn is_invalid(py: Python<'_>, e: &PyErr) -> bool {
    class(py, Code::InvalidArgument.as_str()).is_ok_and(|c| e.get_type(py).is(&c))
}

/// Whether an exception says that no broker has answered in time.
pub(crate) fn has_no_answer(py: Python<'_>, e: &PyErr) -> bool {
    let is = |code: Code| class(py, code.as_str()).is_ok_and(|c| e.get_type(py).is(&c));
    is(Code::BrokerLost) || is(Code::Timeout)
}

/// Results of the client as results of Python.
pub(crate) trait OrRaise<T> {
    /// Raises the error.
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrRaise<T> for baton::Result<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|e| to_py(py, &e))
    }
}
