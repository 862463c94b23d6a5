//! Making values.

use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;

use baton::dlpack::{DLDataType, DLDevice, DLManagedTensorVersioned};
use baton::{FunctionValue, Value};

use crate::error::{Outcome, answer, refused, run};
use crate::handler::{Handler, State, baton_handler};
use crate::status::baton_status;
use crate::tensor::{own, shared};
use crate::value::{BATON_KIND_DATACLASS, BATON_KIND_DICT, BATON_KIND_LIST, BATON_KIND_TUPLE, Items, baton_value};
use crate::{array, baton_function, baton_session, give, given, text};

/// Digits that an integer may have.
const MOST_DIGITS: usize = 4096;

/// A truth value, true for every number but 0. It needs no release.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_of_bool(yes: i32) -> baton_value {
    baton_value::of_bool(yes != 0)
}

/// An integer. It needs no release.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_of_int(number: i64) -> baton_value {
    baton_value::of_int(number)
}

/// An integer without a sign.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_of_uint(number: u64) -> baton_value {
    answer(baton_value::NONE, || baton_value::of(number.into()).unwrap_or_default())
}

/// A float. It needs no release.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_of_float(number: f64) -> baton_value {
    baton_value::of_float(number)
}

/// A type of elements. It needs no release.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_of_dtype(dtype: DLDataType) -> baton_value {
    baton_value::of_dtype(dtype)
}

/// A device. It needs no release.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_of_device(device: DLDevice) -> baton_value {
    baton_value::of_device(device.device_type, device.device_id)
}

fn give_value(out: Option<&mut MaybeUninit<baton_value>>, make: impl FnOnce() -> Outcome<baton_value>) -> baton_status {
    run(|| give(out, baton_value::NONE, make))
}

/// An integer of up to 4,096 digits, by its decimal digits, behind a - if it is negative. Errors: BATON_INVALID_ARGUMENT
/// for anything else.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_of_digits(
    digits: *const c_char,
    out: Option<&mut MaybeUninit<baton_value>>,
) -> baton_status {
    give_value(out, || {
        // SAFETY: the header asks for a text or NULL.
        let given = unsafe { text(digits, "digits") }?;
        let (minus, rest) = given.strip_prefix('-').map_or(("", given), |rest| ("-", rest));
        if rest.is_empty() || !rest.bytes().all(|c| c.is_ascii_digit()) {
            return refused(format!("{given:?} is no integer"));
        }
        let rest = rest.trim_start_matches('0');
        let plain = format!("{minus}{}", if rest.is_empty() { "0" } else { rest });
        match plain.parse::<i64>() {
            Ok(n) => Ok(baton_value::of_int(n)),
            Err(_) if rest.len() > MOST_DIGITS => refused(format!("an integer has {} digits", rest.len())),
            Err(_) => baton_value::of(Value::BigInt(plain)),
        }
    })
}

/// A copy of a text that ends with a zero. Errors: BATON_INVALID_ARGUMENT if it is not UTF-8.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_of_text(text: *const c_char, out: Option<&mut MaybeUninit<baton_value>>) -> baton_status {
    // SAFETY: the header asks for a text or NULL.
    give_value(out, || Ok(baton_value::of_text(unsafe { crate::text(text, "text") }?)))
}

/// A copy of a text of so many bytes of UTF-8, which may have zeros in it. Errors: BATON_INVALID_ARGUMENT if it is not
/// UTF-8.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_of_sized_text(
    first: *const c_char,
    size: usize,
    out: Option<&mut MaybeUninit<baton_value>>,
) -> baton_status {
    give_value(out, || {
        // SAFETY: the header asks for so many bytes.
        match std::str::from_utf8(unsafe { array(first.cast::<u8>(), size, "text") }?) {
            Ok(s) => Ok(baton_value::of_text(s)),
            Err(_) => refused("text is not UTF-8"),
        }
    })
}

/// A copy of bytes. Large ones had better be a tensor, which is not copied.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_of_bytes(
    first: *const c_void,
    size: usize,
    out: Option<&mut MaybeUninit<baton_value>>,
) -> baton_status {
    // SAFETY: the header asks for so many bytes.
    give_value(out, || Ok(baton_value::of_bytes(unsafe { array(first.cast::<u8>(), size, "bytes") }?.to_vec())))
}

/// A reference to a tensor, which stays the caller's. One of another library is copied into the session's memory, as by
/// baton_from_dlpack; session may be NULL for one of Baton's. Errors: BATON_INVALID_ARGUMENT, and, for one that is
/// copied, those of baton_from_dlpack.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_of_tensor(
    session: Option<&baton_session>,
    tensor: *const DLManagedTensorVersioned,
    out: Option<&mut MaybeUninit<baton_value>>,
) -> baton_status {
    give_value(out, || {
        let t = match session {
            // SAFETY: the header asks for a live structure.
            Some(session) => unsafe { shared(&session.0, tensor) }?,
            // SAFETY: as above.
            None => unsafe { own(tensor) }?.clone(),
        };
        Ok(baton_value::of_tensor(t))
    })
}

/// A function of this program, as an argument of a call: the receiver may call it until that call ends. It runs in the
/// thread that waits for the call, while it waits; that of baton_function_submit and baton_function_stream in a thread of
/// the library. It has the arguments that it is given, by position first, and baton_current_call and baton_fail. state is
/// given to each call; release, which may be NULL, is called with it once, by any thread: when neither a value nor a call
/// has it any more, or with an error as well.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_of_handler(
    handler: baton_handler,
    state: *mut c_void,
    release: Option<unsafe extern "C" fn(state: *mut c_void)>,
    out: Option<&mut MaybeUninit<baton_value>>,
) -> baton_status {
    let state = State::new(state, release);
    give_value(out, || {
        let handler = Handler::new(handler, state, None)?;
        Ok(baton_value::of_function(FunctionValue::new(move |args, call| handler.run(args, call, None))))
    })
}

/// A function that processes provide, or will, by its name: as an argument, in a part or in a result. Errors:
/// BATON_INVALID_ARGUMENT for a text that is not such a name.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_of_function_name(
    name: *const c_char,
    out: Option<&mut MaybeUninit<baton_value>>,
) -> baton_status {
    // SAFETY: the header asks for a text or NULL.
    give_value(out, || Ok(baton_value::of_function(FunctionValue::named(unsafe { text(name, "name") }?)?)))
}

/// An open function, by its name. One that the caller has lent is its receiver's alone: it is BATON_INVALID_ARGUMENT
/// where it is sent; give one of your own that calls it.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_of_function(
    function: Option<&baton_function>,
    out: Option<&mut MaybeUninit<baton_value>>,
) -> baton_status {
    give_value(out, || Ok(baton_value::of_function(given(function, "function")?.value())))
}

/// Copies of values of a program.
///
/// # Safety
/// There are so many.
unsafe fn copies(first: *const baton_value, count: usize, what: &str) -> Outcome<Vec<baton_value>> {
    // SAFETY: as the caller says.
    let all = unsafe { array(first, count, what) }?;
    all.iter().try_for_each(|v| v.seen().map(|_| ()))?;
    Ok(all.to_vec())
}

/// Texts of a program.
///
/// # Safety
/// There are so many.
unsafe fn names(first: *const *const c_char, count: usize) -> Outcome<Vec<baton_value>> {
    // SAFETY: as the caller says.
    let all = unsafe { array(first, count, "names") }?;
    // SAFETY: as above.
    all.iter().map(|n| Ok(baton_value::of_text(unsafe { text(*n, "a name") }?))).collect()
}

/// A list or tuple of copies of values.
///
/// # Safety
/// `items` points to `count` values, or is NULL.
unsafe fn of_copies(kind: i32, items: *const baton_value, count: usize) -> Outcome<baton_value> {
    // SAFETY: as the caller says.
    let values = unsafe { copies(items, count, "items") }?;
    baton_value::of_items(kind, Items { values, ..Items::default() })
}

/// A list of copies of count values, which cost a reference each and stay the caller's. Errors: BATON_INVALID_ARGUMENT
/// for an item that is not a value and for more than 100 levels, here and in the functions that follow.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_of_list(
    items: *const baton_value,
    count: usize,
    out: Option<&mut MaybeUninit<baton_value>>,
) -> baton_status {
    // SAFETY: the header asks for so many values.
    give_value(out, || unsafe { of_copies(BATON_KIND_LIST, items, count) })
}

/// As baton_value_of_list, a tuple.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_of_tuple(
    items: *const baton_value,
    count: usize,
    out: Option<&mut MaybeUninit<baton_value>>,
) -> baton_status {
    // SAFETY: the header asks for so many values.
    give_value(out, || unsafe { of_copies(BATON_KIND_TUPLE, items, count) })
}

/// A dict of copies of count values under as many texts, which all differ. Whether they differ is seen when the
/// value is sent: BATON_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_of_dict(
    names: *const *const c_char,
    items: *const baton_value,
    count: usize,
    out: Option<&mut MaybeUninit<baton_value>>,
) -> baton_status {
    give_value(out, || {
        // SAFETY: the header asks for so many texts and values.
        let (keys, values) = unsafe { (self::names(names, count)?, copies(items, count, "items")?) };
        baton_value::of_items(BATON_KIND_DICT, Items { keys, values, ..Items::default() })
    })
}

/// A dict of copies of count values under as many keys, which are None, truth values, numbers, texts, bytes or tuples of
/// these, and all differ.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_of_pairs(
    keys: *const baton_value,
    items: *const baton_value,
    count: usize,
    out: Option<&mut MaybeUninit<baton_value>>,
) -> baton_status {
    give_value(out, || {
        // SAFETY: the header asks for so many values.
        let (keys, values) = unsafe { (copies(keys, count, "keys")?, copies(items, count, "items")?) };
        baton_value::of_items(BATON_KIND_DICT, Items { keys, values, ..Items::default() })
    })
}

/// A dataclass of Python's, which is a dict if its module is not there: its class as module:qualname, and its fields.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_of_dataclass(
    class_name: *const c_char,
    names: *const *const c_char,
    items: *const baton_value,
    count: usize,
    out: Option<&mut MaybeUninit<baton_value>>,
) -> baton_status {
    give_value(out, || {
        // SAFETY: the header asks for a text, and for so many texts and values.
        let (class, keys, values) =
            unsafe { (text(class_name, "class_name")?, self::names(names, count)?, copies(items, count, "items")?) };
        baton_value::of_items(
            BATON_KIND_DATACLASS,
            Items { keys, values, class: crate::c_text(class), ..Items::default() },
        )
    })
}

/// One more of the same value, which costs a reference.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_copy(
    value: Option<&baton_value>,
    out: Option<&mut MaybeUninit<baton_value>>,
) -> baton_status {
    give_value(out, || {
        let value = given(value, "value")?;
        value.seen()?;
        Ok(value.clone())
    })
}

/// Releases a value and makes it None; NULL is nothing. What was read of it goes, but for tensors, which have a reference
/// of their own.
#[unsafe(no_mangle)]
pub extern "C" fn baton_value_release(value: Option<&mut baton_value>) {
    answer((), || drop(value.map(std::mem::take)));
}
