//! The arguments of a call, and what a function returns, from Python and to it.

use baton::{Arguments, Session, Value};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple, PyType};

use super::decode::{decode_all, decode_call, item};
use super::encode::{encode, item_of};
use super::entries::entries;
use super::functions::{Own, is_function};
use super::kinds::plain;
use super::numbers::int;
use crate::arrays::source::is_array;
use crate::base::errors::{invalid, is_invalid};
use crate::objects::bundle::Bundle;
use crate::objects::tensor::Tensor;

/// The name of one that is given by its position.
const BY_POSITION: &str = "";

/// What stands in the tree, whose tensors are numbered behind all that are arguments themselves.
type Later<'py> = Vec<(usize, usize, Bound<'py, PyAny>)>;

/// The arguments of a call. An error tells which one it is about: `name_of` knows the names of those by position. `own`
/// makes a function of an object of this process's.
pub(crate) fn arguments<'py>(
    session: &Session,
    args: &Bound<'py, PyTuple>,
    named: Option<&Bound<'py, PyDict>>,
    own: Own<'_>,
    name_of: impl Fn(usize) -> String,
) -> PyResult<Arguments> {
    let py = args.py();
    let mut to = Arguments::new();
    let mut later = Later::new();
    let name_at = |i: usize| match i.checked_sub(args.len()).zip(named) {
        None => name_of(i),
        Some((k, named)) => named.keys().get_item(k).map_or_else(|_| k.to_string(), |name| name.to_string()),
    };
    for (i, v) in args.iter().enumerate() {
        push(&mut to, session, BY_POSITION, &v, i, &mut later).map_err(|e| about(py, &name_at(i), e))?;
    }
    for (i, entry) in named.into_iter().flat_map(entries).enumerate() {
        let (name, v) = entry?;
        let (i, name) = (args.len() + i, name.cast::<PyString>()?.to_str()?);
        if name.is_empty() {
            return Err(invalid(py, "name it", "an argument by name has an empty name"));
        }
        push(&mut to, session, name, &v, i, &mut later).map_err(|e| about(py, &name_at(i), e))?;
    }
    nest(&mut to, session, Some(own), later).map_err(|(i, e)| about(py, &name_at(i), e))?;
    Ok(to)
}

/// What a function has returned.
pub(crate) fn result(session: &Session, v: &Bound<'_, PyAny>) -> PyResult<Arguments> {
    let mut to = Arguments::new();
    let mut later = Later::new();
    push(&mut to, session, BY_POSITION, v, 0, &mut later)
        .and_then(|()| nest(&mut to, session, None, later).map_err(|(_, e)| e))
        .map_err(|e| about(v.py(), "the result", e))?;
    Ok(to)
}

/// A TypeError or InvalidArgument that tells what it is about. Of a result it is a ValueError: the arguments of the
/// caller, who is told it, are right.
fn about(py: Python<'_>, what: &str, e: PyErr) -> PyErr {
    let (class, value) = (e.get_type(py), e.value(py));
    let of_result = what.starts_with("the ");
    let place = if of_result { what.to_owned() } else { format!("the argument {what}") };
    let text = format!("{place}: {value}");
    if is_invalid(py, &e) {
        let remedy: String = value.getattr("remedy").and_then(|r| r.extract()).unwrap_or_default();
        return match text.strip_suffix(&format!(" ({remedy})")) {
            _ if of_result => PyValueError::new_err(text),
            Some(message) => invalid(py, &remedy, message),
            None => invalid(py, "", text),
        };
    }
    let plain = [py.get_type::<PyTypeError>(), py.get_type::<PyValueError>()];
    if plain.iter().any(|c| class.is(c)) { PyErr::from_type(class, text) } else { e }
}

#[inline]
fn push<'py>(
    to: &mut Arguments,
    session: &Session,
    name: &str,
    v: &Bound<'py, PyAny>,
    i: usize,
    later: &mut Later<'py>,
) -> PyResult<()> {
    let py = v.py();
    if v.is_exact_instance_of::<PyInt>()
        && let Ok(n) = v.extract::<i64>()
    {
        to.push(name, Value::Int(n));
    } else if let Ok(t) = v.cast_exact::<Tensor>() {
        let t = t.get().tensor(py)?;
        match t.is_shared() {
            true => to.push(name, Value::Tensor(t)),
            false => to.push(name, Value::Tensor(array(session, v)?)),
        }
    } else if let Ok(f) = v.cast::<PyFloat>() {
        to.push(name, Value::Float(f.value()));
    } else if v.is_none() {
        to.push(name, Value::Null);
    } else if let Ok(b) = v.cast::<PyBool>() {
        to.push(name, Value::Bool(b.is_true()));
    } else if v.is_instance_of::<PyInt>() {
        to.push(name, int(v)?);
    } else if let Some(plain) = of_text(v)? {
        to.push(name, plain);
    } else if let Some(s) = v.cast::<PyString>().ok().and_then(|s| s.to_str().ok()) {
        to.push(name, Value::Text(s.to_owned()));
    } else if let Ok(b) = v.cast::<PyBytes>() {
        to.push(name, Value::Bytes(b.as_bytes().to_vec()));
    } else if let Some(types) = nested(v) {
        later.push((i, to.push_tree(name, types), v.clone()));
    } else if let Some(plain) = plain(v)? {
        to.push(name, plain);
    } else if is_array(v)? {
        to.push(name, Value::Tensor(array(session, v)?));
    } else {
        let types = if is_function(v) { "function" } else { "any" };
        later.push((i, to.push_tree(name, types), v.clone()));
    }
    Ok(())
}

/// Writes what stands in the tree.
fn nest(to: &mut Arguments, session: &Session, own: Option<Own<'_>>, later: Later<'_>) -> Result<(), (usize, PyErr)> {
    for (k, (i, tree, v)) in later.into_iter().enumerate() {
        let (json, tensors, functions) = item_of(session, &v, k, to.tensors_so_far(), own).map_err(|e| (i, e))?;
        to.set_tree(tree, json, tensors);
        if !functions.is_empty() {
            to.set_functions(tree, functions);
        }
    }
    Ok(())
}

/// The type of what stands in the tree.
fn nested(v: &Bound<'_, PyAny>) -> Option<&'static str> {
    if v.is_instance_of::<PyDict>() {
        Some("dict")
    } else if v.is_instance_of::<PyList>() {
        Some("list")
    } else if v.is_instance_of::<PyTuple>() {
        Some("tuple")
    } else if v.is_instance_of::<Bundle>() || v.is_instance_of::<PyString>() || v.is_instance_of::<PyType>() {
        Some("any") // of a text that is none of UTF-8 the tree says what is wrong
    } else {
        None
    }
}

/// The tensor of an array, which is copied where it does not lie in shared memory.
fn array(session: &Session, v: &Bound<'_, PyAny>) -> PyResult<baton::Tensor> {
    let b = baton::Bundle::from(encode(session, v)?);
    let one = b.iter().next().map(|(_, t)| t.clone());
    one.ok_or_else(|| PyTypeError::new_err("the value is no array"))
}

/// What a class of texts means by one, such as tvm-ffi's of types.
fn of_text(v: &Bound<'_, PyAny>) -> PyResult<Option<Value>> {
    match v.is_instance_of::<PyString>() && !v.is_exact_instance_of::<PyString>() {
        true => plain(v),
        false => Ok(None),
    }
}

/// What a reply brings.
pub(crate) fn of_reply(py: Python<'_>, session: &Session, reply: &baton::bindings::Reply) -> PyResult<Py<PyAny>> {
    decode_call(py, session, |b| reply.build(b, item))
}

/// The arguments of a call, by position and by name.
pub(crate) fn of_args<'py>(
    py: Python<'py>,
    session: &Session,
    args: &baton::Args,
) -> PyResult<(Bound<'py, PyTuple>, Option<Bound<'py, PyDict>>)> {
    let mut by_position = Vec::new();
    let mut named: Option<Bound<'py, PyDict>> = None;
    decode_all(py, session, args, |name, v| {
        let Some(name) = name else {
            by_position.push(v);
            return Ok(());
        };
        named.get_or_insert_with(|| PyDict::new(py)).set_item(name, v)
    })?;
    Ok((PyTuple::new(py, by_position)?, named))
}
