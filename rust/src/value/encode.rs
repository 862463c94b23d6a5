//! Values as trees.

use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::{FunctionIs, FunctionValue, Lend, Lent};
use super::{MOST_DEPTH, MOST_DIGITS, MOST_SAFE, Value, is_key, is_large, is_type_name};
use super::{Names, Payload};
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
    Ok(Payload::with_tree(e.tensors, e.tree.into_bytes()))
}

/// Tensors of a tree, under their paths.
type Found = Vec<(String, Tensor)>;

/// The tree of values that stand in a list, and their tensors under their paths. `first`: the number of the first
/// tensor; `lend`: gives functions of this process, and those of others.
pub(crate) fn encode_items(items: &[Value], first: usize, lend: &mut Lend<'_>) -> Result<(Vec<u8>, Found)> {
    let mut e = Encoder { first, lend: Some(lend), ..Encoder::default() };
    e.nest(1, |e| e.list(items))?;
    Ok((e.tree.into_bytes(), e.tensors))
}

/// The tree of a value without tensors.
#[cfg(test)]
pub(crate) fn tree_of(v: &Value) -> Result<String> {
    let mut e = Encoder::default();
    e.value(v)?;
    Ok(e.tree)
}

/// The text of a key, by which keys are told apart.
pub(super) fn key_text(v: &Value) -> Result<String> {
    let mut e = Encoder::default();
    e.key(v)?;
    Ok(e.tree)
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
    tree: String,
    path: Vec<String>,
    depth: usize,
    tensors: Found,
    first: usize, // number of the first tensor
    lend: Option<&'l mut Lend<'a>>,
}

impl Encoder<'_, '_> {
    fn fail<T>(&self, remedy: &str, what: &str) -> Result<T> {
        let at = match self.path.is_empty() {
            true => "the value".to_owned(),
            false => format!("{:?} of the value", self.path.join("/")),
        };
        Err(Error::new(Code::InvalidArgument, remedy, format!("{at} {what}")))
    }

    /// Runs `f` some levels of JSON deeper.
    fn nest(&mut self, levels: usize, f: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.depth += levels;
        if self.depth > MOST_DEPTH {
            return self.fail("make it flatter", &format!("is nested deeper than {MOST_DEPTH} levels of JSON"));
        }
        f(self)?;
        self.depth -= levels;
        Ok(())
    }

    /// Writes what has one more part on its path.
    fn part(&mut self, part: &str, v: &Value) -> Result<()> {
        self.path.push(Names::escaped(part).into_owned());
        self.value(v)?;
        self.path.pop();
        Ok(())
    }

    fn value(&mut self, v: &Value) -> Result<()> {
        match v {
            Value::Tensor(t) => self.nest(1, |e| {
                e.tree += &format!(r#"{{"$":"tensor","i":{}}}"#, e.first + e.tensors.len());
                e.tensors.push((e.path.join("/"), t.clone()));
                Ok(())
            }),
            Value::List(all) => self.nest(1, |e| e.list(all)),
            Value::Tuple(all) => self.nest(2, |e| {
                e.tree += r#"{"$":"tuple","v":"#;
                e.list(all)?;
                e.tree.push('}');
                Ok(())
            }),
            Value::Dict(items) => self.dict(items),
            Value::Dataclass(name, fields) => {
                if !is_type_name(name) || fields.iter().any(|(key, _)| key == "$") {
                    return self.fail("name it module:qualname, and no field $", &format!("is a dataclass {name:?}"));
                }
                self.nest(2, |e| {
                    e.tree += r#"{"$":"dataclass","type":"#;
                    e.text(name);
                    e.tree += r#","v":"#;
                    e.object(fields.iter().map(|(k, v)| (k.as_str(), v)))?;
                    e.tree.push('}');
                    Ok(())
                })
            }
            Value::Function(f) => self.nest(1, |e| e.function(f)),
            scalar => self.scalar(scalar),
        }
    }

    fn function(&mut self, f: &FunctionValue) -> Result<()> {
        let lent = match (&f.is, &mut self.lend) {
            (FunctionIs::Named(name), _) => {
                self.tree += r#"{"$":"function","name":"#;
                self.text(name);
                self.tree.push('}');
                return Ok(());
            }
            (_, Some(lend)) => lend(f)?,
            (FunctionIs::Lent(lent), None) => *lent,
            (FunctionIs::Own, None) => return self.fail("give it as an argument of a call", "is a function"),
        };
        self.tree += &Lent::text(lent);
        Ok(())
    }

    fn list(&mut self, all: &[Value]) -> Result<()> {
        self.tree.push('[');
        for (i, v) in all.iter().enumerate() {
            self.comma(i);
            self.part(&i.to_string(), v)?;
        }
        self.tree.push(']');
        Ok(())
    }

    fn dict(&mut self, items: &[(Value, Value)]) -> Result<()> {
        let texts = items.iter().map(|(k, v)| match k {
            Value::Text(k) if k != "$" => Some((k.as_str(), v)),
            _ => None,
        });
        if let Some(all) = texts.collect::<Option<Vec<_>>>() {
            return self.nest(1, |e| e.object(all));
        }
        self.nest(3, |e| {
            let mut seen = HashSet::new();
            e.tree += r#"{"$":"dict","v":["#;
            for (i, (key, v)) in items.iter().enumerate() {
                e.comma(i);
                e.tree.push('[');
                let from = e.tree.len();
                e.key(key)?;
                let written = e.tree[from..].to_owned();
                if !seen.insert(written.clone()) {
                    return e.fail("give each key once", &format!("has the key {written} twice"));
                }
                e.tree.push(',');
                let part = if let Value::Text(key) = key { key } else { &written };
                e.part(part, v)?;
                e.tree.push(']');
            }
            e.tree += "]}";
            Ok(())
        })
    }

    fn object<'a>(&mut self, all: impl IntoIterator<Item = (&'a str, &'a Value)>) -> Result<()> {
        let mut seen = HashSet::new();
        self.tree.push('{');
        for (i, (key, v)) in all.into_iter().enumerate() {
            if !seen.insert(key) {
                return self.fail("give each key once", &format!("has the key {key:?} twice"));
            }
            self.comma(i);
            self.text(key);
            self.tree.push(':');
            self.part(key, v)?;
        }
        self.tree.push('}');
        Ok(())
    }

    /// Writes the key of a dict.
    fn key(&mut self, v: &Value) -> Result<()> {
        if !is_key(v) {
            return self.fail("use scalars and tuples of these", "has a key that cannot be one");
        }
        let Value::Tuple(all) = v else { return self.scalar(v) };
        self.nest(2, |e| {
            e.tree += r#"{"$":"tuple","v":["#;
            for (i, v) in all.iter().enumerate() {
                e.comma(i);
                e.key(v)?;
            }
            e.tree += "]}";
            Ok(())
        })
    }

    fn scalar(&mut self, v: &Value) -> Result<()> {
        match v {
            Value::Bool(b) => self.tree += &b.to_string(),
            Value::Int(n) if (-MOST_SAFE..=MOST_SAFE).contains(n) => self.tree += &n.to_string(),
            Value::Int(n) => return self.tagged("int", &n.to_string()),
            Value::BigInt(digits) if is_large(digits) => return self.tagged("int", digits),
            Value::BigInt(_) => {
                let what = "is no integer beyond ±(2^53-1), or one of too many digits";
                return self.fail(&format!("use Int, or at most {MOST_DIGITS} digits"), what);
            }
            // Debug writes a point or an exponent always, which tells it from an integer.
            Value::Float(f) if f.is_finite() => self.tree += &format!("{f:?}"),
            Value::Float(f) if f.is_nan() => return self.tagged("float", "nan"),
            Value::Float(f) => return self.tagged("float", if *f > 0.0 { "inf" } else { "-inf" }),
            Value::Text(s) => self.text(s),
            Value::Bytes(b) => return self.tagged("bytes", &STANDARD.encode(b)),
            Value::DType(_) | Value::Device(..) => {
                return self.fail("give it as an argument of its own", "is a dtype or a device inside another value");
            }
            _ => self.tree += "null",
        }
        Ok(())
    }

    /// Writes a tag whose value is plain text.
    fn tagged(&mut self, tag: &str, v: &str) -> Result<()> {
        self.nest(1, |e| {
            e.tree += &format!(r#"{{"$":"{tag}","v":"{v}"}}"#);
            Ok(())
        })
    }

    fn text(&mut self, s: &str) {
        self.tree.push('"');
        for c in s.chars() {
            match c {
                '"' | '\\' => self.tree.extend(['\\', c]),
                '\n' => self.tree += "\\n",
                '\r' => self.tree += "\\r",
                '\t' => self.tree += "\\t",
                '\0'..='\u{1f}' => self.tree += &format!("\\u{:04x}", c as u32),
                c => self.tree.push(c),
            }
        }
        self.tree.push('"');
    }

    fn comma(&mut self, i: usize) {
        if i > 0 {
            self.tree.push(',');
        }
    }
}
