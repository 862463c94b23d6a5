//! Trees as values. A tree is unchecked data from another process: what no sender writes is refused.

use std::borrow::Cow;
use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::build::{Build, Values};
use super::function::is_function_name;
use super::json::Json;
use super::{FunctionIs, FunctionValue, Lent, Value, encode, is_key, is_large, is_type_name, malformed};
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Builds the value of tensors with their names, as a flat dict has them, and of a tree.
pub(crate) fn decode<'a, B: Build>(
    build: &B,
    tensors: impl ExactSizeIterator<Item = Result<(Cow<'a, str>, Tensor)>>,
    tree: &[u8],
) -> std::result::Result<B::Made, B::Error> {
    let mut names = Vec::with_capacity(if tree.is_empty() { tensors.len() } else { 0 });
    let mut made = Vec::with_capacity(tensors.len());
    for t in tensors {
        let (name, t) = t?;
        made.push(build.tensor(t)?);
        if tree.is_empty() {
            names.push(name);
        }
    }
    of_parts(build, names, made, tree)
}

/// As `decode`, of tensors that are made already.
pub(crate) fn of_parts<B: Build>(
    build: &B,
    names: Vec<Cow<'_, str>>,
    mut made: Vec<B::Made>,
    tree: &[u8],
) -> std::result::Result<B::Made, B::Error> {
    if is_list(tree, made.len()) {
        return build.list(made);
    }
    if !tree.is_empty() {
        return Decoder { build, tensors: made }.value(Json::parse(tree)?);
    }
    if names.len() == 1 && names[0].is_empty() {
        return made.pop().ok_or_else(|| malformed("no tensor").into());
    }
    let unnamed = names.iter().any(|name| name.is_empty());
    let items = names.iter().map(|name| &**name).zip(made).collect();
    let dict = if unnamed { None } else { build.named(None, items)? };
    Ok(dict.ok_or_else(|| malformed("tensors without a tree have no name, or one name twice"))?)
}

/// Whether a tree is the list of all tensors, as senders write it: there may be very many.
fn is_list(tree: &[u8], n: usize) -> bool {
    let behind = (0..n).try_fold(tree, |rest, i| {
        let rest = rest.strip_prefix(if i == 0 { b"[" } else { b"," })?.strip_prefix(br#"{"$":"tensor","i":"#)?;
        let digits = rest.iter().position(|c| !c.is_ascii_digit())?;
        let number = std::str::from_utf8(&rest[..digits]).ok()?;
        let plain = number == "0" || !number.starts_with('0');
        rest[digits..].strip_prefix(b"}").filter(|_| plain && number.parse() == Ok(i))
    });
    n > 0 && behind == Some(b"]")
}

struct Decoder<'b, B: Build> {
    build: &'b B,
    tensors: Vec<B::Made>,
}

impl<B: Build> Decoder<'_, B> {
    fn value(&self, v: Json) -> std::result::Result<B::Made, B::Error> {
        match v {
            Json::Null => self.build.scalar(Value::Null),
            Json::Bool(b) => self.build.scalar(b.into()),
            Json::Int(n) => self.build.scalar(n.into()),
            Json::Float(f) => self.build.scalar(f.into()),
            Json::Text(s) => self.build.text(&s),
            Json::Tensor(i) => self.tensor(i),
            Json::Array(all) => self.build.list(self.all(all)?),
            Json::Object(all) => match all.iter().any(|(key, _)| key == "$") {
                true => self.tagged(all),
                false => self.named(None, all),
            },
        }
    }

    fn all(&self, all: Vec<Json>) -> std::result::Result<Vec<B::Made>, B::Error> {
        all.into_iter().map(|v| self.value(v)).collect()
    }

    fn tensor(&self, i: i64) -> std::result::Result<B::Made, B::Error> {
        let t = usize::try_from(i).ok().and_then(|i| self.tensors.get(i));
        Ok(t.cloned().ok_or_else(|| malformed("a tensor without a number of the table"))?)
    }

    fn named(&self, class: Option<&str>, all: Vec<(Cow<'_, str>, Json)>) -> std::result::Result<B::Made, B::Error> {
        let mut keys = Vec::with_capacity(all.len());
        let mut made = Vec::with_capacity(all.len());
        for (key, v) in all {
            keys.push(key);
            made.push(self.value(v)?);
        }
        let items = keys.iter().map(|key| &**key).zip(made).collect();
        Ok(self.build.named(class, items)?.ok_or_else(|| malformed("a key that stands twice"))?)
    }

    /// An object with the key `$` and what its tag needs.
    fn tagged(&self, mut all: Vec<(Cow<'_, str>, Json)>) -> std::result::Result<B::Made, B::Error> {
        let mut take = |key: &str| all.iter().position(|(k, _)| k == key).map(|at| all.swap_remove(at).1);
        let Some(Json::Text(tag)) = take("$") else { return Err(malformed("a tag that is no text").into()) };
        if &*tag == "function" {
            let is = match (take("name"), take("token"), take("object")) {
                (Some(Json::Text(name)), None, None) => {
                    is_function_name(&name).then(|| FunctionIs::Named((&*name).into()))
                }
                (None, Some(Json::Text(token)), Some(Json::Int(n))) => Lent::read(&token, n).map(FunctionIs::Lent),
                _ => None,
            };
            let Some(is) = is.filter(|_| all.is_empty()) else {
                return Err(malformed("a function that has neither a name nor a token with a number").into());
            };
            return self.build.function(FunctionValue::of(is));
        }
        let fields = if &*tag == "tuple" { take("fields") } else { None };
        let (v, kind) = match &*tag {
            "tensor" => (take("i"), None),
            "dataclass" | "tuple" => (take("v"), take("type")),
            _ => (take("v"), None),
        };
        if !all.is_empty() {
            return Err(malformed("a tag with members besides it").into());
        }
        match (&*tag, v, kind) {
            ("tensor", Some(Json::Int(i)), _) => self.tensor(i),
            ("tuple", Some(Json::Array(all)), None) if fields.is_none() => self.build.tuple(self.all(all)?),
            ("tuple", Some(Json::Array(all)), Some(Json::Text(name))) if is_type_name(&name) => {
                let Some(Json::Array(fields)) = fields else {
                    return Err(malformed("a named tuple without names").into());
                };
                let text = |f: &Json| if let Json::Text(t) = f { Some(t.to_string()) } else { None };
                match fields.iter().map(text).collect::<Option<Vec<_>>>() {
                    Some(names) if names.len() == all.len() => self.build.named_tuple(&name, &names, self.all(all)?),
                    _ => Err(malformed("a named tuple with other names than items").into()),
                }
            }
            ("dict", Some(Json::Array(all)), _) => self.pairs(all),
            ("dataclass", Some(Json::Object(all)), Some(Json::Text(name)))
                if is_type_name(&name) && !all.iter().any(|(key, _)| key == "$") =>
            {
                self.named(Some(&name), all)
            }
            (tag, Some(Json::Text(s)), _) => self.build.scalar(scalar(tag, &s)?),
            _ => Err(malformed("a tag that is unknown or has a wrong value").into()),
        }
    }

    fn pairs(&self, all: Vec<Json>) -> std::result::Result<B::Made, B::Error> {
        let (mut items, mut seen) = (Vec::with_capacity(all.len()), HashSet::new());
        for pair in all {
            let Json::Array(pair) = pair else { return Err(malformed("a dict that is no list of pairs").into()) };
            let Ok([key, v]) = <[Json; 2]>::try_from(pair) else {
                return Err(malformed("a dict that is no list of pairs").into());
            };
            // Without a tensor: one is no key.
            let key = Decoder { build: &Values, tensors: Vec::new() }.value(key)?;
            if !is_key(&key) {
                return Err(malformed("a dict with a key that cannot be one").into());
            }
            if !seen.insert(encode::key_text(&key)?) {
                return Err(malformed("a dict with a key that stands twice").into());
            }
            items.push((self.key(key)?, self.value(v)?));
        }
        self.build.dict(items)
    }

    fn key(&self, v: Value) -> std::result::Result<B::Made, B::Error> {
        match v {
            Value::Text(s) => self.build.text(&s),
            Value::Tuple(all) => {
                let all = all.into_iter().map(|v| self.key(v)).collect::<std::result::Result<_, _>>()?;
                self.build.tuple(all)
            }
            scalar => self.build.scalar(scalar),
        }
    }
}

/// What a tag makes of text.
fn scalar(tag: &str, s: &str) -> std::result::Result<Value, Error> {
    match (tag, s) {
        ("bytes", _) => STANDARD.decode(s).map(Value::Bytes).map_err(|_| malformed("bytes that are not base64")),
        ("int", _) if is_large(s) => Ok(s.parse().map_or_else(|_| Value::BigInt(s.to_owned()), Value::Int)),
        ("float", "nan") => Ok(Value::Float(f64::NAN)),
        ("float", "inf") => Ok(Value::Float(f64::INFINITY)),
        ("float", "-inf") => Ok(Value::Float(f64::NEG_INFINITY)),
        ("float", _) => Err(malformed("a tagged float that is not nan, inf or -inf")),
        _ => Err(malformed("a tag that is unknown or has a wrong value")),
    }
}

#[cfg(test)]
mod tests {
    use super::is_list;

    #[test]
    fn a_list_of_all_tensors_is_known_by_its_text() {
        let tree = |all: &[&str]| {
            let all: Vec<String> = all.iter().map(|i| format!(r#"{{"$":"tensor","i":{i}}}"#)).collect();
            format!("[{}]", all.join(",")).into_bytes()
        };
        let all: Vec<String> = (0..120).map(|i| i.to_string()).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        assert!(is_list(&tree(&all), 120) && is_list(&tree(&["0"]), 1));
        assert!(!is_list(&tree(&all), 119) && !is_list(&tree(&all), 121));
        for odd in [&["00"][..], &["1"], &[""], &["-0"], &["0.0"], &["184467440737095516160"]] {
            assert!(!is_list(&tree(odd), 1), "{odd:?}");
        }
        assert!(!is_list(&tree(&["1", "0"]), 2) && !is_list(&tree(&["0", "01"]), 2));
        assert!(!is_list(&tree(&[]), 0) && !is_list(b"]", 0) && !is_list(b"[", 0) && !is_list(b"", 0));
        assert!(!is_list(br#"[{"$":"tensor","i":0}"#, 1) && !is_list(br#"[{"$":"tensor","i":0"#, 1));
        assert!(!is_list(br#"[{"$":"tensor","i":0}],"#, 1) && !is_list(br#"[{"$":"tensor", "i":0}]"#, 1));
    }
}
