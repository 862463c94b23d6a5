//! What crosses the boundary: objects, results, texts, arrays, times.

use std::ffi::{CStr, CString, c_char};
use std::mem::MaybeUninit;
use std::time::Duration;

use crate::error::{Outcome, refused, refused_for};

/// An object that is used.
pub(crate) fn given<'a, T: ?Sized>(object: Option<&'a T>, what: &str) -> Outcome<&'a T> {
    object.map_or_else(|| refused_for(format!("{what} is NULL"), "give an object that is open"), Ok)
}

/// Writes a result where the program wants it, which need not be initialised; null is refused. Before
/// the call it is set to `none`, so that a failure leaves that.
pub(crate) fn give<T>(out: Option<&mut MaybeUninit<T>>, none: T, make: impl FnOnce() -> Outcome<T>) -> Outcome {
    let Some(out) = out else {
        return refused_for("the pointer to the result is NULL", "give where it is to be stored");
    };
    out.write(none);
    out.write(make()?);
    Ok(())
}

/// As [`give`], if the program may want no result.
pub(crate) fn maybe_give<T>(out: Option<&mut MaybeUninit<T>>, none: T, make: impl FnOnce() -> Outcome<T>) -> Outcome {
    match out {
        Some(_) => give(out, none, make),
        None => make().map(|_| ()),
    }
}

/// As [`give`], for an object.
pub(crate) fn give_object<T>(
    out: Option<&mut MaybeUninit<Option<Box<T>>>>,
    make: impl FnOnce() -> Outcome<T>,
) -> Outcome {
    give(out, None, || make().map(|t| Some(Box::new(t))))
}

/// A text that may be null.
///
/// # Safety
/// It is null or ends with a zero and stays as it is during the call.
pub(crate) unsafe fn maybe_text<'a>(text: *const c_char, what: &str) -> Outcome<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller says.
    match unsafe { CStr::from_ptr(text) }.to_str() {
        Ok(s) => Ok(Some(s)),
        Err(_) => refused_for(format!("{what} is not UTF-8"), "encode it as UTF-8"),
    }
}

/// A text that must be given.
///
/// # Safety
/// As for [`maybe_text`].
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Outcome<&'a str> {
    // SAFETY: as the caller says.
    match unsafe { maybe_text(text, what) }? {
        Some(s) => Ok(s),
        None => refused(format!("{what} is NULL")),
    }
}

/// An array, which may be null when it is empty.
///
/// # Safety
/// It has so many elements, which stay as they are during the call.
pub(crate) unsafe fn array<'a, T>(first: *const T, count: usize, what: &str) -> Outcome<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    if first.is_null() {
        return refused_for(format!("{what} is NULL, and its count is {count}"), "give the array, or a count of 0");
    }
    if count > isize::MAX as usize / size_of::<T>().max(1) || !first.is_aligned() {
        return refused(format!("{what} cannot have {count} elements at {first:p}"));
    }
    // SAFETY: as the caller says; not null, aligned, and its size fits.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

/// As [`array`], to be written.
///
/// # Safety
/// As of [`array`], and no other code uses them during the call.
pub(crate) unsafe fn array_mut<'a, T>(first: *mut T, count: usize, what: &str) -> Outcome<&'a mut [T]> {
    // SAFETY: as the caller says; it is checked there.
    let checked = unsafe { array(first.cast_const(), count, what)? };
    if checked.is_empty() {
        return Ok(&mut []);
    }
    // SAFETY: as the caller says; not null, aligned, and its size fits.
    Ok(unsafe { std::slice::from_raw_parts_mut(first, count) })
}

/// A time to wait: no limit for `BATON_FOREVER`; another negative number is a deadline that has passed.
pub(crate) fn wait(ns: i64) -> Option<Duration> {
    (ns != crate::BATON_FOREVER).then(|| Duration::from_nanos(u64::try_from(ns).unwrap_or(0)))
}

/// What C can read of a text: up to its first zero, which texts have only by another's malice.
pub(crate) fn c_text(text: impl Into<Vec<u8>>) -> CString {
    let mut bytes = text.into();
    bytes.truncate(bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len()));
    CString::new(bytes).unwrap_or_default()
}
