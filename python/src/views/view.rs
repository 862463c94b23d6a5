//! Views of a tensor: the same storage, seen otherwise.

use baton::{DType, Tensor};
use pyo3::prelude::*;

use crate::base::errors::{OrRaise, invalid};

/// The view with its dimensions reversed.
pub(crate) fn reversed(t: &Tensor) -> baton::Result<Tensor> {
    let (mut shape, mut strides) = (t.shape().to_vec(), strides_of(t));
    shape.reverse();
    strides.reverse();
    t.as_strided(&shape, Some(&strides), 0)
}

/// The view with two dimensions exchanged, counted from 0, or from -1 backwards.
pub(crate) fn exchanged(py: Python<'_>, t: &Tensor, a: isize, b: isize) -> PyResult<Tensor> {
    let (mut shape, mut strides) = (t.shape().to_vec(), strides_of(t));
    let n = shape.len() as isize;
    let at = |i: isize| match if i < 0 { i + n } else { i } {
        i if (0..n).contains(&i) => Ok(i as usize),
        _ => Err(invalid(py, "count dimensions from 0, or from -1 backwards", format!("dimension {i} of {n}"))),
    };
    let (a, b) = (at(a)?, at(b)?);
    shape.swap(a, b);
    strides.swap(a, b);
    t.as_strided(&shape, Some(&strides), 0).or_raise(py)
}

/// The view of another shape, of which one extent may be -1.
pub(crate) fn reshaped(py: Python<'_>, t: &Tensor, mut to: Vec<i64>) -> PyResult<Tensor> {
    if !t.is_contiguous() {
        return Err(invalid(py, "copy it: y = baton.empty_like(x); y.copy_from(x)", "the elements are not contiguous"));
    }
    let n = t.len() as i64;
    if let Some(open) = to.iter().position(|d| *d == -1) {
        let rest = to.iter().enumerate().filter(|(i, _)| *i != open).try_fold(1i64, |n, (_, d)| n.checked_mul(*d));
        to[open] = rest.filter(|r| *r > 0).map_or(-1, |r| n / r);
    }
    let product = to.iter().try_fold(1i64, |n, d| n.checked_mul(*d).filter(|_| *d >= 0));
    if product != Some(n) {
        return Err(invalid(py, "keep the number of elements", format!("{n} elements as {to:?}")));
    }
    t.as_strided(&to, None, 0).or_raise(py)
}

/// The same bits as another type; the last dimension shrinks or grows with its size. Elements that lie
/// several in a byte may end in the middle of the last: in one dimension all of that byte is seen.
pub(crate) fn retyped(py: Python<'_>, t: &Tensor, d: DType) -> PyResult<Tensor> {
    let (old, new) = (t.dtype().item_bits(), d.item_bits());
    if old == new {
        return t.view_as(d, t.shape(), t.strides(), 0).or_raise(py);
    }
    let mut shape = t.shape().to_vec();
    let mut bits = shape.last().map(|n| u128::from(n.unsigned_abs()) * u128::from(old));
    if shape.len() == 1 && old < 8 && new == 8 {
        bits = bits.map(|b| b.next_multiple_of(8));
    }
    let what = || format!("{} as {d}", t.dtype());
    let (Some(bits), true) = (bits, t.is_contiguous()) else {
        return Err(invalid(py, "view a contiguous tensor of one dimension or more", what()));
    };
    let (Ok(n), 0) = (i64::try_from(bits / u128::from(new)), bits % u128::from(new)) else {
        let remedy = match old < 8 {
            true => "make it one dimension first, by x.reshape(-1)",
            false => "use a dtype whose size divides the last dimension",
        };
        return Err(invalid(py, remedy, what()));
    };
    if let Some(last) = shape.last_mut() {
        *last = n;
    }
    t.view_as(d, &shape, None, 0).or_raise(py)
}

/// The bytes of all elements as they lie, and whether that is C's order; `None` where others lie between.
pub(crate) fn dense(py: Python<'_>, t: &Tensor) -> PyResult<Option<(Tensor, bool)>> {
    let in_order = t.is_contiguous();
    let strides = strides_of(t);
    let mut by_stride: Vec<usize> = (0..strides.len()).collect();
    by_stride.sort_by_key(|&i| std::cmp::Reverse(strides[i]));
    let turned = |of: &[i64]| by_stride.iter().map(|&i| of[i]).collect::<Vec<_>>();
    let turned = t.as_strided(&turned(t.shape()), Some(&turned(&strides)), 0).or_raise(py)?;
    let packed = if in_order { t } else { &turned };
    if !packed.is_contiguous() {
        return Ok(None);
    }
    let flat = reshaped(py, packed, vec![-1])?;
    Ok(Some((retyped(py, &flat, DType::UINT8)?, in_order)))
}

/// The strides in elements, written out.
pub(crate) fn strides_of(t: &baton::Tensor) -> Vec<i64> {
    if let Some(s) = t.strides() {
        return s.to_vec();
    }
    let mut step = 1i64;
    let mut out = vec![0; t.shape().len()];
    for (s, n) in out.iter_mut().zip(t.shape()).rev() {
        *s = step;
        step = step.wrapping_mul((*n).max(1));
    }
    out
}
