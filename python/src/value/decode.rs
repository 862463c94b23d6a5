//! The crate's values as Python's. The crate reads and checks the tree, which comes from another process.

use std::sync::Mutex;

use baton::{Build, Code, FunctionValue, Value};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple, PyType};

use super::kinds::{device_to_py, dtype_to_py};
use super::names::fields_of;
use super::{ordered, tensordict};
use crate::base::errors::{error, to_py};
use crate::base::wait::wait;
use crate::objects::bundle::Bundle;
use crate::objects::function::Function;
use crate::objects::tensor::Tensor;
use crate::views::torch;

/// The value that a message or bundle makes by a builder.
pub(crate) fn decode<'py>(py: Python<'py>, make: impl FnOnce(&Objects<'py>) -> Made<'py>) -> PyResult<Py<PyAny>> {
    made_by(py, make(&Objects(py, None)))
}

/// As `decode`, of what came with a call, or as its result.
pub(super) fn decode_call<'py>(
    py: Python<'py>,
    session: &baton::Session,
    make: impl FnOnce(&Objects<'py>) -> Made<'py>,
) -> PyResult<Py<PyAny>> {
    made_by(py, make(&Objects(py, Some(session.clone()))))
}

fn made_by<'py>(py: Python<'py>, made: Made<'py>) -> PyResult<Py<PyAny>> {
    match made {
        Ok(v) => Ok(v.unbind()),
        Err(Failed::Client(e)) => Err(to_py(py, &e)),
        Err(Failed::Python(e)) => Err(e),
    }
}

/// Gives the arguments of a call, those by name with it.
pub(super) fn decode_all<'py>(
    py: Python<'py>,
    session: &baton::Session,
    args: &baton::Args,
    mut take: impl FnMut(Option<Bound<'py, PyString>>, Bound<'py, PyAny>) -> PyResult<()>,
) -> PyResult<()> {
    let (mut names, mut i) = (Keys::taken_from(&NAMES), 0);
    let built = args.build(&Objects(py, Some(session.clone())), item, |name, v| {
        let name = (!name.is_empty()).then(|| {
            i += 1;
            names.at(py, i - 1, name, PyString::intern)
        });
        Ok(take(name, v)?)
    });
    if i > 0 {
        names.put_back_to(&NAMES);
    }
    built.map_err(|e| match e {
        Failed::Client(e) => to_py(py, &e),
        Failed::Python(e) => e,
    })
}

/// One out of a list that was made.
pub(super) fn item<'py>(list: &Bound<'py, PyAny>, i: usize) -> Made<'py> {
    let found = list.cast::<PyList>().ok().and_then(|l| l.get_item(i).ok());
    let what = "a call with an item that its tree does not have";
    Ok(found.ok_or_else(|| error(list.py(), Code::Protocol, "update or restart its sender", what))?)
}

/// The value of a bundle, made once.
pub(crate) fn of_bundle(py: Python<'_>, bundle: &Bundle) -> PyResult<Py<PyAny>> {
    let held = bundle.held(py)?;
    Ok(held.value.get_or_try_init(py, || decode(py, |b| held.bundle.build(b)))?.clone_ref(py))
}

/// Makes objects of Python; of a call, whose session has its functions.
pub(crate) struct Objects<'py>(Python<'py>, Option<baton::Session>);

type Made<'py> = Result<Bound<'py, PyAny>, Failed>;

/// Why no object was made.
pub(crate) enum Failed {
    Client(baton::Error),
    Python(PyErr),
}

impl From<baton::Error> for Failed {
    fn from(e: baton::Error) -> Failed {
        Failed::Client(e)
    }
}

impl From<PyErr> for Failed {
    fn from(e: PyErr) -> Failed {
        Failed::Python(e)
    }
}

impl<'py> Build for Objects<'py> {
    type Made = Bound<'py, PyAny>;
    type Error = Failed;

    fn tensor(&self, t: baton::Tensor) -> Made<'py> {
        Ok(Tensor::object(self.0, t)?.into_any())
    }

    fn scalar(&self, v: Value) -> Made<'py> {
        let py = self.0;
        Ok(match v {
            Value::Null => py.None().into_bound(py),
            Value::Bool(b) => PyBool::new(py, b).to_owned().into_any(),
            Value::Int(n) => n.into_pyobject(py).map_err(PyErr::from)?.into_any(),
            Value::BigInt(digits) => py.get_type::<PyInt>().call1((digits,))?,
            Value::Float(f) => PyFloat::new(py, f).into_any(),
            Value::Bytes(b) => PyBytes::new(py, &b).into_any(),
            Value::DType(d) => PyString::new(py, &dtype_to_py(d)).into_any(),
            Value::Device(kind, number) => PyString::new(py, &device_to_py(kind, number)).into_any(),
            other => Err(error(py, Code::Unsupported, "update the package", format!("a value of {other:?}")))?,
        })
    }

    fn text(&self, s: &str) -> Made<'py> {
        Ok(PyString::new(self.0, s).into_any())
    }

    fn function(&self, f: FunctionValue) -> Made<'py> {
        let py = self.0;
        let Some(session) = &self.1 else {
            Err(error(py, Code::Unsupported, "give it as an argument of a call", "a function outside of a call"))?
        };
        let function = wait(py, || f.function())?;
        let f = Function { function, session: session.clone() };
        Ok(Bound::new(py, f)?.into_any())
    }

    fn list(&self, all: Vec<Bound<'py, PyAny>>) -> Made<'py> {
        Ok(PyList::new(self.0, all)?.into_any())
    }

    fn tuple(&self, all: Vec<Bound<'py, PyAny>>) -> Made<'py> {
        Ok(PyTuple::new(self.0, all)?.into_any())
    }

    fn named_tuple(&self, class: &str, fields: &[String], all: Vec<Bound<'py, PyAny>>) -> Made<'py> {
        let py = self.0;
        let class = match class_of(py, class)? {
            Some(c) if c.is_subclass_of::<PyTuple>()? && fields_of(&c)?.as_deref() == Some(fields) => c,
            _ => return self.tuple(all),
        };
        let types = Torchs::of(&class)?;
        let items = fields.iter().zip(all).map(|(f, v)| types.made(PyString::new(py, f).as_any(), v));
        let items = PyTuple::new(py, items.collect::<PyResult<Vec<_>>>()?)?;
        // As pickle does: what its own __new__ takes need not be its items.
        Ok(py.get_type::<PyTuple>().call_method1("__new__", (class, items))?)
    }

    fn dict(&self, items: Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)>) -> Made<'py> {
        let d = PyDict::new(self.0);
        for (key, v) in items {
            d.set_item(key, v)?;
        }
        Ok(d.into_any())
    }

    fn named(
        &self,
        class: Option<&str>,
        items: Vec<(&str, Bound<'py, PyAny>)>,
    ) -> Result<Option<Bound<'py, PyAny>>, Failed> {
        let (d, n) = (PyDict::new(self.0), items.len());
        let mut keys = Keys::taken_from(&KEYS);
        for (i, (key, v)) in items.into_iter().enumerate() {
            d.set_item(keys.at(self.0, i, key, PyString::new), v)?;
        }
        keys.put_back_to(&KEYS);
        Ok(match class {
            _ if d.len() != n => None,
            Some(name) => Some(dataclass(name, d)?),
            None => Some(d.into_any()),
        })
    }
}

/// So many keys are remembered, of as many bytes each.
const MOST_KEYS: usize = 1024;
const MOST_KEY: usize = 256;

/// The keys of the last dict, by position: most that arrive have the keys of the one before, and a string
/// that is there already need not be made, nor hashed.
static KEYS: Mutex<Keys> = Mutex::new(Keys(Vec::new()));

/// The names of the arguments of the last call, likewise. They are interned, as those of a function's parameters.
static NAMES: Mutex<Keys> = Mutex::new(Keys(Vec::new()));

struct Keys(Vec<Py<PyString>>);

impl Keys {
    /// Those of the last dict, taken away: to ask for each would take a lock for each.
    fn taken_from(all: &Mutex<Keys>) -> Keys {
        Keys(std::mem::take(&mut all.lock().unwrap_or_else(|p| p.into_inner()).0))
    }

    /// The string of a dict's i-th key.
    fn at<'py>(
        &mut self,
        py: Python<'py>,
        i: usize,
        key: &str,
        make: fn(Python<'py>, &str) -> Bound<'py, PyString>,
    ) -> Bound<'py, PyString> {
        let Keys(all) = self;
        if let Some(k) = all.get(i).map(|k| k.bind(py)).filter(|k| k.to_str().is_ok_and(|k| k == key)) {
            return k.clone();
        }
        let made = make(py, key);
        if key.len() <= MOST_KEY && i < MOST_KEYS.min(all.len() + 1) {
            all.truncate(i); // what follows belongs to another dict, too
            all.push(made.clone().unbind());
        }
        made
    }

    /// Leaves them for the next dict.
    fn put_back_to(self, all: &Mutex<Keys>) {
        *all.lock().unwrap_or_else(|p| p.into_inner()) = self;
    }
}

/// A dataclass of a module that this program has imported itself; of another one, or one of other fields,
/// its fields as a dict: data from another process imports nothing here.
fn dataclass<'py>(name: &str, fields: Bound<'py, PyDict>) -> PyResult<Bound<'py, PyAny>> {
    let py = fields.py();
    if name == ordered::NAME {
        return ordered::put_together(&fields);
    }
    let Some(class) = class_of(py, name)? else { return Ok(fields.into_any()) };
    if let Some(made) = tensordict::put_together(&class, &fields)? {
        return Ok(made);
    }
    if !class.hasattr("__dataclass_fields__")? {
        return Ok(fields.into_any());
    }
    let mut declared = 0;
    for f in py.import("dataclasses")?.call_method1("fields", (&class,))?.try_iter()? {
        declared += 1;
        if !fields.contains(f?.getattr("name")?)? {
            return Ok(fields.into_any());
        }
    }
    if declared != fields.len() {
        return Ok(fields.into_any());
    }
    // As pickle does: it was made once, and what its __init__ takes need not be what its fields hold.
    let Ok(made) = py.get_type::<PyAny>().call_method1("__new__", (&class,)) else {
        return Ok(fields.into_any()); // of a class that is made otherwise
    };
    let set = py.get_type::<PyAny>().getattr("__setattr__")?; // a frozen one has another
    let types = Torchs::of(&class)?;
    for (key, v) in &fields {
        let v = types.made(&key, v)?;
        set.call1((&made, key, v))?;
    }
    Ok(made)
}

/// The class of a name, in a module that this program has imported itself. It is looked up where it stands: an
/// attribute that a module makes when it is asked for may import others.
fn class_of<'py>(py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyType>>> {
    let (module, qualname) = name.split_once(':').unwrap_or((name, ""));
    let loaded = py.import("sys")?.getattr("modules")?.cast_into::<PyDict>()?;
    let Some(module) = loaded.get_item(module)?.filter(|m| m.is_exact_instance_of::<PyModule>()) else {
        return Ok(None);
    };
    let (first, inner) = qualname.split_once('.').map_or((qualname, None), |(first, rest)| (first, Some(rest)));
    let mut found = module.cast::<PyModule>().map_err(PyErr::from)?.dict().get_item(first)?;
    for part in inner.into_iter().flat_map(|rest| rest.split('.')) {
        let class = found.and_then(|f| f.cast_into::<PyType>().ok());
        let own = class.map(|c| c.getattr("__dict__")).transpose()?;
        found = own.map(|d| d.call_method1("get", (part,))).transpose()?;
    }
    Ok(found.and_then(|f| f.cast_into::<PyType>().ok()))
}

/// The fields of a class whose annotations say that they are tensors of torch's, which become such. Where torch is
/// not there, none are.
struct Torchs<'py>(Option<Bound<'py, PyAny>>);

impl<'py> Torchs<'py> {
    fn of(class: &Bound<'py, PyType>) -> PyResult<Torchs<'py>> {
        let py = class.py();
        let loaded = py.import("sys")?.getattr("modules")?.cast_into::<PyDict>()?;
        if !loaded.contains("torch")? {
            return Ok(Torchs(None));
        }
        Ok(Torchs(Some(py.import("baton._views")?.call_method1("torch_fields", (class,))?)))
    }

    /// What a field holds.
    fn made(&self, name: &Bound<'py, PyAny>, v: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let Some(fields) = &self.0 else { return Ok(v) };
        match v.cast::<Tensor>() {
            Ok(t) if fields.contains(name)? => torch::of(t),
            _ => Ok(v),
        }
    }
}
