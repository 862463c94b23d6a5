//! What arguments and results become where they are asked for: bool to int to float, a tensor without dimensions to its
//! one number, and nothing else.

use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::tensor::Tensor;
use crate::value::{FunctionValue, Value};

/// A type that arguments and results are read as.
///
/// A bool may be read as an integer, an integer as a float, and a tensor without dimensions as a number; a number that
/// does not fit is an error, and so is everything else: `InvalidArgument`.
///
/// ```
/// use baton::{FromValue, Value};
///
/// assert_eq!(f64::from_value(Value::Int(3))?, 3.0);
/// assert_eq!(i64::from_value(Value::Bool(true))?, 1);
/// assert_eq!(Option::<String>::from_value(Value::Null)?, None);
/// assert!(i64::from_value(Value::Float(3.0)).is_err());
/// assert!(u8::from_value(Value::Int(256)).is_err());
/// # Ok::<(), baton::Error>(())
/// ```
pub trait FromValue: Sized {
    /// Reads a value.
    fn from_value(v: Value) -> Result<Self>;
}

/// What a value is, for people.
pub(crate) fn kind_of(v: &Value) -> &'static str {
    match v {
        Value::Null => "none",
        Value::Bool(_) => "bool",
        Value::Int(_) | Value::BigInt(_) => "int",
        Value::Float(_) => "float",
        Value::Text(_) => "str",
        Value::Bytes(_) => "bytes",
        Value::Tensor(_) => "tensor",
        Value::List(_) => "list",
        Value::Tuple(_) => "tuple",
        Value::Dict(_) => "dict",
        Value::Dataclass(..) => "dataclass",
        Value::DType(_) => "dtype",
        Value::Device(..) => "device",
        Value::Function(_) => "function",
    }
}

#[cold]
pub(crate) fn refused(what: String) -> Error {
    Error::new(Code::InvalidArgument, "give what the function takes", what)
}

#[cold]
fn is_no(v: &Value, wanted: &str) -> Error {
    refused(format!("a {} was given for {wanted}", kind_of(v)))
}

/// The number of a tensor without dimensions; anything else as it is.
pub(crate) fn scalar_of(v: Value) -> Result<Value> {
    match v {
        Value::Tensor(t) if t.shape().is_empty() => number(&t).map(|n| n.unwrap_or(Value::Tensor(t))),
        v => Ok(v),
    }
}

/// The number that a tensor without dimensions is; `None` where it has none that a float or an integer is.
pub(crate) fn number(t: &Tensor) -> Result<Option<Value>> {
    macro_rules! read {
        ($($dtype:ident $t:ty => $v:expr;)*) => {
            match t.dtype() {
                $(DType::$dtype => t.to_vec::<$t>()?.first().map(|n| { let to: fn($t) -> Value = $v; to(*n) }),)*
                _ => None,
            }
        };
    }
    if !t.shape().is_empty() {
        return Ok(None);
    }
    match t.dtype() {
        DType::FLOAT16 => return Ok(Some(float16(t.first_bits()?).into())),
        DType::BFLOAT16 => return Ok(Some(f32::from_bits(u32::from(t.first_bits()?) << 16).into())),
        _ => {}
    }
    Ok(read! {
        BOOL crate::dtype::Bool => |b| Value::Bool(b.into());
        INT8 i8 => |n| n.into(); INT16 i16 => |n| n.into(); INT32 i32 => |n| n.into(); INT64 i64 => |n| n.into();
        UINT8 u8 => |n| n.into(); UINT16 u16 => |n| n.into(); UINT32 u32 => |n| n.into(); UINT64 u64 => |n| n.into();
        FLOAT32 f32 => |n| n.into(); FLOAT64 f64 => |n| n.into();
    })
}

/// The number that the bits of a float16 are.
fn float16(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    let f = match (exponent, bits & 0x3ff) {
        (0, _) => fraction * 2f64.powi(-24),
        (0x1f, 0) => f64::INFINITY,
        (0x1f, _) => f64::NAN,
        _ => (fraction + 1024.0) * 2f64.powi(exponent - 25),
    };
    if bits >> 15 == 1 { -f } else { f }
}

/// The float that an integer of any size is; `None` where it is larger than all.
pub(crate) fn float_of_digits(digits: &str) -> Option<f64> {
    digits.parse::<f64>().ok().filter(|f| f.is_finite())
}

impl FromValue for Value {
    fn from_value(v: Value) -> Result<Value> {
        Ok(v)
    }
}

impl FromValue for () {
    fn from_value(v: Value) -> Result<()> {
        if let Value::Null = v { Ok(()) } else { Err(is_no(&v, "none")) }
    }
}

impl FromValue for bool {
    fn from_value(v: Value) -> Result<bool> {
        match scalar_of(v)? {
            Value::Bool(b) => Ok(b),
            v => Err(is_no(&v, "bool")),
        }
    }
}

impl FromValue for i64 {
    #[inline]
    fn from_value(v: Value) -> Result<i64> {
        match scalar_of(v)? {
            Value::Int(n) => Ok(n),
            Value::Bool(b) => Ok(b.into()),
            Value::BigInt(digits) => Err(refused(format!("the int {digits} does not fit in 64 bits"))),
            v => Err(is_no(&v, "int")),
        }
    }
}

impl FromValue for f64 {
    #[inline]
    fn from_value(v: Value) -> Result<f64> {
        match scalar_of(v)? {
            Value::Float(f) => Ok(f),
            Value::Int(n) => Ok(n as f64),
            Value::Bool(b) => Ok(b.into()),
            Value::BigInt(d) => {
                float_of_digits(&d).ok_or_else(|| refused(format!("the int {d} is larger than all floats")))
            }
            v => Err(is_no(&v, "float")),
        }
    }
}

impl FromValue for f32 {
    fn from_value(v: Value) -> Result<f32> {
        let f = f64::from_value(v)?;
        let narrow = f as f32;
        if narrow.is_infinite() && f.is_finite() {
            return Err(refused(format!("the float {f:e} does not fit in f32")));
        }
        Ok(narrow)
    }
}

macro_rules! integers {
    ($($t:ty)*) => { $(
        impl FromValue for $t {
            fn from_value(v: Value) -> Result<$t> {
                let n = match scalar_of(v)? {
                    Value::BigInt(digits) => digits.parse().ok(),
                    v => <$t>::try_from(i64::from_value(v)?).ok(),
                };
                n.ok_or_else(|| refused(format!("an int does not fit in {}", stringify!($t))))
            }
        }
    )* };
}

integers! { i8 i16 i32 u8 u16 u32 u64 usize isize }

macro_rules! as_it_is {
    ($($t:ty, $variant:ident, $name:literal;)*) => { $(
        impl FromValue for $t {
            fn from_value(v: Value) -> Result<$t> {
                match v {
                    Value::$variant(v) => Ok(v),
                    v => Err(is_no(&v, $name)),
                }
            }
        }
    )* };
}

as_it_is! { String, Text, "str"; Tensor, Tensor, "tensor"; DType, DType, "dtype"; FunctionValue, Function, "function"; }

impl<T: FromValue> FromValue for Option<T> {
    fn from_value(v: Value) -> Result<Option<T>> {
        if let Value::Null = v { Ok(None) } else { T::from_value(v).map(Some) }
    }
}

impl<T: FromValue> FromValue for Vec<T> {
    /// Of a list or a tuple. Bytes are read as [`Bytes`](Value::Bytes).
    fn from_value(v: Value) -> Result<Vec<T>> {
        match v {
            Value::List(all) | Value::Tuple(all) => all.into_iter().map(T::from_value).collect(),
            v => Err(is_no(&v, "list")),
        }
    }
}

macro_rules! tuples {
    ($($n:literal $($t:ident)*;)*) => { $(
        impl<$($t: FromValue),*> FromValue for ($($t,)*) {
            /// Of a tuple or a list of as many.
            fn from_value(v: Value) -> Result<Self> {
                match v {
                    Value::List(all) | Value::Tuple(all) if all.len() == $n => {
                        let mut all = all.into_iter();
                        Ok(($($t::from_value(all.next().unwrap_or(Value::Null))?,)*))
                    }
                    v => Err(is_no(&v, concat!("a tuple of ", $n))),
                }
            }
        }
    )* };
}

tuples! { 1 A; 2 A B; 3 A B C; 4 A B C D; 5 A B C D E; 6 A B C D E F; }

#[cfg(test)]
mod tests {
    use super::*;

    fn code<T: FromValue>(v: Value) -> Option<Code> {
        T::from_value(v).err().map(|e| e.code())
    }

    #[test]
    fn the_numbers_of_float16() {
        let all =
            [(0xc100, -2.5), (0x3c00, 1.0), (0x7bff, 65504.0), (1, 2f64.powi(-24)), (0x83ff, -1023.0 / 2f64.powi(24))];
        for (bits, f) in all {
            assert_eq!(float16(bits), f, "{bits:#x}");
        }
        assert_eq!((float16(0x7c00), float16(0xfc00)), (f64::INFINITY, f64::NEG_INFINITY));
        assert!(float16(0x7e00).is_nan() && float16(0x8000).is_sign_negative());
    }

    #[test]
    fn bool_to_int_to_float_and_nothing_else() {
        let refused = Some(Code::InvalidArgument);
        assert_eq!(i64::from_value(Value::Bool(true)).unwrap(), 1);
        assert_eq!(f64::from_value(Value::Bool(true)).unwrap(), 1.0);
        assert_eq!(f64::from_value(Value::Int(-3)).unwrap(), -3.0);
        assert_eq!(f64::from_value(Value::BigInt("9007199254740993000".into())).unwrap(), 9007199254740993000f64);
        assert_eq!(u64::from_value(Value::BigInt(u64::MAX.to_string())).unwrap(), u64::MAX);
        for v in [Value::Float(1.0), Value::Text("1".into()), Value::Null, Value::BigInt("9223372036854775808".into())]
        {
            assert_eq!(code::<i64>(v), refused);
        }
        assert_eq!((code::<bool>(Value::Int(1)), code::<f64>(Value::Text("1".into()))), (refused, refused));
        assert_eq!(code::<f64>(Value::BigInt("1".repeat(400))), refused);
        assert_eq!((code::<f32>(Value::Float(1e300)), code::<f32>(Value::Float(-3.5e38))), (refused, refused));
        assert_eq!(f32::from_value(Value::Float(f64::NEG_INFINITY)).unwrap(), f32::NEG_INFINITY);
        assert_eq!((code::<u8>(Value::Int(-1)), code::<i8>(Value::Int(128))), (refused, refused));
        assert_eq!((code::<String>(Value::Bytes(vec![])), code::<Tensor>(Value::Int(1))), (refused, refused));
        assert_eq!(<(i64, Option<String>)>::from_value((1, "a").into()).unwrap(), (1, Some("a".into())));
        assert_eq!(code::<(i64,)>((1, 2).into()), refused);
    }
}
