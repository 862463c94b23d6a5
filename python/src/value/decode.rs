//! Trees as Python's values. A tree is another process's word: what no sender writes is refused.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use baton::{Bundle, Code};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple, PyType};
use serde_json::{Map, Value};

use super::{MOST_DEPTH, MOST_DIGITS, MOST_SAFE};
use crate::errors::error;
use crate::tensor::Tensor;

fn malformed(py: Python<'_>, what: &str) -> PyErr {
    let remedy = "the sender wrote what is not a Baton value: update it";
    error(py, Code::Protocol, remedy, format!("a value tree is malformed: {what}"))
}

/// The value of a bundle.
pub(crate) fn decode(py: Python<'_>, b: &Bundle) -> PyResult<Py<PyAny>> {
    let d = Decoder { py, tensors: b.iter().map(|(_, t)| t).collect() };
    if b.tree().is_empty() {
        return d.flat(b);
    }
    let tree: Value = serde_json::from_slice(b.tree()).map_err(|e| malformed(py, &e.to_string()))?;
    Ok(d.value(&tree, 0)?.unbind())
}

/// JSON without tags, as meta and the figures of errors have it.
pub(crate) fn json_to_py<'py>(py: Python<'py>, v: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match v {
        Value::Null => py.None().into_bound(py),
        Value::Bool(b) => PyBool::new(py, *b).to_owned().into_any(),
        Value::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(n), _) => n.into_pyobject(py)?.into_any(),
            (_, Some(n)) => n.into_pyobject(py)?.into_any(),
            _ => PyFloat::new(py, n.as_f64().unwrap_or(f64::NAN)).into_any(),
        },
        Value::String(s) => PyString::new(py, s).into_any(),
        Value::Array(all) => {
            let items = all.iter().map(|v| json_to_py(py, v)).collect::<PyResult<Vec<_>>>()?;
            PyList::new(py, items)?.into_any()
        }
        Value::Object(m) => {
            let d = PyDict::new(py);
            for (k, v) in m {
                d.set_item(k, json_to_py(py, v)?)?;
            }
            d.into_any()
        }
    })
}

struct Decoder<'a, 'py> {
    py: Python<'py>,
    tensors: Vec<&'a baton::Tensor>,
}

impl<'py> Decoder<'_, 'py> {
    fn flat(&self, b: &Bundle) -> PyResult<Py<PyAny>> {
        let py = self.py;
        if let (1, Some((name, t))) = (b.len(), b.iter().next())
            && name.is_empty()
        {
            return Ok(Bound::new(py, Tensor::from(t.clone()))?.into_any().unbind());
        }
        let d = PyDict::new(py);
        for (key, t) in b.iter() {
            if key.is_empty() || d.contains(key)? {
                return Err(malformed(py, "tensors without a tree have no name, or one name twice"));
            }
            d.set_item(key, Bound::new(py, Tensor::from(t.clone()))?)?;
        }
        Ok(d.into_any().unbind())
    }

    fn wrong(&self, what: &str) -> PyErr {
        malformed(self.py, what)
    }

    fn value(&self, v: &Value, depth: usize) -> PyResult<Bound<'py, PyAny>> {
        if depth > MOST_DEPTH {
            return Err(self.wrong("nested deeper than 100 levels"));
        }
        match v {
            Value::Array(all) => Ok(PyList::new(self.py, self.all(all, depth)?)?.into_any()),
            Value::Object(m) => match m.get("$") {
                None => self.dict(m, depth),
                Some(tag) => self.tagged(tag, m, depth),
            },
            Value::Number(n) if !n.is_f64() && !n.as_i64().is_some_and(|n| (-MOST_SAFE..=MOST_SAFE).contains(&n)) => {
                Err(self.wrong("an integer beyond 2^53-1 without a tag"))
            }
            scalar => json_to_py(self.py, scalar),
        }
    }

    fn all(&self, all: &[Value], depth: usize) -> PyResult<Vec<Bound<'py, PyAny>>> {
        all.iter().map(|v| self.value(v, depth + 1)).collect()
    }

    fn dict(&self, m: &Map<String, Value>, depth: usize) -> PyResult<Bound<'py, PyAny>> {
        let d = PyDict::new(self.py);
        for (k, v) in m {
            d.set_item(k, self.value(v, depth + 1)?)?;
        }
        Ok(d.into_any())
    }

    fn tagged(&self, tag: &Value, m: &Map<String, Value>, depth: usize) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        let tag = tag.as_str().unwrap_or_default();
        if m.len() != if tag == "dataclass" { 3 } else { 2 } {
            return Err(self.wrong("a tag with members missing or besides it"));
        }
        let v = m.get("v");
        let text = v.and_then(Value::as_str);
        match (tag, v, text) {
            ("tensor", ..) => {
                let i = m.get("i").and_then(Value::as_u64).and_then(|i| usize::try_from(i).ok());
                let t = i
                    .and_then(|i| self.tensors.get(i))
                    .ok_or_else(|| self.wrong("a tensor without a number of the table"))?;
                Ok(Bound::new(py, Tensor::from((*t).clone()))?.into_any())
            }
            ("tuple", Some(Value::Array(all)), _) => Ok(PyTuple::new(py, self.all(all, depth + 1)?)?.into_any()),
            ("bytes", _, Some(s)) => {
                let b = STANDARD.decode(s).map_err(|_| self.wrong("bytes that are not base64"))?;
                Ok(PyBytes::new(py, &b).into_any())
            }
            ("int", _, Some(s)) => {
                let digits = s.strip_prefix('-').unwrap_or(s);
                let written = (1..=MOST_DIGITS).contains(&digits.len()) && digits.bytes().all(|c| c.is_ascii_digit());
                if !written || digits.starts_with('0') {
                    return Err(self.wrong("a tagged integer that is not written as one"));
                }
                py.get_type::<PyInt>().call1((s,))
            }
            ("float", _, Some(s)) => {
                let f = match s {
                    "nan" => f64::NAN,
                    "inf" => f64::INFINITY,
                    "-inf" => f64::NEG_INFINITY,
                    _ => return Err(self.wrong("a tagged float that is not nan, inf or -inf")),
                };
                Ok(PyFloat::new(py, f).into_any())
            }
            ("dict", Some(Value::Array(pairs)), _) => self.pairs(pairs, depth),
            ("dataclass", Some(Value::Object(fields)), _) => self.dataclass(m.get("type"), fields, depth),
            _ => Err(self.wrong("an unknown tag, or one with a wrong value")),
        }
    }

    fn pairs(&self, pairs: &[Value], depth: usize) -> PyResult<Bound<'py, PyAny>> {
        let d = PyDict::new(self.py);
        for p in pairs {
            let Some([k, v]) = p.as_array().map(Vec::as_slice) else {
                return Err(self.wrong("a dict that is no list of pairs"));
            };
            let key = self.value(k, depth + 3)?;
            if !is_key(&key) {
                return Err(self.wrong("a dict with a key that is no scalar and no tuple of them"));
            }
            d.set_item(key, self.value(v, depth + 3)?)?;
        }
        Ok(d.into_any())
    }

    /// A dataclass of a module that this program has imported itself; of another one its fields as a
    /// dict: another process's word imports nothing here.
    fn dataclass(
        &self,
        name: Option<&Value>,
        fields: &Map<String, Value>,
        depth: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        let name = name.and_then(Value::as_str).and_then(|n| n.split_once(':'));
        let Some((module, qualname)) = name else { return Err(self.wrong("a dataclass without a type")) };
        let fields = self.dict(fields, depth + 1)?;
        let loaded = py.import("sys")?.getattr("modules")?.cast_into::<PyDict>()?;
        let mut found = loaded.get_item(module)?;
        for part in qualname.split('.') {
            found = match found {
                Some(f) => f.getattr_opt(part)?,
                None => None,
            };
        }
        match found {
            Some(c) if c.is_instance_of::<PyType>() && c.hasattr("__dataclass_fields__")? => {
                c.call((), Some(fields.cast::<PyDict>()?))
            }
            _ => Ok(fields),
        }
    }
}

fn is_key(k: &Bound<'_, PyAny>) -> bool {
    match k.cast::<PyTuple>() {
        Ok(parts) => parts.iter().all(|p| is_key(&p)),
        Err(_) => {
            k.is_none()
                || k.is_instance_of::<PyInt>()
                || k.is_instance_of::<PyFloat>()
                || k.is_instance_of::<PyString>()
                || k.is_instance_of::<PyBytes>()
        }
    }
}
