//! Entries of dicts that may change meanwhile: what is sent may run code of the program's, as `__dlpack__` does, and
//! other threads run then.

use std::vec::IntoIter;

use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

type Entry<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>);

/// The entries that a dict has now, and an error at the first look after its size has changed. They are taken at once: a
/// key that is removed and added again meanwhile would else come twice, in a value that no reader accepts.
pub(super) fn entries<'a, 'py>(dict: &'a Bound<'py, PyDict>) -> Entries<'a, 'py> {
    let (size, mut at) = (dict.len(), 0);
    let mut all = Vec::with_capacity(size);
    while let Some(entry) = next(dict, &mut at) {
        all.push(entry);
    }
    Entries { dict, size, all: all.into_iter() }
}

/// Whether all keys of a dict are such.
pub(super) fn all_keys<'py>(dict: &Bound<'py, PyDict>, is_such: impl Fn(&Bound<'py, PyAny>) -> bool) -> PyResult<bool> {
    let mut at = 0;
    while let Some((key, _)) = next(dict, &mut at) {
        if !is_such(&key) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The entry at a place, which moves on. What looks at all of them runs no code of the program's between two calls.
#[inline(always)]
fn next<'py>(dict: &Bound<'py, PyDict>, at: &mut ffi::Py_ssize_t) -> Option<Entry<'py>> {
    let (mut key, mut value) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the dict is alive, and the interpreter is held. A place that an earlier call gave is allowed for a dict
    // that has changed since: the interpreter compares it with the table of the dict.
    if unsafe { ffi::PyDict_Next(dict.as_ptr(), at, &mut key, &mut value) } == 0 {
        return None;
    }
    let py = dict.py();
    // SAFETY: both are borrowed of the dict, which cannot change before they are counted here.
    Some(unsafe { (Bound::from_borrowed_ptr(py, key), Bound::from_borrowed_ptr(py, value)) })
}

pub(super) struct Entries<'a, 'py> {
    dict: &'a Bound<'py, PyDict>,
    size: usize,
    all: IntoIter<Entry<'py>>,
}

impl<'py> Iterator for Entries<'_, 'py> {
    type Item = PyResult<Entry<'py>>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        if self.dict.len() != self.size {
            return Some(Err(changed()));
        }
        self.all.next().map(Ok)
    }
}

/// As Python says it of a loop over a dict.
#[cold]
fn changed() -> PyErr {
    PyRuntimeError::new_err("dictionary changed size during iteration")
}
