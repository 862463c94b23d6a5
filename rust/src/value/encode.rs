//! Values as trees.

use std::collections::HashSet;

use super::tree::{Around, Decimal, Tree};
use super::{FunctionIs, FunctionValue, Lend, Lent};
use super::{MOST_DEPTH, MOST_DIGITS, Payload, Value, is_key, is_large, is_type_name};
use crate::error::{Code, Error, Result};
use crate::tensor::Tensor;

/// The payload of a value. A tensor alone and a dict of named tensors need no tree.
pub(super) fn encode(v: &Value) -> Result<Payload> {
    if let Value::Tensor(t) = v {
        return Ok(t.into());
    }
    if let Some(all) = flat(v) {
        return Ok(Payload::named(all));
    }
    let mut e = Encoder::default();
    e.value(v)?;
    Ok(Payload::with_tree(e.tensors, e.tree.take()))
}

/// Tensors of a tree, under their paths.
type Found = Vec<(String, Tensor)>;

/// The tree of values that stand in a list, and their tensors under their paths. `first`: the number of the first
/// tensor; `lend`: gives functions of this process, and those of others.
pub(crate) fn encode_items(items: &[Value], first: usize, lend: &mut Lend<'_>) -> Result<(Vec<u8>, Found)> {
    let mut e = Encoder { first, lend: Some(lend), ..Encoder::default() };
    e.list(items)?;
    Ok((e.tree.take(), e.tensors))
}

/// The tree of a value without tensors.
#[cfg(test)]
pub(crate) fn tree_of(v: &Value) -> Result<Vec<u8>> {
    let mut e = Encoder::default();
    e.value(v)?;
    Ok(e.tree.take())
}

/// The text of a key, by which keys are told apart.
pub(super) fn key_text(v: &Value) -> Result<Vec<u8>> {
    let mut e = Encoder::default();
    e.key(v)?;
    Ok(e.tree.take())
}

fn flat(v: &Value) -> Option<Vec<(&str, Tensor)>> {
    let Value::Dict(items) = v else { return None };
    let mut seen = HashSet::new();
    let named = items.iter().map(|(k, v)| match (k, v) {
        (Value::Text(k), Value::Tensor(t)) if !k.is_empty() && seen.insert(k) => Some((k.as_str(), t.clone())),
        _ => None,
    });
    named.collect()
}

#[derive(Default)]
struct Encoder<'l, 'a> {
    tree: Tree,
    tensors: Found,
    first: usize, // number of the first tensor
    lend: Option<&'l mut Lend<'a>>,
}

impl Encoder<'_, '_> {
    fn fail<T>(&self, remedy: &str, what: &str) -> Result<T> {
        Err(Error::new(Code::InvalidArgument, remedy, format!("{} {what}", self.tree.place())))
    }

    #[inline(always)]
    fn check_depth(&self) -> Result<()> {
        if self.tree.fits() { Ok(()) } else { self.too_deep() }
    }

    #[cold]
    fn too_deep(&self) -> Result<()> {
        self.fail("make it flatter", &format!("is nested deeper than {MOST_DEPTH} levels of JSON"))
    }

    /// Writes what stands around others.
    fn around(&mut self, a: Around<'_>, f: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.tree.begin(a);
        self.check_depth()?;
        f(self)?;
        self.tree.end(a);
        Ok(())
    }

    /// Writes what has one more part on its path.
    fn part(&mut self, part: &str, v: &Value) -> Result<()> {
        let before = self.tree.enter(part);
        self.value(v)?;
        self.tree.leave(before);
        Ok(())
    }

    fn value(&mut self, v: &Value) -> Result<()> {
        match v {
            Value::Tensor(t) => {
                self.tree.tensor(self.first + self.tensors.len());
                self.tensors.push((self.tree.path().to_owned(), t.clone()));
                self.check_depth()
            }
            Value::List(all) => self.list(all),
            Value::Tuple(all) => self.around(Around::Tuple(None), |e| e.items(all)),
            Value::Dict(items) => self.dict(items),
            Value::Dataclass(name, fields) => {
                if !is_type_name(name) || fields.iter().any(|(key, _)| key == "$") {
                    return self.fail("name it module:qualname, and no field $", &format!("is a dataclass {name:?}"));
                }
                self.around(Around::Dataclass(name), |e| e.members(fields.iter().map(|(k, v)| (k.as_str(), v))))
            }
            Value::Function(f) => self.function(f),
            scalar => self.scalar(scalar),
        }
    }

    fn function(&mut self, f: &FunctionValue) -> Result<()> {
        let lent = match (&f.is, &mut self.lend) {
            (FunctionIs::Named(name), _) => {
                self.tree.function(name);
                return self.check_depth();
            }
            (_, Some(lend)) => lend(f)?,
            (FunctionIs::Lent(lent), None) => *lent,
            (FunctionIs::Own, None) => return self.fail("give it as an argument of a call", "is a function"),
        };
        self.tree.mark(&Lent::text(lent));
        self.check_depth()
    }

    fn list(&mut self, all: &[Value]) -> Result<()> {
        self.around(Around::List, |e| e.items(all))
    }

    fn items(&mut self, all: &[Value]) -> Result<()> {
        for (i, v) in all.iter().enumerate() {
            self.tree.comma(i);
            self.part(Decimal::of(i).text(), v)?;
        }
        Ok(())
    }

    fn dict(&mut self, items: &[(Value, Value)]) -> Result<()> {
        let texts = items.iter().map(|(k, v)| match k {
            Value::Text(k) if k != "$" => Some((k.as_str(), v)),
            _ => None,
        });
        if let Some(all) = texts.collect::<Option<Vec<_>>>() {
            return self.around(Around::Object, |e| e.members(all));
        }
        self.around(Around::Pairs, |e| {
            let mut seen = HashSet::new();
            for (i, (key, v)) in items.iter().enumerate() {
                e.tree.pair(i);
                let from = e.tree.text().len();
                e.key(key)?;
                let written = String::from_utf8_lossy(&e.tree.text()[from..]).into_owned();
                if !seen.insert(written.clone()) {
                    return e.fail("give each key once", &format!("has the key {written} twice"));
                }
                e.tree.pair_value();
                let part = if let Value::Text(key) = key { key } else { &written };
                e.part(part, v)?;
                e.tree.end_pair();
            }
            Ok(())
        })
    }

    fn members<'a>(&mut self, all: impl IntoIterator<Item = (&'a str, &'a Value)>) -> Result<()> {
        let mut seen = HashSet::new();
        for (i, (key, v)) in all.into_iter().enumerate() {
            if !seen.insert(key) {
                return self.fail("give each key once", &format!("has the key {key:?} twice"));
            }
            self.tree.comma(i);
            self.tree.key(key);
            self.part(key, v)?;
        }
        Ok(())
    }

    /// Writes the key of a dict.
    fn key(&mut self, v: &Value) -> Result<()> {
        if !is_key(v) {
            return self.fail("use scalars and tuples of these", "has a key that cannot be one");
        }
        let Value::Tuple(all) = v else { return self.scalar(v) };
        self.around(Around::Tuple(None), |e| {
            for (i, v) in all.iter().enumerate() {
                e.tree.comma(i);
                e.key(v)?;
            }
            Ok(())
        })
    }

    fn scalar(&mut self, v: &Value) -> Result<()> {
        match v {
            Value::Bool(b) => self.tree.bool(*b),
            Value::Int(n) => self.tree.int(*n),
            Value::BigInt(digits) if is_large(digits) => self.tree.tagged("int", digits),
            Value::BigInt(_) => {
                let what = "is no integer beyond ±(2^53-1), or one of too many digits";
                return self.fail(&format!("use Int, or at most {MOST_DIGITS} digits"), what);
            }
            Value::Float(f) => self.tree.float(*f),
            Value::Text(s) => self.tree.string(s),
            Value::Bytes(b) => self.tree.bytes(b),
            Value::DType(_) | Value::Device(..) => {
                return self.fail("give it as an argument of its own", "is a dtype or a device inside another value");
            }
            _ => self.tree.null(),
        }
        self.check_depth()
    }
}
