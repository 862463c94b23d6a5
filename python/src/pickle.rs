//! The native parts of `baton._pickle`: what pickles lead to.

use pyo3::prelude::*;

use crate::bundle::Bundle;
use crate::errors::{OrRaise, invalid};
use crate::session::Session;
use crate::tensor::Tensor;
use crate::view;
use crate::wait::wait;

/// Where a session is: the broker's socket and the namespace.
pub(crate) type Place = (String, String);

/// Where an object's session is, for its pickle.
pub(crate) fn place(s: &baton::Session) -> Place {
    (s.address().to_owned(), s.namespace().to_owned())
}

/// The function of Python by which a handle of a pickle is read.
pub(crate) fn reopen<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import("baton._default")?.getattr(name)
}

/// What a pickle has of a tensor's handle. The tensor is kept until it is unpickled once, or until 30 s after
/// its session ended.
#[pyfunction]
pub(crate) fn hand_over<'py>(x: &Bound<'py, Tensor>) -> PyResult<(Bound<'py, PyAny>, (String, Place))> {
    let py = x.py();
    let t = x.get().shared(py)?;
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
