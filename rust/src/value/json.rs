//! JSON as a tree has it: objects in their order, no key twice, no integer beyond 2^53-1.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::{MOST_DEPTH, MOST_SAFE, malformed};
use crate::error::Result;

/// Keys of an object that are compared one by one; more are hashed. Tags have two.
const FEW: usize = 8;

/// A JSON value.
pub(super) enum Json {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Reads a text, which is another process's word.
    pub(super) fn parse(text: &[u8]) -> Result<Json> {
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

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Json, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Json;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }

            fn visit_unit<E>(self) -> std::result::Result<Json, E> {
                Ok(Json::Null)
            }

            fn visit_bool<E>(self, v: bool) -> std::result::Result<Json, E> {
                Ok(Json::Bool(v))
            }

            fn visit_i64<E>(self, v: i64) -> std::result::Result<Json, E> {
                Ok(Json::Int(v))
            }

            fn visit_u64<E: Error>(self, v: u64) -> std::result::Result<Json, E> {
                i64::try_from(v).map(Json::Int).map_err(E::custom)
            }

            fn visit_f64<E>(self, v: f64) -> std::result::Result<Json, E> {
                Ok(Json::Float(v))
            }

            fn visit_str<E>(self, v: &str) -> std::result::Result<Json, E> {
                Ok(Json::Text(v.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> std::result::Result<Json, A::Error> {
                let mut out = Vec::new();
                while let Some(v) = all.next_element()? {
                    out.push(v);
                }
                Ok(Json::Array(out))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut all: A) -> std::result::Result<Json, A::Error> {
                let (mut out, mut seen) = (Vec::<(String, Json)>::new(), HashSet::new());
                while let Some((key, v)) = all.next_entry::<String, Json>()? {
                    if out.len() == FEW {
                        seen.extend(out.iter().map(|(k, _)| k.clone()));
                    }
                    let twice = match out.len() < FEW {
                        true => out.iter().any(|(k, _)| *k == key),
                        false => !seen.insert(key.clone()),
                    };
                    if twice {
                        return Err(A::Error::custom("a key that stands twice"));
                    }
                    out.push((key, v));
                }
                Ok(Json::Object(out))
            }
        }

        d.deserialize_any(Any)
    }
}
