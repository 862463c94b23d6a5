//! The native parts of `baton._pickle`: what pickles lead to.

use pyo3::prelude::*;

use crate::arrays::copies::shared;
use crate::base::errors::{OrRaise, invalid};
use crate::base::place::{Place, place, reopen};
use crate::base::wait::wait;
use crate::objects::bundle::Bundle;
use crate::objects::session::Session;
use crate::objects::tensor::Tensor;
use crate::views::view;

/// What a pickle has of a tensor's handle. The tensor is kept until it is unpickled once, or until 30 s after
/// its session ended.
#[pyfunction]
pub(crate) fn hand_over<'py>(x: &Bound<'py, Tensor>) -> PyResult<(Bound<'py, PyAny>, (String, Place))> {
    let py = x.py();
    let t = shared(py, x.get())?;
    let h = wait(py, || t.handle(baton::Lease::Once))?;
    Ok((reopen(py, "reopen_tensor")?, (h.to_json(), place(&t.session()))))
}

/// The bytes of all elements as they lie, and whether that is C's order; None where other bytes lie between.
#[pyfunction]
pub(crate) fn dense(x: &Bound<'_, Tensor>) -> PyResult<Option<(Tensor, bool)>> {
    Ok(view::dense(x.py(), &x.get().tensor(x.py())?)?.map(|(t, in_order)| (t.into(), in_order)))
}

/// The bundle of handles and a tree: what unpickling handles needs.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "the parts of a pickle")]
pub(crate) fn open_bundle(
    py: Python<'_>,
    session: &Session,
    handles: Vec<String>,
    names: Vec<String>,
    tree: Vec<u8>,
    meta: Vec<u8>,
    revision: u64,
    live: bool,
) -> PyResult<Bundle> {
    let handles = handles.iter().map(|h| baton::Handle::from_json(h)).collect::<baton::Result<Vec<_>>>();
    let handles = handles.or_raise(py)?;
    let tensors = wait(py, || session.session.open_all(&handles))?;
    let tensors = named(py, names, tensors)?;
    Ok(baton::Bundle::of_parts(tensors, tree, meta, revision, live).into())
}

/// Handles of a bundle's tensors, as JSON, under one lease: they are opened by `open_bundle`, as often as one likes,
/// until `end_lease`, or the end of the session.
#[pyfunction]
pub(crate) fn lend(py: Python<'_>, bundle: &Bundle) -> PyResult<Vec<String>> {
    let bundle = bundle.shared(py)?.ok_or_else(|| invalid(py, "share it first", "a bundle that is not shared"))?;
    Ok(wait(py, || bundle.handles(baton::Lease::Session))?.iter().map(baton::Handle::to_json).collect())
}

/// Ends the lease of handles that `lend` made with this session's memory.
#[pyfunction]
pub(crate) fn end_lease(py: Python<'_>, session: &Session, handles: Vec<String>) -> PyResult<()> {
    let handles = handles.iter().map(|h| baton::Handle::from_json(h)).collect::<baton::Result<Vec<_>>>();
    match handles.or_raise(py)?.iter().find(|h| h.lease.is_some()) {
        Some(h) => wait(py, || session.session.release_handle(h)),
        None => Ok(()), // nothing has a byte
    }
}

/// The bundle of tensors and a tree: what unpickling bytes needs.
#[pyfunction]
pub(crate) fn bundle_of(
    py: Python<'_>,
    tensors: Vec<Bound<'_, Tensor>>,
    names: Vec<String>,
    tree: Vec<u8>,
    meta: Vec<u8>,
) -> PyResult<Bundle> {
    let tensors = tensors.iter().map(|t| t.get().tensor(py)).collect::<PyResult<Vec<_>>>()?;
    let tensors = named(py, names, tensors)?;
    Ok(baton::Bundle::of_parts(tensors, tree, meta, 0, false).into())
}

/// Each tensor with its name.
fn named(py: Python<'_>, names: Vec<String>, tensors: Vec<baton::Tensor>) -> PyResult<Vec<(String, baton::Tensor)>> {
    if tensors.len() != names.len() {
        return Err(invalid(py, "pickle it anew", "a pickled bundle of other tensors than names"));
    }
    Ok(names.into_iter().zip(tensors).collect())
}
