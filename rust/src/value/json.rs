//! JSON as a tree has it: objects in their order, no integer beyond 2^53-1.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::{MOST_DEPTH, MOST_SAFE, malformed};
use crate::error::Result;

/// A JSON value. Text without escapes stands where it was read.
pub(super) enum Json<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Cow<'a, str>),
    Array(Vec<Json<'a>>),
    Object(Vec<(Cow<'a, str>, Json<'a>)>),
    /// The object of a tensor's tag, as senders write it: there may be very many.
    Tensor(i64),
}

/// A key of an object.
#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'a> Json<'a> {
    /// Reads a text, which is unchecked data from another process.
    pub(super) fn parse(text: &'a [u8]) -> Result<Json<'a>> {
        scan(text)?;
        serde_json::from_slice(text).map_err(malformed)
    }
}

/// Refuses what a JSON reader would accept: nesting beyond the limit, and integers that it would read
/// as floats.
fn scan(text: &[u8]) -> Result<()> {
    let (mut depth, mut at) = (0usize, 0);
    while let Some(c) = text.get(at) {
        at += 1;
        match c {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                while let Some(c) = text.get(at).filter(|c| **c != b'"') {
                    at += if *c == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            b'-' | b'0'..=b'9' => {
                let from = at - 1;
                while text.get(at).is_some_and(|c| c.is_ascii_digit() || b"+-.eE".contains(c)) {
                    at += 1;
                }
                let number = std::str::from_utf8(&text[from..at]).unwrap_or_default();
                let safe = number.parse::<i64>().is_ok_and(|n| (-MOST_SAFE..=MOST_SAFE).contains(&n));
                if !number.contains(['.', 'e', 'E']) && (!safe || number == "-0") {
                    let shown = &number[..number.len().min(40)];
                    return Err(malformed(format_args!("{shown} is not an integer of ±(2^53-1)")));
                }
            }
            _ => {}
        }
        if depth > MOST_DEPTH {
            return Err(malformed(format_args!("nested deeper than {MOST_DEPTH} levels")));
        }
    }
    Ok(())
}

impl<'de> Deserialize<'de> for Json<'de> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Json<'de>, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Json<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }

            fn visit_unit<E>(self) -> std::result::Result<Json<'de>, E> {
                Ok(Json::Null)
            }

            fn visit_bool<E>(self, v: bool) -> std::result::Result<Json<'de>, E> {
                Ok(Json::Bool(v))
            }

            fn visit_i64<E>(self, v: i64) -> std::result::Result<Json<'de>, E> {
                Ok(Json::Int(v))
            }

            fn visit_u64<E: Error>(self, v: u64) -> std::result::Result<Json<'de>, E> {
                i64::try_from(v).map(Json::Int).map_err(E::custom)
            }

            fn visit_f64<E>(self, v: f64) -> std::result::Result<Json<'de>, E> {
                Ok(Json::Float(v))
            }

            fn visit_str<E>(self, v: &str) -> std::result::Result<Json<'de>, E> {
                Ok(Json::Text(Cow::Owned(v.to_owned())))
            }

            fn visit_borrowed_str<E>(self, v: &'de str) -> std::result::Result<Json<'de>, E> {
                Ok(Json::Text(Cow::Borrowed(v)))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> std::result::Result<Json<'de>, A::Error> {
                let mut out = Vec::new();
                while let Some(v) = all.next_element()? {
                    out.push(v);
                }
                Ok(Json::Array(out))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut all: A) -> std::result::Result<Json<'de>, A::Error> {
                let mut out = Vec::new();
                let mut next = || Ok(all.next_entry::<Key<'de>, Json<'de>>()?.map(|(Key(key), v)| (key, v)));
                if let Some((key, tag)) = next()? {
                    let first = next()?;
                    let second = if first.is_some() { next()? } else { None };
                    if let (Json::Text(t), Some((i, Json::Int(n))), None) = (&tag, &first, &second)
                        && (&*key, &**t, &**i) == ("$", "tensor", "i")
                    {
                        return Ok(Json::Tensor(*n));
                    }
                    out.extend([Some((key, tag)), first, second].into_iter().flatten());
                }
                while let Some(member) = next()? {
                    out.push(member);
                }
                Ok(Json::Object(out))
            }
        }

        d.deserialize_any(Any)
    }
}
