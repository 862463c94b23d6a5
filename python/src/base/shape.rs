//! Shapes as Python writes them.

use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyString, PyTuple};

use crate::base::errors::invalid;

/// Extents: an int or a sequence of ints.
pub(crate) fn shape_of(ob: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    let wrong = || PyTypeError::new_err("a shape is an integer or a sequence of integers");
    if let Ok(t) = ob.cast_exact::<PyTuple>() {
        return t.iter_borrowed().map(|n| extent(&n)).collect();
    }
    if ob.is_instance_of::<PyInt>() || !ob.hasattr("__len__")? && ob.hasattr("__index__")? {
        return Ok(vec![extent(ob)?]);
    }
    // The bytes of a text are integers too.
    if ob.is_instance_of::<PyString>() || ob.is_instance_of::<PyBytes>() {
        return Err(wrong());
    }
    ob.try_iter().map_err(|_| wrong())?.map(|n| extent(&n?)).collect()
}

fn extent(n: &Bound<'_, PyAny>) -> PyResult<i64> {
    n.extract().map_err(|e: PyErr| match e.is_instance_of::<PyOverflowError>(n.py()) {
        true => invalid(n.py(), "use a shape whose bytes fit in 64 bits", format!("{n} in a shape")),
        false => e,
    })
}

/// Extents as arguments: `f(2, 3)` and `f((2, 3))`.
pub(crate) fn arguments(all: &Bound<'_, PyTuple>) -> PyResult<Vec<i64>> {
    match all.len() {
        1 => shape_of(&all.get_item(0)?),
        _ => shape_of(all.as_any()),
    }
}
