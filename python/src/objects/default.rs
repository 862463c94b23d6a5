//! The process's default session.

use std::sync::Mutex;

use pyo3::prelude::*;

use super::session::Session;

/// The default session as `baton._default` last had it.
static DEFAULT: Mutex<Option<baton::Session>> = Mutex::new(None);

/// Tells which session is the default one, in which libraries allocate by the exchange table, too.
#[pyfunction]
pub(crate) fn set_default(session: &Session) {
    baton::dlpack::allocate_by_default_in(&session.session);
    let before = DEFAULT.lock().unwrap_or_else(|p| p.into_inner()).replace(session.session.clone());
    drop(before); // outside of the lock
}

/// The default session if it is open.
pub(crate) fn open_default() -> Option<baton::Session> {
    let last = DEFAULT.lock().unwrap_or_else(|p| p.into_inner()).clone();
    last.filter(|s| !s.is_ended())
}

/// The process's default session.
pub(crate) fn default(py: Python<'_>) -> PyResult<baton::Session> {
    if let Some(s) = open_default() {
        return Ok(s);
    }
    let s = py.import("baton._default")?.getattr("session")?.call0()?;
    Ok(s.cast::<Session>()?.get().session.clone())
}
