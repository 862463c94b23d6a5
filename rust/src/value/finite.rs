//! Whether a value has a float that JSON does not have: serde_json writes null for it, and its reader would see no
//! difference to a value that was left out.

use std::fmt;

use serde::ser::{self, Serialize, Serializer};

/// Walks through a value and fails at the first float that is infinite or no number.
pub(super) struct Finite;

/// Why a walk ended.
#[derive(Debug)]
pub(super) enum Stop {
    /// JSON does not have the float.
    Float(f64),
    /// The value's own reason, which the writer of the JSON meets again.
    Other,
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::Float(v) => write!(f, "JSON has no {v}"),
            Stop::Other => f.write_str("the value refuses"),
        }
    }
}

impl std::error::Error for Stop {}

impl ser::Error for Stop {
    fn custom<T: fmt::Display>(_: T) -> Stop {
        Stop::Other
    }
}

/// The float of a value that JSON does not have.
pub(super) fn not_finite(value: &impl Serialize) -> Option<f64> {
    match value.serialize(Finite) {
        Err(Stop::Float(v)) => Some(v),
        Ok(()) | Err(Stop::Other) => None,
    }
}

macro_rules! nothing {
    ($($name:ident($($t:ty),*);)*) => { $(
        fn $name(self, $(_: $t),*) -> Result<(), Stop> {
            Ok(())
        }
    )* };
}

macro_rules! walk {
    ($($name:ident($($t:ty),*);)*) => { $(
        fn $name(self, $(_: $t),*) -> Result<Finite, Stop> {
            Ok(Finite)
        }
    )* };
}

impl Serializer for Finite {
    type Ok = ();
    type Error = Stop;
    type SerializeSeq = Finite;
    type SerializeTuple = Finite;
    type SerializeTupleStruct = Finite;
    type SerializeTupleVariant = Finite;
    type SerializeMap = Finite;
    type SerializeStruct = Finite;
    type SerializeStructVariant = Finite;

    nothing! {
        serialize_bool(bool);
        serialize_i8(i8);
        serialize_i16(i16);
        serialize_i32(i32);
        serialize_i64(i64);
        serialize_i128(i128);
        serialize_u8(u8);
        serialize_u16(u16);
        serialize_u32(u32);
        serialize_u64(u64);
        serialize_u128(u128);
        serialize_char(char);
        serialize_str(&str);
        serialize_bytes(&[u8]);
        serialize_none();
        serialize_unit();
        serialize_unit_struct(&'static str);
        serialize_unit_variant(&'static str, u32, &'static str);
    }

    fn serialize_f32(self, v: f32) -> Result<(), Stop> {
        self.serialize_f64(v.into())
    }

    fn serialize_f64(self, v: f64) -> Result<(), Stop> {
        if v.is_finite() { Ok(()) } else { Err(Stop::Float(v)) }
    }

    fn serialize_some<T: Serialize + ?Sized>(self, v: &T) -> Result<(), Stop> {
        v.serialize(self)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, v: &T) -> Result<(), Stop> {
        v.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        v: &T,
    ) -> Result<(), Stop> {
        v.serialize(self)
    }

    fn collect_str<T: fmt::Display + ?Sized>(self, _: &T) -> Result<(), Stop> {
        Ok(())
    }

    walk! {
        serialize_seq(Option<usize>);
        serialize_tuple(usize);
        serialize_tuple_struct(&'static str, usize);
        serialize_tuple_variant(&'static str, u32, &'static str, usize);
        serialize_map(Option<usize>);
        serialize_struct(&'static str, usize);
        serialize_struct_variant(&'static str, u32, &'static str, usize);
    }
}

macro_rules! items {
    ($($part:ident $add:ident;)*) => { $(
        impl ser::$part for Finite {
            type Ok = ();
            type Error = Stop;

            fn $add<T: Serialize + ?Sized>(&mut self, v: &T) -> Result<(), Stop> {
                v.serialize(Finite)
            }

            fn end(self) -> Result<(), Stop> {
                Ok(())
            }
        }
    )* };
}

items! {
    SerializeSeq serialize_element;
    SerializeTuple serialize_element;
    SerializeTupleStruct serialize_field;
    SerializeTupleVariant serialize_field;
}

macro_rules! fields {
    ($($part:ident)*) => { $(
        impl ser::$part for Finite {
            type Ok = ();
            type Error = Stop;

            fn serialize_field<T: Serialize + ?Sized>(&mut self, _: &'static str, v: &T) -> Result<(), Stop> {
                v.serialize(Finite)
            }

            fn end(self) -> Result<(), Stop> {
                Ok(())
            }
        }
    )* };
}

fields! { SerializeStruct SerializeStructVariant }

impl ser::SerializeMap for Finite {
    type Ok = ();
    type Error = Stop;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, _: &T) -> Result<(), Stop> {
        Ok(()) // the writer of the JSON refuses keys that it does not have
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, v: &T) -> Result<(), Stop> {
        v.serialize(Finite)
    }

    fn end(self) -> Result<(), Stop> {
        Ok(())
    }
}
