//! Functions in the values of calls.

use baton::FunctionValue;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::objects::function::Function;

/// Makes a function of an object of this process's.
pub(super) type Own<'a> = &'a dyn Fn(&Bound<'_, PyAny>) -> FunctionValue;

/// Whether it is sent as a function where that is possible: no class is, which is more often a mistake.
pub(super) fn is_function(v: &Bound<'_, PyAny>) -> bool {
    v.is_instance_of::<Function>()
        || v.is_callable()
            && !v.is_instance_of::<PyType>()
            && !v.get_type().hasattr("__dataclass_fields__").unwrap_or(false)
}

/// The function that it is: a registered one by its name; of another one what `own` makes, in arguments.
pub(super) fn function_of(v: &Bound<'_, PyAny>, own: Option<Own<'_>>) -> PyResult<FunctionValue> {
    if let Ok(f) = v.cast::<Function>() {
        return Ok(f.get().function.value());
    }
    own.map(|own| own(v)).ok_or_else(|| {
        let what = "a result has functions that are registered (baton.get_function gives one)";
        PyTypeError::new_err(format!("{what}; this is an object of {}", v.get_type()))
    })
}
