//! Numbers, those of other libraries among them.

use baton::Value;
use baton::bindings::MOST_DIGITS;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt};

use crate::base::errors::invalid;

/// An integer of any size.
pub(super) fn int(v: &Bound<'_, PyAny>) -> PyResult<Value> {
    if let Ok(n) = v.extract::<i64>() {
        return Ok(Value::Int(n));
    }
    let digits = digits(v, "it")?;
    if digits.trim_start_matches('-').len() > MOST_DIGITS {
        let what = format!("it is an integer of more than {MOST_DIGITS} digits");
        return Err(invalid(v.py(), "give it as a text", what));
    }
    Ok(Value::BigInt(digits))
}

/// The digits of an integer that has more than 64 bits. Python has a limit of its own, as of sys.set_int_max_str_digits.
pub(super) fn digits(v: &Bound<'_, PyAny>, place: &str) -> PyResult<String> {
    let text = v.py().get_type::<PyInt>().call_method1("__repr__", (v,)).map_err(|e| {
        let what = format!("{place} is an integer of too many digits: {}", e.value(v.py()));
        invalid(v.py(), "give it as a text", what)
    })?; // a subclass may print otherwise
    text.extract()
}

/// The number that a scalar of NumPy's or ml_dtypes' is.
pub(super) fn number(v: &Bound<'_, PyAny>) -> PyResult<Option<Value>> {
    let class = v.get_type();
    let (module, name) = (class.module()?, class.name()?);
    match (module.to_str()?, name.to_str()?) {
        ("numpy", name) if name != "ndarray" && v.hasattr("item")? && v.getattr("ndim")?.eq(0)? => scalar(v),
        ("ml_dtypes", name) if name.starts_with("int") || name.starts_with("uint") => {
            int(&v.call_method0("__int__")?).map(Some)
        }
        ("ml_dtypes", _) => Ok(Some(Value::Float(v.extract()?))),
        _ => Ok(None),
    }
}

/// The Python number of a scalar of NumPy's.
fn scalar(v: &Bound<'_, PyAny>) -> PyResult<Option<Value>> {
    let item = v.call_method0("item")?;
    Ok(if let Ok(b) = item.cast::<PyBool>() {
        Some(Value::Bool(b.is_true()))
    } else if item.is_instance_of::<PyInt>() {
        Some(int(&item)?)
    } else {
        item.cast::<PyFloat>().ok().map(|f| Value::Float(f.value())) // complex numbers stay arrays
    })
}
