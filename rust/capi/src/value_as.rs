//! Reading values.

use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;

use baton::dlpack::{DLDataType, DLDevice, DLManagedTensorVersioned};
use baton::{FromValue, FunctionValue, Tensor, Value};

use crate::error::{Outcome, answer, refused, refused_for, run};
use crate::status::baton_status;
use crate::tensor::give_tensor;
use crate::value::{BATON_KIND_NONE, Held, Seen, baton_value};
use crate::{baton_function, c_text, give, give_object, given, text};

/// Of which kind a value is: BATON_KIND_INT and the like; BATON_KIND_NONE for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_kind(value: Option<&baton_value>) -> i32 {
    value.map_or(BATON_KIND_NONE, baton_value::kind)
}

/// Reads a value as a type, by the conversions that calls have.
fn read<T: FromValue>(value: Option<&baton_value>) -> Outcome<T> {
    Ok(T::from_value(given(value, "value")?.value()?)?)
}

/// Reads a truth value, or the one of a tensor without dimensions: 1 or 0. Anything else is BATON_INVALID_ARGUMENT, here
/// and in the functions that follow.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_as_bool(value: Option<&baton_value>, out: Option<&mut MaybeUninit<i32>>) -> baton_status {
    run(|| give(out, 0, || Ok(i32::from(read::<bool>(value)?))))
}

/// Reads an integer, a truth value as 0 or 1, or the one of a tensor without dimensions. One that does not fit is
/// BATON_INVALID_ARGUMENT: baton_value_as_digits reads it.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_as_int(value: Option<&baton_value>, out: Option<&mut MaybeUninit<i64>>) -> baton_status {
    run(|| give(out, 0, || read(value)))
}

/// As baton_value_as_int, without a sign.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_as_uint(value: Option<&baton_value>, out: Option<&mut MaybeUninit<u64>>) -> baton_status {
    run(|| give(out, 0, || read(value)))
}

/// Reads a float, or what is an integer as one.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_as_float(
    value: Option<&baton_value>,
    out: Option<&mut MaybeUninit<f64>>,
) -> baton_status {
    run(|| give(out, 0.0, || read(value)))
}

/// Reads an integer of any size as its decimal digits. The text is released with baton_string_free.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_as_digits(
    value: Option<&baton_value>,
    out: Option<&mut MaybeUninit<*mut c_char>>,
) -> baton_status {
    run(|| {
        give(out, std::ptr::null_mut(), || {
            Ok(c_text(match given(value, "value")?.value()? {
                Value::BigInt(digits) => digits,
                v => i64::from_value(v)?.to_string(),
            })
            .into_raw())
        })
    })
}

fn is_no<T>(value: &baton_value, wanted: &str) -> Outcome<T> {
    refused_for(format!("a value of the kind {} was given for {wanted}", value.kind_name()), "look at baton_value_kind")
}

/// Reads a text, which is the value's: size bytes, and a zero behind them. size may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_as_text(
    value: Option<&baton_value>,
    out: Option<&mut MaybeUninit<*const c_char>>,
    size: Option<&mut MaybeUninit<usize>>,
) -> baton_status {
    run(|| {
        let mut bytes = 0;
        let read = give(out, std::ptr::null(), || {
            let value = given(value, "value")?;
            match value.seen()? {
                Seen::Held(Held::Text(t)) => {
                    bytes = t.len() - 1;
                    Ok(t.as_ptr().cast())
                }
                _ => is_no(value, "str"),
            }
        });
        if let Some(size) = size {
            size.write(bytes);
        }
        read
    })
}

/// Reads bytes, which are the value's: size of them.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_as_bytes(
    value: Option<&baton_value>,
    out: Option<&mut MaybeUninit<*const c_void>>,
    size: Option<&mut MaybeUninit<usize>>,
) -> baton_status {
    run(|| {
        let Some(size) = size else { return refused("the pointer to the size is NULL") };
        size.write(0);
        give(out, std::ptr::null(), || {
            let value = given(value, "value")?;
            match value.seen()? {
                Seen::Held(Held::Bytes(b)) => {
                    size.write(b.len());
                    Ok(b.as_ptr().cast())
                }
                _ => is_no(value, "bytes"),
            }
        })
    })
}

/// Reads a tensor: a reference of its own, which outlives the value. As an argument it can be written if the caller's
/// can: it is the same memory. On a GPU it is for work of the legacy default stream; baton_tensor_use_on names others.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_as_tensor(
    value: Option<&baton_value>,
    out: Option<&mut MaybeUninit<*mut DLManagedTensorVersioned>>,
) -> baton_status {
    run(|| give_tensor(out, || read::<Tensor>(value)))
}

/// Reads a type of elements.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_as_dtype(
    value: Option<&baton_value>,
    out: Option<&mut MaybeUninit<DLDataType>>,
) -> baton_status {
    run(|| give(out, DLDataType { code: 0, bits: 0, lanes: 0 }, || read(value)))
}

/// Reads a device.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_as_device(
    value: Option<&baton_value>,
    out: Option<&mut MaybeUninit<DLDevice>>,
) -> baton_status {
    run(|| {
        give(out, DLDevice { device_type: 0, device_id: 0 }, || {
            let value = given(value, "value")?;
            match value.seen()? {
                Seen::Device(kind, number) => Ok(DLDevice { device_type: kind, device_id: number }),
                _ => is_no(value, "device"),
            }
        })
    })
}

/// Reads a function that came with a call, or its result: open, to be called and released as one of baton_function_open.
/// One that the caller has lent can be called until the call with which it came ends, also if it is released later: after
/// that its calls are BATON_CLOSED. Errors: BATON_CLOSED; of one by its name those of baton_function_open;
/// BATON_INVALID_ARGUMENT of one that was made here.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_as_function(
    value: Option<&baton_value>,
    out: Option<&mut MaybeUninit<Option<Box<baton_function>>>>,
) -> baton_status {
    run(|| give_object(out, || Ok(baton_function::new(read::<FunctionValue>(value)?.function()?))))
}

/// How many items a list, tuple, dict or dataclass has; 0 for anything else.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_size(value: Option<&baton_value>) -> usize {
    answer(0, || value.and_then(baton_value::items).map_or(0, |items| items.values.len()))
}

fn one(
    value: Option<&baton_value>,
    find: impl FnOnce(&crate::value::Items) -> Option<&baton_value>,
) -> *const baton_value {
    answer(std::ptr::null(), || {
        value.and_then(baton_value::items).and_then(find).map_or(std::ptr::null(), std::ptr::from_ref)
    })
}

/// An item of a list or tuple, or what a dict or dataclass has, in its order, from 0. It is the value's and not
/// released; NULL when there is none of that number.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_item(value: Option<&baton_value>, index: usize) -> *const baton_value {
    one(value, |items| items.values.get(index))
}

/// The key under which baton_value_item stands in a dict or dataclass. It is the value's; NULL when there is none.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_key(value: Option<&baton_value>, index: usize) -> *const baton_value {
    one(value, |items| items.keys.get(index))
}

/// What a dict has under a text, or a dataclass as a field. It is the value's; NULL when there is none.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_get(value: Option<&baton_value>, name: *const c_char) -> *const baton_value {
    // SAFETY: the header asks for a text or NULL.
    let Ok(name) = (unsafe { text(name, "name") }) else { return std::ptr::null() };
    one(value, |items| {
        let at = items.keys.iter().position(|k| k.text() == Some(name))?;
        items.values.get(at)
    })
}

/// The class of a dataclass as module:qualname, which is the value's; NULL for anything else.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_class(value: Option<&baton_value>) -> *const c_char {
    answer(std::ptr::null(), || match value.and_then(baton_value::items) {
        Some(items) if !items.class.is_empty() => items.class.as_ptr(),
        _ => std::ptr::null(),
    })
}
