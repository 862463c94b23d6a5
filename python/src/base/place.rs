//! What pickles lead to.

use pyo3::prelude::*;

/// Where a session is: the broker's socket and the namespace.
pub(crate) type Place = (String, String);

/// Where an object's session is, for its pickle.
pub(crate) fn place(s: &baton::Session) -> Place {
    (s.address().to_owned(), s.namespace().to_owned())
}

/// The function of Python by which a handle of a pickle is read.
pub(crate) fn reopen<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("baton._default")?.getattr(name)
}
