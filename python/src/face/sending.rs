//! Calls that are to be sent, and wait before that in an event loop for a provider and for room.

use std::sync::Mutex;

use baton::Code;
use baton::bindings;
use pyo3::prelude::*;

use crate::base::errors::{OrRaise, error};
use crate::base::poll::poll_fd;
use crate::base::wait::wait;
use crate::face::pending::{Pending, left};

/// A call that is to be sent.
#[pyclass(frozen, module = "baton", weakref)]
pub(crate) struct Sending {
    sending: Mutex<Option<bindings::Sending>>,
    session: baton::Session,
}

impl Sending {
    pub(crate) fn new(sending: bindings::Sending, session: &baton::Session) -> Sending {
        Sending { sending: Mutex::new(Some(sending)), session: session.clone() }
    }

    pub(crate) fn take(&self, py: Python<'_>) -> PyResult<bindings::Sending> {
        let taken = self.sending.lock().unwrap_or_else(|p| p.into_inner()).take();
        taken.ok_or_else(|| error(py, Code::Closed, "call again", "the call is over"))
    }

    fn with<T: Send>(
        &self,
        py: Python<'_>,
        use_it: impl Send + FnOnce(&mut bindings::Sending) -> baton::Result<T>,
    ) -> PyResult<T> {
        let mut sending = self.take(py)?;
        let (sending, done) = py.detach(|| {
            let done = use_it(&mut sending);
            (sending, done)
        });
        let done = done.or_raise(py)?; // else it is over
        *self.sending.lock().unwrap_or_else(|p| p.into_inner()) = Some(sending);
        Ok(done)
    }
}

#[pymethods]
impl Sending {
    /// Whether there is a provider, whom the arguments fit.
    fn _ready(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, bindings::Sending::is_ready)
    }

    /// Sends it where there is room; whether it was sent.
    fn _try(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, bindings::Sending::try_send)
    }

    /// Sends it, waiting in this thread.
    pub(crate) fn _wait(&self, py: Python<'_>) -> PyResult<()> {
        let mut sending = self.take(py)?;
        wait(py, || sending.wait())?;
        *self.sending.lock().unwrap_or_else(|p| p.into_inner()) = Some(sending);
        Ok(())
    }

    /// The call that was sent.
    pub(crate) fn _pending(&self, py: Python<'_>) -> PyResult<Pending> {
        let sending = self.take(py)?;
        let until = sending.deadline();
        Ok(Pending::new(sending.pending().or_raise(py)?, &self.session, until))
    }

    /// Whether it was sent.
    #[getter]
    fn _is_sent(&self) -> bool {
        let sending = self.sending.lock().unwrap_or_else(|p| p.into_inner());
        sending.as_ref().is_some_and(bindings::Sending::is_sent)
    }

    /// Wants it no more.
    fn _cancel(&self, py: Python<'_>) {
        let sending = self.sending.lock().unwrap_or_else(|p| p.into_inner()).take();
        py.detach(|| drop(sending));
    }

    /// The number of the function's topic.
    #[getter]
    fn _topic(&self) -> Option<u64> {
        let sending = self.sending.lock().unwrap_or_else(|p| p.into_inner());
        sending.as_ref().map(bindings::Sending::topic)
    }

    /// For how many seconds what is next is waited for; None: without a limit.
    fn _left(&self) -> Option<f64> {
        let sending = self.sending.lock().unwrap_or_else(|p| p.into_inner());
        left(sending.as_ref().and_then(bindings::Sending::until))
    }

    fn _poll_fd(&self, py: Python<'_>) -> PyResult<i32> {
        poll_fd(py, &self.session)
    }

    fn _clear_poll_fd(&self) {
        self.session.clear_poll_fd();
    }
}
