//! The class of sessions. Its methods stand in `face`.

use pyo3::prelude::*;

/// A connection to the user's broker. `baton.connect` opens one with the same parameters, and says what they are. Any
/// thread may use it. `close`, and the end of a `with`, ends it: what was sent is still received, and tensors keep
/// their bytes until they are dropped.
///
/// >>> with baton.connect(namespace="doc") as s:
/// ...     b = s.bundle({"w": s.zeros((2, 3))})
/// ...     s.set("model", b), s.names(), s.get("model").revision, s.namespace
/// ...     s.delete("model")
/// (1, ['model'], 1, 'doc')
/// >>> s.closed, s.serial > 0, os.path.exists(s.address)
/// (True, True, True)
#[pyclass(frozen, module = "baton", weakref)]
pub(crate) struct Session {
    pub(crate) session: baton::Session,
}
