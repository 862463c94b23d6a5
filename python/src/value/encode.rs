//! Python's values as trees. Arrays of others are gathered and copied into one storage.

use std::sync::atomic::{AtomicPtr, Ordering};

use baton::bindings::{Around, Decimal, MOST_DEPTH, MOST_DIGITS, Names, Tree};
use baton::dlpack::Gather;
use baton::{Code, FunctionValue, Payload, Session, Value};
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple, PyType};

use super::entries::{all_keys, entries};
use super::functions::{Own, function_of, is_function};
use super::leaves::Leaves;
use super::names::{fields_of, name_of};
use super::numbers::{digits, number};
use super::take::Take;
use super::{decode, kinds, ordered, tensordict};
use crate::arrays::source::Source;
use crate::arrays::tables::{self, Known};
use crate::base::errors::{OrRaise, error, invalid};
use crate::objects::bundle::Bundle;
use crate::objects::tensor::Tensor;

/// The type of the array that was met last: most values have arrays of one type. It may be gone, and
/// another type at its address; a caller that finds a type here asks its objects again.
static KNOWN: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(std::ptr::null_mut());

fn is_known(v: &Bound<'_, PyAny>) -> bool {
    KNOWN.load(Ordering::Relaxed) == v.get_type_ptr()
}

struct Encoder<'a> {
    tree: Tree,
    names: Names, // of the tensors, which are the leaves
    leaves: Leaves,
    last: Option<Known>, // the type of most of the arrays
    plain: bool,         // JSON without tags, for meta
    take: Take,
    session: Option<&'a Session>, // of tensors, which meta has none of
    first: usize,                 // number of the first tensor
    /// Of the values of a call: what makes functions of this process's objects, if it has them.
    own: Option<Option<Own<'a>>>,
    /// The functions that were met, with the place in the tree where each is to be written.
    functions: Vec<(usize, FunctionValue)>,
}

/// The payload of a value to be sent. Raises TypeError for what no value may contain.
pub(crate) fn encode(session: &Session, value: &Bound<'_, PyAny>) -> PyResult<Payload> {
    encode_as(session, value, Take::Reference)
}

/// The payload of a value, and of what goes along with it.
pub(crate) fn with_meta(
    session: &Session,
    value: &Bound<'_, PyAny>,
    meta: Option<&Bound<'_, PyAny>>,
) -> PyResult<Payload> {
    let p = encode(session, value)?;
    match meta {
        None => Ok(p),
        Some(m) => p.meta(&self::meta(m)?).or_raise(value.py()),
    }
}

/// The payload of a value whose tensors are taken in a certain way.
pub(crate) fn encode_as(session: &Session, value: &Bound<'_, PyAny>, take: Take) -> PyResult<Payload> {
    let py = value.py();
    if matches!(take, Take::Reference | Take::Ours)
        && let Ok(b) = value.cast::<Bundle>()
        && let Some(b) = b.get().taken(|t| take.keeps(py, session, t), py)?
    {
        return Ok(Payload::from(&b));
    }
    if let Ok(t) = value.cast_exact::<Tensor>() {
        let t = t.get().tensor(py)?;
        if take.keeps(py, session, &t)? {
            return Ok(Payload::from(t));
        }
    }
    let mut e = Encoder::new(Some(session), take);
    if e.scalar(value)? {
        return Ok(Payload::of_names(e.names, Vec::new(), e.tree.take()));
    }
    e.last = tables::last(py);
    let flat = e.flat(value)?;
    if !flat {
        e.value(value)?;
        // Alone, a tensor needs no tree.
        if e.leaves.len() == 1 && e.names.iter().all(str::is_empty) && e.tree.text() == br#"{"$":"tensor","i":0}"# {
            e.tree.take();
        }
    }
    let tree = e.tree.take();
    let names = std::mem::take(&mut e.names);
    Ok(Payload::of_names(names, e.into_tensors(py, session)?, tree))
}

/// A tree, its tensors under their paths, and its functions, with the places where they are to be written.
pub(super) type Item = (Vec<u8>, Vec<(String, baton::Tensor)>, Vec<(usize, FunctionValue)>);

/// The tree of item `i` of a list, and its tensors under their paths, the first of which has the number `first`.
/// `own`: what makes functions of objects, of arguments.
pub(super) fn item_of(
    session: &Session,
    v: &Bound<'_, PyAny>,
    i: usize,
    first: usize,
    own: Option<Own<'_>>,
) -> PyResult<Item> {
    let mut e = Encoder::new(Some(session), Take::Reference);
    (e.first, e.own) = (first, Some(own));
    e.last = tables::last(v.py());
    e.tree.begin(Around::List);
    let from = e.tree.text().len();
    e.part(Decimal::of(i).text(), v)?;
    let (tree, names) = (e.tree.take().split_off(from), std::mem::take(&mut e.names));
    let mut functions = std::mem::take(&mut e.functions);
    functions.iter_mut().for_each(|(place, _)| *place -= from);
    let tensors = e.into_tensors(v.py(), session)?;
    Ok((tree, names.iter().map(str::to_owned).zip(tensors).collect(), functions))
}

/// The JSON of meta.
pub(super) fn meta(value: &Bound<'_, PyAny>) -> PyResult<Box<serde_json::value::RawValue>> {
    let mut e = Encoder::new(None, Take::Reference);
    e.value(value)?;
    let text = String::from_utf8(e.tree.take())?;
    serde_json::value::RawValue::from_string(text).map_err(|e| {
        error(value.py(), Code::Internal, "report this with the broker's log, see docs/support.md", e.to_string())
    })
}

impl<'a> Encoder<'a> {
    /// Without a session: of meta.
    fn new(session: Option<&'a Session>, take: Take) -> Encoder<'a> {
        let (tree, names, leaves, functions) = Default::default();
        let plain = session.is_none();
        Encoder { tree, names, leaves, last: None, plain, take, session, first: 0, own: None, functions }
    }

    /// Takes a dict of nothing but tensors and arrays, which needs no tree.
    fn flat(&mut self, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        let Ok(d) = value.cast_exact::<PyDict>() else { return Ok(false) };
        for (i, entry) in entries(d).enumerate() {
            let (key, v) = entry?;
            let key = key.cast::<PyString>().ok().and_then(|k| k.to_str().ok()).filter(|k| !k.is_empty());
            let taken = key.map_or(Ok(false), |_| self.leaf(&v)).map_err(|e| match key {
                Some(k) => at(v.py(), &format!("{k:?} of the value"), e),
                None => e,
            })?;
            let (true, Some(key)) = (taken, key) else {
                self.names.clear();
                self.leaves = Leaves::default();
                return Ok(false);
            };
            if i == 0 {
                self.leaves.reserve(d.len());
            }
            self.names.push(key);
        }
        self.names = std::mem::take(&mut self.names).paths();
        Ok(self.leaves.len() > 0)
    }

    /// Takes the array that an object is, if it is of a type that was met before.
    #[inline(always)]
    fn known(&mut self, v: &Bound<'_, PyAny>) -> PyResult<bool> {
        match self.last.as_ref().and_then(|k| k.table(v)) {
            Some(table) => Source::push_lent(&mut self.leaves.arrays, v, table),
            None if is_known(v) => Ok(Source::of(v)?.map(|s| self.leaves.arrays.push(s)).is_some()),
            None => Ok(false),
        }
    }

    /// Takes the tensor or array that an object is.
    fn leaf(&mut self, v: &Bound<'_, PyAny>) -> PyResult<bool> {
        let Some(session) = self.session else { return Ok(false) };
        if self.known(v)? {
            return Ok(true);
        }
        if let Ok(t) = v.cast::<Tensor>() {
            let t = t.get().tensor(v.py())?;
            match self.take.keeps(v.py(), session, &t)? {
                true => self.leaves.push_own(t),
                false => self.leaves.arrays.push(Source::of_tensor(v.py(), &t)?),
            }
            return Ok(true);
        }
        let scalar = v.is_none()
            || v.is_instance_of::<PyInt>()
            || v.is_instance_of::<PyFloat>()
            || v.is_instance_of::<PyString>()
            || v.is_instance_of::<PyBytes>()
            || v.is_instance_of::<PyDict>()
            || v.is_instance_of::<PyList>()
            || v.is_instance_of::<PyTuple>();
        if scalar {
            return Ok(false);
        }
        let Some(found) = Source::of(v)? else { return Ok(false) };
        // A type of numbers is none of arrays in a call.
        if !matches!(number(v), Ok(Some(_))) {
            KNOWN.store(v.get_type_ptr(), Ordering::Relaxed);
        }
        self.last = tables::last(v.py());
        self.leaves.arrays.push(found);
        Ok(true)
    }

    fn value(&mut self, v: &Bound<'_, PyAny>) -> PyResult<()> {
        // Before all else what there may be many of.
        if !self.plain {
            let taken = match v.is_exact_instance_of::<Tensor>() {
                true => self.leaf(v)?,
                false => self.known(v).map_err(|e| self.at(v.py(), e))?,
            };
            if taken {
                return self.tensor();
            }
        }
        if self.scalar(v)? {
            return Ok(());
        }
        if let Ok(d) = v.cast::<PyDict>() {
            // In a call it is a dict, which parameters ask for.
            if !self.plain && self.own.is_none() && ordered::is_ordered(d)? {
                return self.ordered(d);
            }
            return self.dict(d);
        }
        if let Ok(l) = v.cast::<PyList>() {
            return self.around(Around::List, |e| e.items(l.iter()));
        }
        if let Ok(t) = v.cast::<PyTuple>() {
            if self.plain {
                return self.around(Around::List, |e| e.items(t.iter()));
            }
            let class = v.get_type();
            let fields = match v.is_exact_instance_of::<PyTuple>() {
                true => None,
                false => fields_of(&class)?.filter(|all| all.len() == t.len()),
            };
            let name = fields.as_ref().map(|_| name_of(&class)).transpose()?;
            let named = name.as_deref().zip(fields.as_deref());
            return self.around(Around::Tuple(named), |e| e.items(t.iter()));
        }
        if let Ok(b) = v.cast::<Bundle>() {
            let value = decode::of_bundle(v.py(), b.get())?;
            return self.value(value.bind(v.py()));
        }
        if self.own.is_some() && self.number(v)? {
            return Ok(());
        }
        let is_class = v.is_instance_of::<PyType>();
        if !is_class && self.leaf(v).map_err(|e| self.at(v.py(), e))? {
            return self.tensor();
        }
        let class = v.get_type();
        if !self.plain && !is_class {
            if let Some((name, fields)) = tensordict::taken_apart(v).map_err(|e| self.at(v.py(), e))? {
                return self.fields(&name, entries(&fields));
            }
            if class.hasattr("__dataclass_fields__")? {
                return self.dataclass(v, &class);
            }
        }
        if let Some(own) = self.own
            && is_function(v)
        {
            return self.function(v, own);
        }
        let what = if self.plain {
            "it holds what JSON has"
        } else {
            "a value holds tensors, arrays, dicts, lists, tuples, \
            dataclasses, None, bool, int, float, str and bytes"
        };
        let this = match v.cast::<PyType>() {
            Ok(class) => format!("the class {}", class.fully_qualified_name()?),
            Err(_) => format!("a {}", class.name()?),
        };
        // What is an argument itself may be a dtype, and what stands within another value not.
        let is_argument = self.own.is_some() && !self.tree.path().contains('/');
        let remedy = kinds::instead(v, is_argument).map(|r| format!(" ({r})")).unwrap_or_default();
        Err(PyTypeError::new_err(format!("{}: {what}; this is {this}{remedy}", self.place())))
    }

    /// Notes a function, which is written once it is known where it can be called.
    fn function(&mut self, v: &Bound<'_, PyAny>, own: Option<Own<'_>>) -> PyResult<()> {
        let f = function_of(v, own).map_err(|e| at(v.py(), &self.place(), e))?;
        self.functions.push((self.tree.text().len(), f));
        self.tree.mark("");
        self.check_depth()
    }

    /// Writes the leaf that was taken last.
    fn tensor(&mut self) -> PyResult<()> {
        self.tree.tensor(self.first + self.leaves.len() - 1);
        self.names.push(self.tree.path());
        self.check_depth()
    }

    fn place(&self) -> String {
        match (self.plain, self.tree.path()) {
            (false, _) => self.tree.place(),
            (true, "") => "meta".to_owned(),
            (true, _) => format!("{:?} of meta", self.tree.short_path()),
        }
    }

    /// An error that tells where in the value it happened.
    fn at(&self, py: Python<'_>, e: PyErr) -> PyErr {
        if self.tree.path().is_empty() { e } else { at(py, &self.place(), e) }
    }

    /// The UTF-8 of a text, which half a surrogate pair has not.
    fn utf8<'s>(&self, s: &'s Bound<'_, PyString>) -> PyResult<&'s str> {
        s.to_str().map_err(|_| {
            let text = s.repr().map(|r| r.to_string()).unwrap_or_default();
            let what = format!("{} has half a surrogate pair in the text {text}", self.place());
            invalid(s.py(), "give its bytes, s.encode(\"utf-8\", \"surrogatepass\")", what)
        })
    }

    fn scalar(&mut self, v: &Bound<'_, PyAny>) -> PyResult<bool> {
        if v.is_none() {
            self.tree.null();
        } else if let Ok(b) = v.cast::<PyBool>() {
            self.tree.bool(b.is_true());
        } else if v.is_instance_of::<PyInt>() {
            self.int(v)?;
        } else if let Ok(f) = v.cast::<PyFloat>() {
            if self.plain && !f.value().is_finite() {
                let what = format!("{} is {}, which JSON does not have", self.place(), f.value());
                return Err(invalid(v.py(), "give None or a text", what));
            }
            self.tree.float(f.value());
        } else if let Ok(s) = v.cast::<PyString>() {
            let s = self.utf8(s)?;
            self.tree.string(s);
        } else if let (Ok(b), false) = (v.cast::<PyBytes>(), self.plain) {
            self.tree.bytes(b.as_bytes());
        } else {
            return Ok(false);
        }
        self.check_depth()?;
        Ok(true)
    }

    /// Writes the number that a scalar of another library's is.
    fn number(&mut self, v: &Bound<'_, PyAny>) -> PyResult<bool> {
        match number(v).map_err(|e| self.at(v.py(), e))? {
            Some(Value::Bool(b)) => self.tree.bool(b),
            Some(Value::Int(n)) => self.tree.int(n),
            Some(Value::BigInt(digits)) => self.tree.tagged("int", &digits),
            Some(Value::Float(f)) => self.tree.float(f),
            _ => return Ok(false),
        }
        self.check_depth()?;
        Ok(true)
    }

    fn int(&mut self, v: &Bound<'_, PyAny>) -> PyResult<()> {
        match v.extract::<i64>() {
            Ok(n) if self.plain => self.tree.digits(&n.to_string()),
            Ok(n) => self.tree.int(n),
            Err(_) => {
                let text = digits(v, &self.place())?;
                if text.trim_start_matches('-').len() > MOST_DIGITS {
                    let what = format!("{} is an integer of more than {MOST_DIGITS} digits", self.place());
                    return Err(invalid(v.py(), "give it as a text", what));
                }
                match self.plain {
                    // Beyond it JSON's readers, this one too, have only the nearest float.
                    true if v.extract::<u64>().is_err() => {
                        let what = format!("{} is {text}, which has more than 64 bits", self.place());
                        return Err(invalid(v.py(), "give it as a text", what));
                    }
                    true => self.tree.digits(&text),
                    false => self.tree.tagged("int", &text),
                }
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn check_depth(&self) -> PyResult<()> {
        if self.tree.fits() { Ok(()) } else { Err(self.too_deep()) }
    }

    #[cold]
    fn too_deep(&self) -> PyErr {
        let what = format!("{} is nested deeper than {MOST_DEPTH} levels of JSON", self.place());
        Python::attach(|py| invalid(py, "make it flatter; a value must not contain itself", what))
    }

    fn around(&mut self, a: Around<'_>, f: impl FnOnce(&mut Encoder) -> PyResult<()>) -> PyResult<()> {
        self.tree.begin(a);
        self.check_depth()?;
        f(self)?;
        self.tree.end(a);
        Ok(())
    }

    fn part(&mut self, part: &str, v: &Bound<'_, PyAny>) -> PyResult<()> {
        let before = self.tree.enter(part);
        self.value(v)?;
        self.tree.leave(before);
        Ok(())
    }

    fn items<'py>(&mut self, items: impl ExactSizeIterator<Item = Bound<'py, PyAny>>) -> PyResult<()> {
        let (n, before) = (items.len(), self.leaves.len());
        for (i, v) in items.enumerate() {
            self.tree.comma(i);
            if i == 1 && self.leaves.len() > before {
                self.leaves.reserve(n); // where one is a tensor the others are
            }
            self.part(Decimal::of(i).text(), &v)?;
        }
        Ok(())
    }

    fn dict(&mut self, d: &Bound<'_, PyDict>) -> PyResult<()> {
        let is_simple =
            |k: &Bound<'_, PyAny>| k.cast::<PyString>().is_ok_and(|k| self.plain || k.to_str().is_ok_and(|k| k != "$"));
        if !all_keys(d, is_simple)? {
            return match self.plain {
                true => {
                    let what = format!("{} has keys that are no strings: it holds what JSON has", self.place());
                    Err(PyTypeError::new_err(what))
                }
                false => self.pairs(d),
            };
        }
        self.around(Around::Object, |e| {
            for (i, entry) in entries(d).enumerate() {
                let (k, v) = entry?;
                e.tree.comma(i);
                let key = e.utf8(k.cast::<PyString>()?)?;
                e.member(key, &v)?;
            }
            Ok(())
        })
    }

    /// An ordered dict as an object's fields: its entries, and what a state dict says beside them.
    fn ordered(&mut self, d: &Bound<'_, PyDict>) -> PyResult<()> {
        let about = ordered::metadata(d)?;
        self.around(Around::Dataclass(ordered::NAME), |e| {
            for (i, entry) in entries(d).enumerate() {
                let (k, v) = entry?;
                e.tree.comma(i);
                e.member(k.cast::<PyString>()?.to_str()?, &v)?;
            }
            if let Some(about) = about {
                e.tree.comma(d.len());
                e.member(ordered::METADATA, &about)?;
            }
            Ok(())
        })
    }

    fn member(&mut self, key: &str, v: &Bound<'_, PyAny>) -> PyResult<()> {
        self.tree.key(key);
        self.part(key, v)
    }

    /// A dict that no JSON object can be.
    fn pairs(&mut self, d: &Bound<'_, PyDict>) -> PyResult<()> {
        self.around(Around::Pairs, |e| {
            for (i, entry) in entries(d).enumerate() {
                let (k, v) = entry?;
                e.tree.pair(i);
                let from = e.tree.text().len();
                e.key(&k)?;
                let part = match k.cast::<PyString>() {
                    Ok(k) => e.utf8(k)?.to_owned(),
                    Err(_) => String::from_utf8(e.tree.text()[from..].to_vec())?,
                };
                e.tree.pair_value();
                e.part(&part, &v)?;
                e.tree.end_pair();
            }
            Ok(())
        })
    }

    fn key(&mut self, k: &Bound<'_, PyAny>) -> PyResult<()> {
        if self.scalar(k)? || self.own.is_some() && self.number(k)? {
            return Ok(());
        }
        let Ok(t) = k.cast::<PyTuple>() else {
            let what =
                format!("{} has a key of {}: keys are scalars or tuples of them", self.place(), k.get_type().name()?);
            return Err(PyTypeError::new_err(what));
        };
        self.around(Around::Tuple(None), |e| {
            for (i, k) in t.iter().enumerate() {
                e.tree.comma(i);
                e.key(&k)?;
            }
            Ok(())
        })
    }

    fn dataclass(&mut self, v: &Bound<'_, PyAny>, class: &Bound<'_, PyType>) -> PyResult<()> {
        let fields = v.py().import("dataclasses")?.call_method1("fields", (v,))?;
        let names = fields.try_iter()?.map(|f| f?.getattr("name"));
        let field = |name: PyResult<_>| {
            let name: Bound<'_, PyAny> = name?;
            Ok((name.clone(), v.getattr(name.cast::<PyString>()?)?))
        };
        self.fields(&name_of(class)?, names.map(field))
    }

    /// Writes the fields of an object of a class that is named.
    fn fields<'py>(
        &mut self,
        class: &str,
        fields: impl Iterator<Item = PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)>>,
    ) -> PyResult<()> {
        self.around(Around::Dataclass(class), |e| {
            for (i, field) in fields.enumerate() {
                let (key, v) = field?;
                e.tree.comma(i);
                e.member(key.cast::<PyString>()?.to_str()?, &v)?;
            }
            Ok(())
        })
    }

    /// Copies the arrays of others into one storage and gives all tensors.
    fn into_tensors(self, py: Python<'_>, session: &Session) -> PyResult<Vec<baton::Tensor>> {
        let (take, n) = (self.take, self.leaves.len());
        let Leaves { arrays, own, own_at } = self.leaves;
        if arrays.is_empty() {
            return Ok(own);
        }
        let on_host = arrays.iter().filter(|s| s.gpu().is_none());
        if take == Take::Shared {
            for s in on_host.clone() {
                take.in_place(py, session, s)?;
            }
        }
        let gathered = match take {
            Take::Room(room) => Source::room_for(py, session, on_host, room)?,
            Take::Copy => Source::gather(py, session, on_host, Gather::Copy)?,
            _ => Source::gather(py, session, on_host, Gather::Reference)?,
        };
        if gathered.len() == n {
            return Ok(gathered);
        }
        let (mut arrays, mut gathered) = (arrays.into_iter(), gathered.into_iter());
        let (mut own, mut own_at) = (own.into_iter(), own_at.into_iter().peekable());
        let tensor = |i| {
            let found = match own_at.next_if_eq(&i) {
                Some(_) => own.next(),
                None => match arrays.next() {
                    Some(s) if s.gpu().is_some() => return take.on_gpu(py, session, s),
                    _ => gathered.next(),
                },
            };
            found.ok_or_else(|| {
                error(py, Code::Internal, "report this with the broker's log, see docs/support.md", "an array was lost")
            })
        };
        (0..n).map(tensor).collect()
    }
}

/// A TypeError that tells where in the value it happened; other errors are their libraries' own.
fn at(py: Python<'_>, place: &str, e: PyErr) -> PyErr {
    match e.get_type(py).is(py.get_type::<PyTypeError>()) {
        true => PyTypeError::new_err(format!("{place}: {}", e.value(py))),
        false => e,
    }
}
