//! Names of classes, and of what named tuples have.

use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

/// How the tree names a class.
pub(super) fn name_of(class: &Bound<'_, PyType>) -> PyResult<String> {
    Ok(format!("{}:{}", class.module()?.to_str()?, class.qualname()?.to_str()?))
}

/// The names of a named tuple's items; `None` of a class of another kind.
pub(super) fn fields_of(class: &Bound<'_, PyType>) -> PyResult<Option<Vec<String>>> {
    let fields = class.getattr_opt("_fields")?.and_then(|f| f.cast_into_exact::<PyTuple>().ok());
    Ok(fields.and_then(|f| f.iter().map(|name| name.extract::<String>().ok()).collect()))
}
