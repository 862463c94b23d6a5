//! Numbers, those of other libraries among them.

use baton::Value;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt};

/// An integer of any size.
pub(super) fn int(v: &Bound<'_, PyAny>) -> PyResult<Value> {
    if let Ok(n) = v.extract::<i64>() {
        return Ok(Value::Int(n));
    }
    let digits = v.py().get_type::<PyInt>().call_method1("__repr__", (v,))?; // a subclass may print otherwise
    Ok(Value::BigInt(digits.extract::<String>()?))
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
