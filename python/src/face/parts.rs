//! The parts that a function gives, as its caller takes them.

use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use baton::bindings::{self, Reply};
use baton::{Code, Value};
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;

use crate::base::errors::{OrRaise, error};
use crate::base::poll::poll_fd;
use crate::base::wait::{for_call, wait};
use crate::face::pending::left;
use crate::face::provided::{in_task, is_within};
use crate::face::sending::Sending;
use crate::value::of_reply;

/// The parts of a call, one after the other, for `for` and for `async for`. Left before its end, or closed, the call is
/// cancelled.
///
/// >>> @baton.function("doc/count")
/// ... def count(n: int):
/// ...     yield from range(n)
/// ...     return "all of them"
/// >>> with baton.start_functions(count):
/// ...     parts = baton.get_function("doc/count").stream(3)
/// ...     list(parts), parts.result()
/// ...     some = baton.get_function("doc/count").stream(10**9)
/// ...     next(some), some.close(), list(some)
/// ([0, 1, 2], 'all of them')
/// (0, None, [])
#[pyclass(frozen, module = "baton", weakref)]
pub(crate) struct Parts {
    state: Mutex<State>,
    session: baton::Session,
    /// What the function is called.
    function: Box<str>,
    until: Option<Instant>,
    /// Whether the call was made within another one.
    within: bool,
}

enum State {
    /// Not sent yet.
    Sending(Py<Sending>),
    Idle(Box<baton::Parts<Value>>),
    /// A thread waits for the next.
    Busy,
    Closed,
}

impl Parts {
    /// Those of a call that is to be sent. `baton._calls` knows those of a call that was made within no other.
    pub(crate) fn made<'py>(
        py: Python<'py>,
        sending: bindings::Sending,
        session: &baton::Session,
        function: &str,
    ) -> PyResult<Bound<'py, Parts>> {
        let until = sending.deadline();
        let sending = Py::new(py, Sending::new(sending, session))?;
        let within = in_task(py, |task| Ok(is_within(task)))?;
        let state = Mutex::new(State::Sending(sending));
        let parts =
            Bound::new(py, Parts { state, session: session.clone(), function: function.into(), until, within })?;
        if !within {
            py.import("baton._calls")?.getattr("begun")?.call1((&parts,))?;
        }
        Ok(parts)
    }

    /// Sends the call, waiting in this thread, where it was not sent yet.
    pub(crate) fn send(&self, py: Python<'_>) -> PyResult<()> {
        let Some(sending) = self._sending(py) else { return Ok(()) };
        for_call(self.within, || sending.get()._wait(py))?;
        let parts = State::Idle(Box::new(sending.get().take(py)?.parts().or_raise(py)?));
        let mut state = self.state();
        match *state {
            State::Sending(_) => *state = parts,
            _ => {
                drop(state);
                py.detach(|| drop(parts)); // closed meanwhile
            }
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Uses them, if no other thread does; `None` where they are closed.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        use_it: impl Send + FnOnce(&mut baton::Parts<Value>) -> T,
    ) -> PyResult<Option<T>> {
        self.send(py)?;
        let before = std::mem::replace(&mut *self.state(), State::Busy);
        let mut parts = match before {
            State::Idle(parts) => parts,
            State::Sending(_) | State::Busy => {
                return Err(PyRuntimeError::new_err("another thread waits for the next part"));
            }
            State::Closed => {
                *self.state() = State::Closed;
                return Ok(None);
            }
        };
        let (parts, got) = for_call(self.within, || {
            py.detach(|| {
                let got = use_it(&mut parts);
                (parts, got)
            })
        });
        let mut state = self.state();
        if let State::Busy = *state {
            *state = State::Idle(parts);
            return Ok(Some(got));
        }
        drop(state);
        py.detach(|| drop(parts)); // closed meanwhile
        Ok(Some(got))
    }

    /// What a part, or the end, is.
    fn part(&self, py: Python<'_>, got: Option<baton::Result<Reply>>) -> PyResult<Option<Py<PyAny>>> {
        match got {
            None => Ok(None),
            Some(got) => of_reply(py, &self.session, &wait(py, || got)?).map(Some),
        }
    }
}

#[pymethods]
impl Parts {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let got = self.with(py, baton::Parts::next_reply)?;
        self.part(py, got.flatten())
    }

    fn __aiter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __anext__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("baton._calls")?.getattr("next_part")?.call1((slf,))
    }

    /// What the function has returned at its end. Parts that were not taken are let go.
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self.with(py, baton::Parts::result_reply)? {
            Some(reply) => of_reply(py, &self.session, &wait(py, || reply)?),
            None => Err(error(py, Code::Closed, "take its parts before", "the call was cancelled")),
        }
    }

    /// Wants no more parts: the call is cancelled, unless it is over.
    fn close(&self, py: Python<'_>) {
        let before = std::mem::replace(&mut *self.state(), State::Closed);
        py.detach(|| drop(before));
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.close(py);
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "the parts of a call belong to the process that calls: take them there, and pickle those",
        ))
    }

    fn __repr__(&self) -> String {
        let closed = self.session.is_ended() || matches!(*self.state(), State::Closed);
        format!("<baton.Parts of {}{}>", self.function, if closed { ", closed" } else { "" })
    }

    /// The next part in a tuple, which is empty after the last one; None while there is none.
    fn _poll(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let made = match self.with(py, baton::Parts::try_next_reply)? {
            Some(None) => return Ok(None),
            Some(Some(got)) => self.part(py, got)?,
            None => None,
        };
        Ok(Some(match made {
            Some(part) => (part,).into_pyobject(py)?.into_any().unbind(),
            None => pyo3::types::PyTuple::empty(py).into_any().unbind(),
        }))
    }

    /// The call that is to be sent, where it was not sent yet.
    #[getter]
    pub(crate) fn _sending(&self, py: Python<'_>) -> Option<Py<Sending>> {
        match &*self.state() {
            State::Sending(sending) => Some(sending.clone_ref(py)),
            _ => None,
        }
    }

    /// How many seconds there are left; None: without a limit.
    fn _left(&self) -> Option<f64> {
        left(self.until)
    }

    fn _poll_fd(&self, py: Python<'_>) -> PyResult<i32> {
        poll_fd(py, &self.session)
    }

    fn _clear_poll_fd(&self) {
        self.session.clear_poll_fd();
    }
}
