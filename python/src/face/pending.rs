//! Calls that were sent, and are waited for later.

use std::sync::Mutex;
use std::time::Instant;

use baton::Code;
use baton::bindings::Reply;
use pyo3::prelude::*;

use crate::base::errors::error;
use crate::base::poll::poll_fd;
use crate::base::wait::wait;
use crate::value::of_reply;

/// How many seconds there are left until a time.
pub(crate) fn left(until: Option<Instant>) -> Option<f64> {
    until.map(|until| until.saturating_duration_since(Instant::now()).as_secs_f64())
}

/// A call that was sent.
#[pyclass(frozen, module = "baton", weakref)]
pub(crate) struct Pending {
    pending: Mutex<Option<baton::Pending>>,
    session: baton::Session,
    until: Option<Instant>,
}

impl Pending {
    pub(crate) fn new(pending: baton::Pending, session: &baton::Session, until: Option<Instant>) -> Pending {
        Pending { pending: Mutex::new(Some(pending)), session: session.clone(), until }
    }

    fn taken(&self) -> Option<baton::Pending> {
        self.pending.lock().unwrap_or_else(|p| p.into_inner()).take()
    }
}

#[pymethods]
impl Pending {
    /// How many seconds there are left of it; None: without a limit.
    fn _left(&self) -> Option<f64> {
        left(self.until)
    }

    /// What it has returned, in a tuple, if it is over.
    fn _poll(&self, py: Python<'_>) -> PyResult<Option<(Py<PyAny>,)>> {
        let Some(mut pending) = self.taken() else {
            return Err(error(py, Code::Closed, "call again", "the call is over"));
        };
        let (pending, over) = py.detach(|| {
            let over = pending.is_over();
            (pending, over)
        });
        if !over {
            *self.pending.lock().unwrap_or_else(|p| p.into_inner()) = Some(pending);
            return Ok(None);
        }
        let reply: Reply = wait(py, || pending.reply())?;
        Ok(Some((of_reply(py, &self.session, &reply)?,)))
    }

    /// Waits for what it returns: a tuple.
    fn _wait(&self, py: Python<'_>) -> PyResult<(Py<PyAny>,)> {
        let Some(pending) = self.taken() else {
            return Err(error(py, Code::Closed, "call again", "the call is over"));
        };
        let reply: Reply = wait(py, || pending.reply())?;
        Ok((of_reply(py, &self.session, &reply)?,))
    }

    /// Wants it no more.
    fn _cancel(&self, py: Python<'_>) {
        let pending = self.taken();
        py.detach(|| drop(pending));
    }

    fn _poll_fd(&self, py: Python<'_>) -> PyResult<i32> {
        poll_fd(py, &self.session)
    }

    fn _clear_poll_fd(&self) {
        self.session.clear_poll_fd();
    }
}
