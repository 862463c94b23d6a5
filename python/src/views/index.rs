//! `x[3:5]`, `x[0, ..., None]`: views by position.

use baton::Tensor;
use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::slice::PySliceIndices;
use pyo3::types::{PyBool, PyEllipsis, PySlice, PyTuple};

use crate::base::errors::{OrRaise, invalid};

/// The view that a key selects: integers, slices with positive steps, `...`, None.
pub(crate) fn get(t: &Tensor, key: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let py = key.py();
    let keys: Vec<Bound<'_, PyAny>> = match key.cast::<PyTuple>() {
        Ok(all) => all.iter().collect(),
        Err(_) => vec![key.clone()],
    };
    let (shape, strides) = (t.shape(), crate::views::view::strides_of(t));
    let is_ellipsis = |k: &Bound<'_, PyAny>| k.is_instance_of::<PyEllipsis>();
    let named = keys.iter().filter(|k| !k.is_none() && !is_ellipsis(k)).count();
    if named > shape.len() {
        return Err(PyIndexError::new_err(format!("{named} indices for a tensor of {} dimensions", shape.len())));
    }
    if keys.iter().filter(|k| is_ellipsis(k)).count() > 1 {
        return Err(PyIndexError::new_err("an index may have one ellipsis"));
    }
    let (mut to, mut by, mut offset, mut at) = (Vec::new(), Vec::new(), 0i64, 0);
    let keep = |to: &mut Vec<i64>, by: &mut Vec<i64>, at: &mut usize, n: usize| {
        to.extend(&shape[*at..*at + n]);
        by.extend(&strides[*at..*at + n]);
        *at += n;
    };
    for k in &keys {
        if k.is_none() {
            to.push(1);
            by.push(1);
        } else if is_ellipsis(k) {
            keep(&mut to, &mut by, &mut at, shape.len() - named);
        } else if let Ok(slice) = k.cast::<PySlice>() {
            let PySliceIndices { start, step, slicelength, .. } = slice.indices(shape[at] as isize)?;
            if step < 0 {
                let remedy = "use np.asarray(x)[::-1]; DLPack has no negative strides";
                return Err(invalid(py, remedy, format!("slice step {step} is negative")));
            }
            if slicelength > 0 {
                offset += start as i64 * strides[at];
            }
            to.push(slicelength as i64);
            by.push(strides[at].wrapping_mul(step as i64));
            at += 1;
        } else {
            let i = position(k)?;
            let n = shape[at];
            let j = if i < 0 { i + n } else { i };
            if j < 0 || j >= n {
                return Err(PyIndexError::new_err(format!("index {i} is outside dimension {at} of {n}")));
            }
            offset += j * strides[at];
            at += 1;
        }
    }
    let rest = shape.len() - at;
    keep(&mut to, &mut by, &mut at, rest);
    if to.contains(&0) {
        offset = 0;
    }
    t.as_strided(&to, Some(&by), offset as u64).or_raise(py)
}

fn position(k: &Bound<'_, PyAny>) -> PyResult<i64> {
    let wrong = || {
        let kind = k.get_type().name().map(|n| n.to_string()).unwrap_or_default();
        PyTypeError::new_err(format!(
            "an index is an integer, a slice, ... or None, not {kind}: use np.asarray(x)[…] for others"
        ))
    };
    if k.is_instance_of::<PyBool>() || !k.hasattr("__index__")? {
        return Err(wrong());
    }
    k.call_method0("__index__")
        .map_err(|e| if e.is_instance_of::<PyTypeError>(k.py()) { wrong() } else { e })?
        .extract()
}
