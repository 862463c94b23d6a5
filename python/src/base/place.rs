//! What pickles lead to.

use std::sync::Mutex;

use pyo3::prelude::*;

/// Where a session is: the broker's socket and the namespace.
pub(crate) type Place = (String, String);

/// Where an object's session is, for its pickle.
pub(crate) fn place(s: &baton::Session) -> Place {
    (s.address().to_owned(), s.namespace().to_owned())
}

/// The function of Python by which a handle of a pickle is read. They are looked up once: a pickle may have many.
pub(crate) fn reopen<'py>(py: Python<'py>, name: &'static str) -> PyResult<Bound<'py, PyAny>> {
    static KNOWN: Mutex<Vec<(&str, Py<PyAny>)>> = Mutex::new(Vec::new()); // by name, of which there are few
    let known = KNOWN.lock().unwrap_or_else(|p| p.into_inner());
    if let Some((_, f)) = known.iter().find(|(n, _)| *n == name) {
        return Ok(f.bind(py).clone());
    }
    drop(known); // an import runs code
    let f = py.import("baton._default")?.getattr(name)?;
    KNOWN.lock().unwrap_or_else(|p| p.into_inner()).push((name, f.clone().unbind()));
    Ok(f)
}
