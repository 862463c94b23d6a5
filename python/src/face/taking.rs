//! What sessions take from other libraries: arrays, and nested structures of them.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::arrays::copies::copied_from;
use crate::arrays::room::alloc_room;
use crate::arrays::source::{Source, is_array};
use crate::base::errors::invalid;
use crate::objects::bundle::Bundle;
use crate::objects::tensor::Tensor;
use crate::value::{Take, encode_as};

/// Refuses huge pages of memory that is on a device.
pub(super) fn no_pages_there(py: Python<'_>, device: &str, pages: Option<&str>) -> PyResult<()> {
    match pages {
        Some(p) => Err(invalid(py, "leave pages= out", format!("memory on {device} has no huge pages of {p}"))),
        None => Ok(()),
    }
}

/// A Tensor of an array or a Bundle of a nested structure.
pub(super) fn taken<'py>(
    session: &baton::Session,
    py: Python<'py>,
    a: &Bound<'py, PyAny>,
    take: Take,
) -> PyResult<Bound<'py, PyAny>> {
    if !is_array(a)? {
        let bundle = baton::Bundle::from(encode_as(session, a, take)?);
        if bundle.is_empty() {
            let kind = a.get_type().name()?.to_string();
            let what = format!("a {kind} is no array and has none in it: give what has __dlpack__ or a buffer");
            return Err(PyTypeError::new_err(what));
        }
        return Ok(Bound::new(py, Bundle::from(bundle))?.into_any());
    }
    let (own, source) = match a.cast::<Tensor>() {
        Ok(t) => {
            let t = t.get().tensor(py)?;
            let s = Source::of_tensor(py, &t)?;
            (if take.keeps(py, session, &t)? { Some(t) } else { None }, s)
        }
        Err(_) => {
            let s = Source::of(a)?.ok_or_else(|| PyTypeError::new_err("the value is no array"))?;
            let in_place = matches!(take, Take::Ours | Take::Shared);
            (if in_place { s.in_place(py, session)? } else { None }, s)
        }
    };
    let t = match own {
        Some(t) => t,
        None if source.gpu().is_some() => take.on_gpu(py, session, source)?,
        None if take == Take::Shared => {
            return Err(invalid(py, "leave copy=False out", "the array does not lie in shared memory of this session"));
        }
        None => {
            let s = source;
            match take {
                Take::Room(room) => alloc_room(py, session, s.dtype(), &s.shape(), room)?,
                _ => copied_from(py, session, &s)?,
            }
        }
    };
    Ok(Tensor::object(py, t)?.into_any())
}
