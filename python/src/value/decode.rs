//! The crate's values as Python's. The crate reads and checks the tree, which is another process's word.

use baton::{Bundle, Code};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple, PyType};

use crate::errors::{OrRaise, error};
use crate::tensor::Tensor;

/// The value of a bundle.
pub(crate) fn decode(py: Python<'_>, b: &Bundle) -> PyResult<Py<PyAny>> {
    if b.tree().is_empty() {
        return flat(py, b);
    }
    Ok(to_py(py, b.value().or_raise(py)?)?.unbind())
}

/// A tensor alone, or a dict of named ones: the common values, made without a detour.
fn flat(py: Python<'_>, b: &Bundle) -> PyResult<Py<PyAny>> {
    if let (1, Some(("", t))) = (b.len(), b.iter().next()) {
        return Ok(Bound::new(py, Tensor::from(t.clone()))?.into_any().unbind());
    }
    let d = PyDict::new(py);
    for (key, t) in b.iter() {
        d.set_item(key, Bound::new(py, Tensor::from(t.clone()))?)?;
    }
    if d.len() != b.len() || b.iter().any(|(key, _)| key.is_empty()) {
        let what = "a value tree is malformed: tensors without a tree have no name, or one name twice";
        return Err(error(py, Code::Protocol, "the sender wrote what is not a Baton value: update it", what));
    }
    Ok(d.into_any().unbind())
}

fn to_py(py: Python<'_>, v: baton::Value) -> PyResult<Bound<'_, PyAny>> {
    use baton::Value;
    Ok(match v {
        Value::Null => py.None().into_bound(py),
        Value::Bool(b) => PyBool::new(py, b).to_owned().into_any(),
        Value::Int(n) => n.into_pyobject(py)?.into_any(),
        Value::BigInt(digits) => py.get_type::<PyInt>().call1((digits,))?,
        Value::Float(f) => PyFloat::new(py, f).into_any(),
        Value::Text(s) => PyString::new(py, &s).into_any(),
        Value::Bytes(b) => PyBytes::new(py, &b).into_any(),
        Value::Tensor(t) => Bound::new(py, Tensor::from(t))?.into_any(),
        Value::List(all) => PyList::new(py, all_to_py(py, all)?)?.into_any(),
        Value::Tuple(all) => PyTuple::new(py, all_to_py(py, all)?)?.into_any(),
        Value::Dict(items) => {
            let d = PyDict::new(py);
            for (key, v) in items {
                d.set_item(to_py(py, key)?, to_py(py, v)?)?;
            }
            d.into_any()
        }
        Value::Dataclass(name, fields) => dataclass(py, &name, fields)?,
        other => return Err(error(py, Code::Unsupported, "update the package", format!("a value of {other:?}"))),
    })
}

fn all_to_py(py: Python<'_>, all: Vec<baton::Value>) -> PyResult<Vec<Bound<'_, PyAny>>> {
    all.into_iter().map(|v| to_py(py, v)).collect()
}

/// A dataclass of a module that this program has imported itself; of another one its fields as a dict:
/// another process's word imports nothing here.
fn dataclass<'py>(py: Python<'py>, name: &str, all: Vec<(String, baton::Value)>) -> PyResult<Bound<'py, PyAny>> {
    let fields = PyDict::new(py);
    for (key, v) in all {
        fields.set_item(key, to_py(py, v)?)?;
    }
    let (module, qualname) = name.split_once(':').unwrap_or((name, ""));
    let loaded = py.import("sys")?.getattr("modules")?.cast_into::<PyDict>()?;
    let mut found = loaded.get_item(module)?;
    for part in qualname.split('.') {
        found = match found {
            Some(f) => f.getattr_opt(part)?,
            None => None,
        };
    }
    match found {
        Some(c) if c.is_instance_of::<PyType>() && c.hasattr("__dataclass_fields__")? => c.call((), Some(&fields)),
        _ => Ok(fields.into_any()),
    }
}
