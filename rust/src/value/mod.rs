//! Values: nested structures of tensors and scalars, as every language of Baton sees them. They travel
//! as a JSON tree beside the tensors (docs/protocol.md, section 6).

mod build;
mod bundle;
mod decode;
mod encode;
mod finite;
mod function;
mod handles;
mod json;
mod names;
mod parts;
mod payload;
mod tree;

/// What `any_bytes` reads trees by.
#[cfg(test)]
pub(crate) mod for_any_bytes {
    pub(crate) use super::Value;
    pub(crate) use super::build::Values;
    pub(crate) use super::encode::tree_of;
    pub(crate) use super::of_parts;
}

use std::borrow::Cow;

pub use build::Build;
pub(crate) use build::Values;
pub use bundle::Bundle;
pub(crate) use decode::{decode, of_parts};
pub(crate) use encode::encode_items;
pub use function::FunctionValue;
pub(crate) use function::{FunctionIs, Lend, Lent, token_bytes};
pub use names::Names;
pub(crate) use names::{key_of, named};
pub use payload::Payload;
pub(crate) use payload::{Outgoing, Planned, Tensors};
pub use tree::{Around, Decimal, Tree};

use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::tensor::Tensor;

/// Levels of JSON that a tree may have, tags included.
pub const MOST_DEPTH: usize = 100;
/// Digits that an integer may have.
pub const MOST_DIGITS: usize = 4096;
/// Integers beyond it, both ways, are tagged.
const MOST_SAFE: i64 = (1 << 53) - 1;
/// Bytes of the name of a dataclass.
const MOST_TYPE: usize = 512;

/// A nested structure of tensors and scalars. What Python, Go or C sends comes out with the same
/// structure, and the other way round.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// use baton::{Start, Value};
///
/// let session = baton::Session::connect()?;
/// let topic = session.topic("steps")?;
/// let mut reader = topic.reader(Start::New)?;
/// let image = session.zeros::<u8>(&[28, 28])?.freeze();
/// let value = Value::dict([("epoch", 3.into()), ("images", Value::List(vec![image.into()]))]);
/// topic.send(value.payload()?)?;
///
/// let value = reader.recv(None)?.value()?;
/// assert!(matches!(value.get("epoch"), Some(Value::Int(3))));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Value {
    /// Python's `None`.
    Null,
    /// A truth value.
    Bool(bool),
    /// An integer of 64 bits.
    Int(i64),
    /// A larger integer: decimal digits without leading zeros, after a `-` if it is negative.
    BigInt(String),
    /// A float, also infinite or not a number.
    Float(f64),
    /// Text.
    Text(String),
    /// Bytes. Large ones had better be a tensor, which is not copied.
    Bytes(Vec<u8>),
    /// A tensor.
    Tensor(Tensor),
    /// A list.
    List(Vec<Value>),
    /// A Python tuple, which stays one.
    Tuple(Vec<Value>),
    /// A dict in its order. Keys are text, or other scalars and tuples of these; each stands once.
    Dict(Vec<(Value, Value)>),
    /// A Python dataclass: `module:qualname`, and its fields.
    Dataclass(String, Vec<(String, Value)>),
    /// The type of elements; only as an argument or result of a call, not inside another value.
    DType(DType),
    /// A device, by DLPack's type of devices and its number; as [`DType`](Value::DType).
    Device(i32, i32),
    /// A function; in an argument or a result of a call.
    Function(FunctionValue),
}

impl Value {
    /// A dict with keys of text.
    pub fn dict<K: Into<String>>(items: impl IntoIterator<Item = (K, Value)>) -> Value {
        Value::Dict(items.into_iter().map(|(k, v)| (Value::Text(k.into()), v)).collect())
    }

    /// What a dict has under a key of text, or a dataclass as a field.
    pub fn get(&self, key: &str) -> Option<&Value> {
        match self {
            Value::Dict(items) => items.iter().find(|(k, _)| matches!(k, Value::Text(k) if k == key)).map(|(_, v)| v),
            Value::Dataclass(_, fields) => fields.iter().find(|(k, _)| k == key).map(|(_, v)| v),
            _ => None,
        }
    }

    /// The tensor, if it is one.
    pub fn tensor(&self) -> Option<&Tensor> {
        match self {
            Value::Tensor(t) => Some(t),
            _ => None,
        }
    }

    /// What sends, puts or sets the value.
    ///
    /// # Errors
    /// `InvalidArgument` for what no value may be: nested deeper than 100 levels of JSON, a dict with a list or a
    /// tensor as key or with a key twice, a dataclass not named `module:qualname`, an integer of more than 4,096
    /// digits.
    pub fn payload(&self) -> Result<Payload> {
        encode::encode(self)
    }
}

impl Bundle {
    /// The value that was sent. `Protocol` when its tree is not one.
    pub fn value(&self) -> Result<Value> {
        self.build(&build::Values)
    }

    /// What a builder makes of the value that was sent. `Protocol` when its tree is not one.
    pub fn build<B: Build>(&self, b: &B) -> std::result::Result<B::Made, B::Error> {
        let tensors = self.iter().map(|(name, t)| Ok((Cow::Borrowed(name), t.clone())));
        decode(b, tensors, self.tree())
    }
}

macro_rules! from {
    ($($t:ty => $variant:ident,)*) => { $(
        impl From<$t> for Value {
            fn from(v: $t) -> Value {
                Value::$variant(v.into())
            }
        }
    )* };
}

from! {
    bool => Bool, i64 => Int, i32 => Int, u32 => Int, i16 => Int, u16 => Int, i8 => Int, u8 => Int, f64 => Float,
    f32 => Float, &str => Text, String => Text, Vec<u8> => Bytes, &[u8] => Bytes, Tensor => Tensor,
    Vec<Value> => List, DType => DType, FunctionValue => Function,
}

impl From<u64> for Value {
    fn from(n: u64) -> Value {
        i64::try_from(n).map_or_else(|_| Value::BigInt(n.to_string()), Value::Int)
    }
}

impl From<usize> for Value {
    fn from(n: usize) -> Value {
        (n as u64).into()
    }
}

impl From<&Tensor> for Value {
    fn from(t: &Tensor) -> Value {
        Value::Tensor(t.clone())
    }
}

impl From<()> for Value {
    fn from((): ()) -> Value {
        Value::Null
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(v: Option<T>) -> Value {
        v.map_or(Value::Null, T::into)
    }
}

macro_rules! tuples {
    ($($($t:ident)*;)*) => { $(
        impl<$($t: Into<Value>),*> From<($($t,)*)> for Value {
            #[allow(non_snake_case)]
            fn from(($($t,)*): ($($t,)*)) -> Value {
                Value::Tuple(vec![$($t.into()),*])
            }
        }
    )* };
}

tuples! { A; A B; A B C; A B C D; A B C D E; A B C D E F; }

fn malformed(what: impl std::fmt::Display) -> Error {
    let remedy = "the sender wrote what is not a Baton value: update it";
    Error::new(Code::Protocol, remedy, format!("a value tree is malformed: {what}"))
}

/// Whether it is the name of a dataclass.
pub(crate) fn is_type_name(s: &str) -> bool {
    s.len() <= MOST_TYPE && s.split_once(':').is_some_and(|(module, name)| !module.is_empty() && !name.is_empty())
}

/// Whether digits are an integer that needs a tag.
fn is_large(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let written = (1..=MOST_DIGITS).contains(&digits.len())
        && !digits.starts_with('0')
        && digits.bytes().all(|c| c.is_ascii_digit());
    written && !text.parse::<i64>().is_ok_and(|n| (-MOST_SAFE..=MOST_SAFE).contains(&n))
}

/// Whether a value may be the key of a dict.
fn is_key(v: &Value) -> bool {
    match v {
        Value::Tuple(all) => all.iter().all(is_key),
        Value::Tensor(_) | Value::List(_) | Value::Dict(_) | Value::Dataclass(..) => false,
        Value::DType(_) | Value::Device(..) | Value::Function(_) => false,
        _ => true,
    }
}
