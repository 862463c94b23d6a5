//! Ordered dicts, as state dicts are: the entries, and what a state dict says beside them.
//!
//! The tree has one as the fields of an object, under the paths that the entries of a dict have. Readers of other
//! languages, and older ones, find a dict there.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyType};

use super::entries::all_keys;

/// How the tree names the class.
pub(super) const NAME: &str = "collections:OrderedDict";

/// The attribute in which torch's modules keep the versions of their parts; its field in the tree.
pub(super) const METADATA: &str = "_metadata";

/// `collections.OrderedDict`.
pub(crate) fn ordered_class(py: Python<'_>) -> PyResult<Bound<'_, PyType>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    Ok(CLASS.import(py, "collections", "OrderedDict")?.clone())
}

/// Whether a dict is one that the tree can name: its keys are texts, of which none is taken for another thing.
pub(super) fn is_ordered(d: &Bound<'_, PyDict>) -> PyResult<bool> {
    if d.is_exact_instance_of::<PyDict>() || !d.get_type().is(ordered_class(d.py())?) {
        return Ok(false);
    }
    let told =
        |k: &Bound<'_, PyAny>| k.cast::<PyString>().is_ok_and(|k| k.to_str().is_ok_and(|k| k != "$" && k != METADATA));
    all_keys(d, told)
}

/// What a state dict says beside its entries.
pub(crate) fn metadata<'py>(d: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    attributes(d)?.get_item(intern!(d.py(), "_metadata"))
}

/// What an ordered dict has beside its entries.
pub(crate) fn attributes<'py>(d: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
    Ok(d.getattr(intern!(d.py(), "__dict__"))?.cast_into::<PyDict>()?)
}

/// The ordered dict of its fields.
pub(super) fn put_together<'py>(fields: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyAny>> {
    let py = fields.py();
    let about = fields.get_item(intern!(py, "_metadata"))?;
    if about.is_some() {
        fields.del_item(intern!(py, "_metadata"))?;
    }
    let made = ordered_class(py)?.call1((fields,))?;
    if let Some(about) = about {
        made.setattr(intern!(py, "_metadata"), about)?;
    }
    Ok(made)
}
