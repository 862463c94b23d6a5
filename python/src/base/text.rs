//! Texts of Python as the client takes them.

use std::ops::Deref;

use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::base::errors::invalid;

/// A name, an address or an option. Half a surrogate pair, which `os.fsdecode` makes of bytes that are no UTF-8,
/// is in none of them.
pub(crate) struct Text<'a>(pub(crate) &'a str);

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        self.0
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Text<'a> {
    type Error = PyErr;

    fn extract(ob: Borrowed<'a, 'py, PyAny>) -> PyResult<Text<'a>> {
        match <&'a str>::extract(ob) {
            Ok(s) => Ok(Text(s)),
            Err(_) if ob.is_instance_of::<PyString>() => {
                let what = format!("the text {} has half a surrogate pair", ob.repr()?);
                Err(invalid(ob.py(), "give whole characters", what))
            }
            Err(e) => Err(e),
        }
    }
}
