//! Values: what calls take and give.

use std::ffi::CString;
use std::sync::Arc;

use baton::{DType, FunctionValue, Tensor, Value};

use crate::error::{Outcome, Refusal, refused_for};
use crate::status::baton_status;

/// Kinds of a baton_value: None.
pub const BATON_KIND_NONE: i32 = 0;
/// An integer of any size.
pub const BATON_KIND_INT: i32 = 1;
/// A truth value.
pub const BATON_KIND_BOOL: i32 = 2;
/// A float.
pub const BATON_KIND_FLOAT: i32 = 3;
/// A tensor.
pub const BATON_KIND_TENSOR: i32 = 4;
/// A text.
pub const BATON_KIND_TEXT: i32 = 6;
/// Bytes.
pub const BATON_KIND_BYTES: i32 = 7;
/// A type of elements.
pub const BATON_KIND_DTYPE: i32 = 8;
/// A device.
pub const BATON_KIND_DEVICE: i32 = 9;
/// A list.
pub const BATON_KIND_LIST: i32 = 10;
/// A tuple.
pub const BATON_KIND_TUPLE: i32 = 11;
/// A dict: what a bundle of tensors is, too.
pub const BATON_KIND_DICT: i32 = 12;
/// A dataclass of Python's: a dict with the name of its class.
pub const BATON_KIND_DATACLASS: i32 = 13;
/// A function.
pub const BATON_KIND_FUNCTION: i32 = 14;

/// Levels that a value may have.
const MOST_DEPTH: u32 = 100;

/// A value: what calls take and give. Its members are the library's: baton_value_of_... make one, baton_value_kind
/// and baton_value_as_... read it, and BATON_VALUE_INIT, all zero, is None. A value never changes, so any number of
/// threads may read one; what the functions that look into it give is its own and goes with it. It is released once
/// with baton_value_release, and may be moved as bytes, as in an array, as long as one place alone is released.
#[repr(C)]
#[derive(Default)]
pub struct baton_value {
    kind: i32,
    held: u32,
    word: u64,
}

/// What does not fit into a word.
pub(crate) enum Held {
    /// The digits of an integer beyond 64 bits.
    Digits(String),
    /// With a zero behind it.
    Text(Box<[u8]>),
    Bytes(Vec<u8>),
    Tensor(Tensor),
    Function(FunctionValue),
    Items(Items),
}

/// What a list, tuple, dict or dataclass has.
#[derive(Default)]
pub(crate) struct Items {
    /// As many as values, or none.
    pub(crate) keys: Vec<baton_value>,
    pub(crate) values: Vec<baton_value>,
    pub(crate) class: CString,
    pub(crate) depth: u32,
}

// Each is behind an `Arc` that any thread may read and drop.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Held>();
};

/// A value as it is read.
pub(crate) enum Seen<'a> {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    DType(DType),
    Device(i32, i32),
    Held(&'a Held),
}

impl baton_value {
    pub(crate) const NONE: baton_value = baton_value { kind: BATON_KIND_NONE, held: 0, word: 0 };

    pub(crate) fn kind(&self) -> i32 {
        self.kind
    }

    /// As the types of a parameter name it.
    pub(crate) fn kind_name(&self) -> &'static str {
        match self.kind {
            BATON_KIND_NONE => "none",
            BATON_KIND_INT => "int",
            BATON_KIND_BOOL => "bool",
            BATON_KIND_FLOAT => "float",
            BATON_KIND_TENSOR => "tensor",
            BATON_KIND_TEXT => "str",
            BATON_KIND_BYTES => "bytes",
            BATON_KIND_DTYPE => "dtype",
            BATON_KIND_DEVICE => "device",
            BATON_KIND_LIST => "list",
            BATON_KIND_TUPLE => "tuple",
            BATON_KIND_DICT => "dict",
            BATON_KIND_DATACLASS => "dataclass",
            BATON_KIND_FUNCTION => "function",
            _ => "none that is known",
        }
    }

    fn plain(kind: i32, word: u64) -> baton_value {
        baton_value { kind, held: 0, word }
    }

    fn holding(kind: i32, held: Held) -> baton_value {
        baton_value { kind, held: 1, word: Arc::into_raw(Arc::new(held)).expose_provenance() as u64 }
    }

    pub(crate) fn of_bool(b: bool) -> baton_value {
        baton_value::plain(BATON_KIND_BOOL, b.into())
    }

    pub(crate) fn of_int(n: i64) -> baton_value {
        baton_value::plain(BATON_KIND_INT, n as u64)
    }

    pub(crate) fn of_float(f: f64) -> baton_value {
        baton_value::plain(BATON_KIND_FLOAT, f.to_bits())
    }

    pub(crate) fn of_dtype(d: DType) -> baton_value {
        let word = u64::from(d.code) | u64::from(d.bits) << 8 | u64::from(d.lanes) << 16;
        baton_value::plain(BATON_KIND_DTYPE, word)
    }

    pub(crate) fn of_device(kind: i32, number: i32) -> baton_value {
        baton_value::plain(BATON_KIND_DEVICE, u64::from(kind as u32) | u64::from(number as u32) << 32)
    }

    pub(crate) fn of_text(text: impl Into<Vec<u8>>) -> baton_value {
        let mut bytes = text.into();
        bytes.push(0);
        baton_value::holding(BATON_KIND_TEXT, Held::Text(bytes.into()))
    }

    pub(crate) fn of_bytes(bytes: Vec<u8>) -> baton_value {
        baton_value::holding(BATON_KIND_BYTES, Held::Bytes(bytes))
    }

    pub(crate) fn of_tensor(t: Tensor) -> baton_value {
        baton_value::holding(BATON_KIND_TENSOR, Held::Tensor(t))
    }

    pub(crate) fn of_function(f: FunctionValue) -> baton_value {
        baton_value::holding(BATON_KIND_FUNCTION, Held::Function(f))
    }

    /// A list, tuple, dict or dataclass. One that is too deep to be sent is refused here: what is as deep as a program
    /// likes would end in the depth of the stack.
    pub(crate) fn of_items(kind: i32, mut items: Items) -> Outcome<baton_value> {
        let depths = items.values.iter().chain(&items.keys).map(baton_value::depth);
        items.depth = 1 + depths.max().unwrap_or(0);
        if items.depth > MOST_DEPTH {
            return refused_for(format!("a value of more than {MOST_DEPTH} levels"), "make it flatter");
        }
        Ok(baton_value::holding(kind, Held::Items(items)))
    }

    fn depth(&self) -> u32 {
        match self.seen() {
            Ok(Seen::Held(Held::Items(items))) => items.depth,
            _ => 0,
        }
    }

    /// The value, unless it is none that this library made.
    pub(crate) fn seen(&self) -> Outcome<Seen<'_>> {
        Ok(match (self.held, self.kind) {
            // SAFETY: only this file makes values that hold something; the value keeps it.
            (1, _) => Seen::Held(unsafe { &*self.pointer() }),
            (0, BATON_KIND_NONE) => Seen::None,
            (0, BATON_KIND_BOOL) => Seen::Bool(self.word != 0),
            (0, BATON_KIND_INT) => Seen::Int(self.word as i64),
            (0, BATON_KIND_FLOAT) => Seen::Float(f64::from_bits(self.word)),
            (0, BATON_KIND_DTYPE) => {
                let w = self.word;
                Seen::DType(DType { code: w as u8, bits: (w >> 8) as u8, lanes: (w >> 16) as u16 })
            }
            (0, BATON_KIND_DEVICE) => Seen::Device(self.word as i32, (self.word >> 32) as i32),
            (_, kind) => {
                return refused_for(format!("a baton_value of the kind {kind}"), "begin with BATON_VALUE_INIT");
            }
        })
    }

    fn pointer(&self) -> *const Held {
        std::ptr::with_exposed_provenance(self.word as usize)
    }

    /// What it has, of a list, tuple, dict or dataclass.
    pub(crate) fn items(&self) -> Option<&Items> {
        match self.seen() {
            Ok(Seen::Held(Held::Items(items))) => Some(items),
            _ => None,
        }
    }

    /// The text that it is, without the zero.
    pub(crate) fn text(&self) -> Option<&str> {
        match self.seen() {
            Ok(Seen::Held(Held::Text(t))) => std::str::from_utf8(&t[..t.len() - 1]).ok(),
            _ => None,
        }
    }

    /// One that the crate made.
    pub(crate) fn of(value: Value) -> Outcome<baton_value> {
        Ok(match value {
            Value::Null => baton_value::NONE,
            Value::Bool(b) => baton_value::of_bool(b),
            Value::Int(n) => baton_value::of_int(n),
            Value::BigInt(digits) => baton_value::holding(BATON_KIND_INT, Held::Digits(digits)),
            Value::Float(f) => baton_value::of_float(f),
            Value::Text(s) => baton_value::of_text(s),
            Value::Bytes(b) => baton_value::of_bytes(b),
            Value::Tensor(t) => baton_value::of_tensor(t),
            Value::DType(d) => baton_value::of_dtype(d),
            Value::Device(kind, number) => baton_value::of_device(kind, number),
            Value::Function(f) => baton_value::of_function(f),
            Value::List(all) => baton_value::of_items(BATON_KIND_LIST, Items::of(all)?)?,
            Value::Tuple(all) => baton_value::of_items(BATON_KIND_TUPLE, Items::of(all)?)?,
            Value::Dict(all) => {
                let (keys, values): (Vec<_>, Vec<_>) = all.into_iter().unzip();
                let keys = Items::of(keys)?.values;
                baton_value::of_items(BATON_KIND_DICT, Items { keys, ..Items::of(values)? })?
            }
            Value::Dataclass(class, fields) => {
                let (keys, values): (Vec<_>, Vec<_>) = fields.into_iter().unzip();
                let keys = keys.into_iter().map(baton_value::of_text).collect();
                let class = crate::c_text(class);
                baton_value::of_items(BATON_KIND_DATACLASS, Items { keys, class, ..Items::of(values)? })?
            }
            other => {
                let what = format!("a value of a kind that this version does not know: {other:?}");
                return Err(Refusal::Own(baton_status::BATON_UNSUPPORTED, what));
            }
        })
    }

    /// As the crate has it.
    pub(crate) fn value(&self) -> Outcome<Value> {
        Ok(match self.seen()? {
            Seen::None => Value::Null,
            Seen::Bool(b) => b.into(),
            Seen::Int(n) => n.into(),
            Seen::Float(f) => f.into(),
            Seen::DType(d) => d.into(),
            Seen::Device(kind, number) => Value::Device(kind, number),
            Seen::Held(Held::Digits(digits)) => Value::BigInt(digits.clone()),
            Seen::Held(Held::Text(_)) => self.text().unwrap_or_default().into(),
            Seen::Held(Held::Bytes(b)) => b.as_slice().into(),
            Seen::Held(Held::Tensor(t)) => t.into(),
            Seen::Held(Held::Function(f)) => f.into(),
            Seen::Held(Held::Items(items)) => items.value(self.kind)?,
        })
    }
}

impl Items {
    pub(crate) fn of(values: Vec<Value>) -> Outcome<Items> {
        let values = values.into_iter().map(baton_value::of).collect::<Outcome<_>>()?;
        Ok(Items { values, ..Items::default() })
    }

    fn value(&self, kind: i32) -> Outcome<Value> {
        let values = self.values.iter().map(baton_value::value).collect::<Outcome<Vec<_>>>()?;
        Ok(match kind {
            BATON_KIND_LIST => Value::List(values),
            BATON_KIND_TUPLE => Value::Tuple(values),
            BATON_KIND_DATACLASS => {
                let names = self.keys.iter().map(|k| k.text().unwrap_or_default().to_owned());
                Value::Dataclass(self.class.to_string_lossy().into_owned(), names.zip(values).collect())
            }
            _ => {
                let keys = self.keys.iter().map(baton_value::value).collect::<Outcome<Vec<_>>>()?;
                Value::Dict(keys.into_iter().zip(values).collect())
            }
        })
    }
}

impl Clone for baton_value {
    fn clone(&self) -> baton_value {
        if self.held == 1 {
            // SAFETY: it came from an `Arc` that this value keeps.
            unsafe { Arc::increment_strong_count(self.pointer()) };
        }
        baton_value { ..*self }
    }
}

impl Drop for baton_value {
    fn drop(&mut self) {
        if std::mem::take(&mut self.held) == 1 {
            // SAFETY: it came from an `Arc`, whose count this value has, and has no more.
            drop(unsafe { Arc::from_raw(self.pointer()) });
        }
        (self.kind, self.word) = (BATON_KIND_NONE, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_as_they_were() {
        let inner = Value::Tuple(vec![1.into(), Value::Null, "a\0b".into(), true.into()]);
        let dict = Value::Dict(vec![(Value::Int(3), inner), ("k".into(), Value::BigInt("1".repeat(30)))]);
        let class = Value::Dataclass("m:C".into(), vec![("f".into(), vec![1u8, 2].into())]);
        let all = Value::List(vec![dict, class, 0.5.into(), DType::FLOAT32.into(), Value::Device(2, 1)]);
        let v = baton_value::of(all.clone()).ok().unwrap();
        let copy = v.clone();
        drop(v);
        assert_eq!(format!("{:?}", copy.value().ok().unwrap()), format!("{all:?}"));
        assert_eq!((copy.depth(), copy.kind()), (3, BATON_KIND_LIST));
    }

    #[test]
    fn what_is_too_deep_is_refused() {
        let mut v = baton_value::NONE;
        for n in 0.. {
            let items = Items { values: vec![v.clone()], ..Items::default() };
            match baton_value::of_items(BATON_KIND_LIST, items) {
                Ok(deeper) => v = deeper,
                Err(_) => return assert_eq!(n, MOST_DEPTH),
            }
        }
    }

    #[test]
    fn noise_is_refused() {
        for (kind, held) in [(99, 0), (BATON_KIND_LIST, 0), (BATON_KIND_TEXT, 2), (-1, 7)] {
            let v = std::mem::ManuallyDrop::new(baton_value { kind, held, word: 1 });
            assert!(v.value().is_err() && v.items().is_none() && v.text().is_none());
            drop((*v).clone());
        }
    }
}
