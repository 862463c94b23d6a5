//! Calls that were sent, and are waited for later.

use std::sync::{Mutex, MutexGuard};
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
    state: Mutex<State>,
    session: baton::Session,
    until: Option<Instant>,
}

#[allow(clippy::large_enum_variant)] // most of its life it is that one, and a box would cost each call
enum State {
    Idle(baton::Pending),
    /// A thread looks at it.
    Busy,
    Over,
}

impl Pending {
    pub(crate) fn new(pending: baton::Pending, session: &baton::Session, until: Option<Instant>) -> Pending {
        Pending { state: Mutex::new(State::Idle(pending)), session: session.clone(), until }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|p| p.into_inner())
    }

    fn taken(&self, py: Python<'_>, leaves: State) -> PyResult<baton::Pending> {
        let mut state = self.state();
        match std::mem::replace(&mut *state, leaves) {
            State::Idle(pending) => return Ok(pending),
            before => *state = before,
        }
        drop(state);
        Err(error(py, Code::Closed, "call again", "the call is over"))
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
        let mut pending = self.taken(py, State::Busy)?;
        let (pending, over) = py.detach(|| {
            let over = pending.is_over();
            (pending, over)
        });
        if !over {
            let mut state = self.state();
            if let State::Busy = *state {
                *state = State::Idle(pending);
                return Ok(None);
            }
            drop(state);
            py.detach(|| drop(pending)); // cancelled meanwhile
            return Ok(None);
        }
        *self.state() = State::Over;
        let reply: Reply = wait(py, || pending.reply())?;
        Ok(Some((of_reply(py, &self.session, &reply)?,)))
    }

    /// Waits for what it returns: a tuple.
    fn _wait(&self, py: Python<'_>) -> PyResult<(Py<PyAny>,)> {
        let pending = self.taken(py, State::Over)?;
        let reply: Reply = wait(py, || pending.reply())?;
        Ok((of_reply(py, &self.session, &reply)?,))
    }

    /// Wants it no more.
    fn _cancel(&self, py: Python<'_>) {
        let before = std::mem::replace(&mut *self.state(), State::Over);
        py.detach(|| drop(before));
    }

    fn _poll_fd(&self, py: Python<'_>) -> PyResult<i32> {
        poll_fd(py, &self.session)
    }

    fn _clear_poll_fd(&self) {
        self.session.clear_poll_fd();
    }
}
