//! TensorDicts, in a process that has imported tensordict. What they are is Python's to know: `baton._tensordict`.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

use super::names::name_of;

/// The package's part of it, where this program has imported tensordict itself.
fn module(py: Python<'_>) -> PyResult<Option<Bound<'_, PyModule>>> {
    let loaded = py.import(intern!(py, "sys"))?.getattr(intern!(py, "modules"))?.cast_into::<PyDict>()?;
    match loaded.get_item(intern!(py, "tensordict"))? {
        // While its own import is under way there is no value of it.
        Some(m) if m.hasattr(intern!(py, "TensorDict"))? => Ok(Some(py.import(intern!(py, "baton._tensordict"))?)),
        _ => Ok(None),
    }
}

/// How the tree names the class of a TensorDict or tensorclass, and the fields that stand for it. `None` of another
/// value. Raises TypeError for collections that are not carried.
pub(super) fn taken_apart<'py>(v: &Bound<'py, PyAny>) -> PyResult<Option<(String, Bound<'py, PyDict>)>> {
    let Some(m) = module(v.py())? else { return Ok(None) };
    let parts = m.call_method1(intern!(v.py(), "taken_apart"), (v,))?;
    let Some((name, fields)) = parts.extract::<Option<(Option<String>, Bound<'py, PyDict>)>>()? else {
        return Ok(None);
    };
    Ok(Some((name.map_or_else(|| name_of(&v.get_type()), Ok)?, fields)))
}

/// The TensorDict or tensorclass of its fields, or the fields where they make none. `None` of another class.
pub(super) fn put_together<'py>(
    class: &Bound<'py, PyType>,
    fields: &Bound<'py, PyDict>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(m) = module(class.py())? else { return Ok(None) };
    let made = m.call_method1(intern!(class.py(), "put_together"), (class, fields))?;
    Ok(Some(made).filter(|made| !made.is_none()))
}
