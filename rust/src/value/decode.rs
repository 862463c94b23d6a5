//! Trees as values. A tree is another process's word: what no sender writes is refused.

use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::json::Json;
use super::{Value, encode, is_key, is_large, is_type_name, malformed};
use crate::error::Result;
use crate::session::{Bundle, Tensor};

/// The value of a bundle.
pub(super) fn decode(b: &Bundle) -> Result<Value> {
    if !b.tree().is_empty() {
        let tensors = b.iter().map(|(_, t)| t).collect();
        return Decoder { tensors }.value(Json::parse(b.tree())?);
    }
    let mut all = b.iter();
    if let (1, Some(("", t))) = (b.len(), all.next()) {
        return Ok(t.clone().into());
    }
    let mut seen = HashSet::new();
    if b.iter().any(|(key, _)| key.is_empty() || !seen.insert(key)) {
        return Err(malformed("tensors without a tree have no name, or one name twice"));
    }
    Ok(Value::dict(b.iter().map(|(key, t)| (key, t.clone().into()))))
}

struct Decoder<'a> {
    tensors: Vec<&'a Tensor>,
}

impl Decoder<'_> {
    fn value(&self, v: Json) -> Result<Value> {
        Ok(match v {
            Json::Null => Value::Null,
            Json::Bool(b) => b.into(),
            Json::Int(n) => n.into(),
            Json::Float(f) => f.into(),
            Json::Text(s) => s.into(),
            Json::Array(all) => Value::List(self.all(all)?),
            Json::Object(all) => match all.iter().any(|(key, _)| key == "$") {
                true => self.tagged(all)?,
                false => Value::dict(self.fields(all)?),
            },
        })
    }

    fn all(&self, all: Vec<Json>) -> Result<Vec<Value>> {
        all.into_iter().map(|v| self.value(v)).collect()
    }

    fn fields(&self, all: Vec<(String, Json)>) -> Result<Vec<(String, Value)>> {
        all.into_iter().map(|(key, v)| Ok((key, self.value(v)?))).collect()
    }

    /// An object with the key `$` and what its tag needs.
    fn tagged(&self, mut all: Vec<(String, Json)>) -> Result<Value> {
        let mut take = |key: &str| all.iter().position(|(k, _)| k == key).map(|at| all.swap_remove(at).1);
        let Some(Json::Text(tag)) = take("$") else { return Err(malformed("a tag that is no text")) };
        let (v, kind) = match tag.as_str() {
            "tensor" => (take("i"), None),
            "dataclass" => (take("v"), take("type")),
            _ => (take("v"), None),
        };
        if !all.is_empty() {
            return Err(malformed("a tag with members besides it"));
        }
        match (tag.as_str(), v, kind) {
            ("tensor", Some(Json::Int(i)), _) => {
                let t = usize::try_from(i).ok().and_then(|i| self.tensors.get(i));
                let t = t.ok_or_else(|| malformed("a tensor without a number of the table"))?;
                Ok(Tensor::clone(t).into())
            }
            ("tuple", Some(Json::Array(all)), _) => self.all(all).map(Value::Tuple),
            ("bytes", Some(Json::Text(s)), _) => {
                STANDARD.decode(&s).map(Value::Bytes).map_err(|_| malformed("bytes that are not base64"))
            }
            ("int", Some(Json::Text(s)), _) if is_large(&s) => Ok(s.parse().map_or(Value::BigInt(s), Value::Int)),
            ("float", Some(Json::Text(s)), _) => match s.as_str() {
                "nan" => Ok(Value::Float(f64::NAN)),
                "inf" => Ok(Value::Float(f64::INFINITY)),
                "-inf" => Ok(Value::Float(f64::NEG_INFINITY)),
                _ => Err(malformed("a tagged float that is not nan, inf or -inf")),
            },
            ("dict", Some(Json::Array(all)), _) => self.pairs(all),
            ("dataclass", Some(Json::Object(all)), Some(Json::Text(name)))
                if is_type_name(&name) && !all.iter().any(|(key, _)| key == "$") =>
            {
                Ok(Value::Dataclass(name, self.fields(all)?))
            }
            _ => Err(malformed("a tag that is unknown or has a wrong value")),
        }
    }

    fn pairs(&self, all: Vec<Json>) -> Result<Value> {
        let (mut items, mut seen) = (Vec::with_capacity(all.len()), HashSet::new());
        for pair in all {
            let Json::Array(pair) = pair else { return Err(malformed("a dict that is no list of pairs")) };
            let Ok([key, v]) = <[Json; 2]>::try_from(pair) else {
                return Err(malformed("a dict that is no list of pairs"));
            };
            let key = self.value(key)?;
            if !is_key(&key) {
                return Err(malformed("a dict with a key that cannot be one"));
            }
            if !seen.insert(encode::key_text(&key)?) {
                return Err(malformed("a dict with a key that stands twice"));
            }
            items.push((key, self.value(v)?));
        }
        Ok(Value::Dict(items))
    }
}
