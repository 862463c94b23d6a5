//! Entries of dicts that may change meanwhile: what is sent may run code of the program's, as `__dlpack__` does.

use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The entries of a dict, and an error at the first look after it has changed. The iterator of the crate `pyo3` panics
/// there, which is no exception that a program handles.
pub(super) fn entries<'a, 'py>(dict: &'a Bound<'py, PyDict>) -> Entries<'a, 'py> {
    Entries { dict, at: 0, size: dict.len(), left: dict.len() }
}

/// Whether all keys of a dict are such.
pub(super) fn all_keys<'py>(dict: &Bound<'py, PyDict>, is_such: impl Fn(&Bound<'py, PyAny>) -> bool) -> PyResult<bool> {
    for entry in entries(dict) {
        if !is_such(&entry?.0) {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(super) struct Entries<'a, 'py> {
    dict: &'a Bound<'py, PyDict>,
    at: ffi::Py_ssize_t,
    size: usize,
    left: usize,
}

impl<'py> Iterator for Entries<'_, 'py> {
    type Item = PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        if self.dict.len() != self.size {
            return Some(Err(changed("dictionary changed size during iteration")));
        }
        let (mut key, mut value) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the dict is alive, and the interpreter is held. A place that an earlier call gave is allowed for a dict
        // that has changed since: the interpreter compares it with the table of the dict.
        if unsafe { ffi::PyDict_Next(self.dict.as_ptr(), &mut self.at, &mut key, &mut value) } == 0 {
            return None;
        }
        let py = self.dict.py();
        // SAFETY: both are borrowed of the dict, which cannot change before they are counted here.
        let entry = unsafe { (Bound::from_borrowed_ptr(py, key), Bound::from_borrowed_ptr(py, value)) };
        match self.left.checked_sub(1) {
            Some(left) => self.left = left,
            None => return Some(Err(changed("dictionary keys changed during iteration"))),
        }
        Some(Ok(entry))
    }
}

/// As Python says it of a loop over a dict.
#[cold]
fn changed(what: &'static str) -> PyErr {
    PyRuntimeError::new_err(what)
}
