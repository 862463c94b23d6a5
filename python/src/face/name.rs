//! Names: what `watch` gives.

use std::sync::Arc;

use baton::Deadline;
use baton::bindings::Closable;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::base::poll::{coroutine, following, poll_fd};
use crate::base::wait::{interrupted, timeout as seconds, wait};
use crate::face::topic::shown;
use crate::objects::bundle::Bundle;

/// Follows a name: the current revision at once, then always the newest. Threads that share it take turns.
///
/// >>> w = baton.watch("doc/step")
/// >>> [baton.set("doc/step", {"x": np.zeros(1)}) for _ in range(3)]
/// [1, 2, 3]
/// >>> asyncio.run(w.receive_async(timeout=5)).revision
/// 3
/// >>> w.receive(timeout=0)
/// Traceback (most recent call last):
/// baton.Timeout: ...
/// >>> w.close()
/// >>> baton.delete("doc/step")
#[pyclass(frozen, module = "baton", weakref)]
pub(crate) struct Watch {
    pub(crate) watch: Arc<Closable<baton::Watch>>,
    pub(crate) session: baton::Session,
    pub(crate) name: String,
}

#[pymethods]
impl Watch {
    /// The newest revision not seen yet. timeout: seconds to wait for one; None: no limit; 0: does not wait. Raises
    /// Timeout; Closed once the watch was closed, also by another thread meanwhile.
    #[pyo3(signature = (timeout=None))]
    fn receive(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Bundle> {
        let t = Deadline::after(seconds(py, timeout)?);
        let watch = self.watch.clone();
        let got = wait(py, move || watch.with(t, interrupted, |w| w.next(t.left())))?;
        Ok(got.into())
    }

    /// `receive` as a coroutine, which waits without a thread. timeout: seconds, as of `receive`.
    #[pyo3(signature = (timeout=None))]
    fn receive_async<'py>(slf: &Bound<'py, Self>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        seconds(slf.py(), timeout)?;
        coroutine(slf.py(), "newest", (slf, timeout))
    }

    /// The newest revision if it was not seen yet; None while another thread receives.
    fn _poll(&self, py: Python<'_>) -> PyResult<Option<Bundle>> {
        let b = wait(py, || self.watch.try_with(baton::Watch::try_next))?;
        Ok(b.map(Bundle::from))
    }

    fn _poll_fd(&self, py: Python<'_>) -> PyResult<i32> {
        poll_fd(py, &self.session)
    }

    fn _clear_poll_fd(&self) {
        self.session.clear_poll_fd();
    }

    fn __aiter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __anext__<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        following(slf, "receive_async").map(Some)
    }

    /// Ends the watch: threads and tasks that receive by it raise Closed.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.watch.close());
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Bundle> {
        self.receive(py, None)
    }

    fn __repr__(&self) -> String {
        shown("Watch", &self.name, self.session.is_ended() || self.watch.is_closed())
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("a watch belongs to its process: watch the name there"))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }
}
