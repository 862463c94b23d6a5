//! Meta of messages and bundles.

use baton::Code;
use pyo3::prelude::*;

use super::errors::error;
use super::json::json_to_py;

/// What went along with a message or bundle as meta: nothing is None.
pub(crate) fn meta_to_py(py: Python<'_>, of: &str, json: &[u8]) -> PyResult<Py<PyAny>> {
    if json.is_empty() {
        return Ok(py.None());
    }
    let v = serde_json::from_slice(json).map_err(|e| {
        let remedy = "its sender wrote what is not JSON: update it";
        error(py, Code::Protocol, remedy, format!("the meta of {of} is malformed: {e}"))
    })?;
    Ok(json_to_py(py, &v)?.unbind())
}
