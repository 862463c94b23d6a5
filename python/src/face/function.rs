//! Calling functions.

use baton::bindings::{Begun, check_ahead};
use pyo3::call::PyCallArgs;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::base::errors::{OrRaise, has_no_answer, to_py};
use crate::base::text::Text;
use crate::base::wait::{for_call, timeout as seconds, wait};
use crate::face::parts::Parts;
use crate::face::pending::Pending;
use crate::face::provided::{in_task, is_within, lent, lent_to};
use crate::face::sending::Sending;
use crate::objects::function::Function;
use crate::objects::session::Session;
use crate::value::{arguments, of_reply};

impl Function {
    /// The arguments of a call that has begun. An array is copied until its deadline at most.
    fn arguments<'py>(
        &self,
        begun: Begun,
        args: &Bound<'py, PyTuple>,
        named: Option<&Bound<'py, PyDict>>,
        start: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<baton::Arguments> {
        let own = |f: &Bound<'_, PyAny>| match start {
            None => lent(&self.session, f),
            Some(start) => lent_to(&self.session, f, start),
        };
        let name_of = |i| self.function.parameter(i).unwrap_or_else(|| i.to_string());
        let made = begun.making(|| arguments(&self.session, args, named, &own, name_of));
        made.map_err(|e| match self.function.is_late(begun) {
            Some(late) if has_no_answer(args.py(), &e) => to_py(args.py(), &late),
            _ => e,
        })
    }

    fn limited(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        until: Option<f64>,
        ahead: Option<i64>,
    ) -> PyResult<baton::Function> {
        let mut f = self.function.clone();
        if let Some(n) = ahead {
            check_ahead(n).or_raise(py)?;
            f = f.ahead(n as u32); // 1 to 63
        }
        if let Some(t) = seconds(py, timeout)? {
            f = f.timeout(t);
        }
        if let Some(t) = seconds(py, until)? {
            f = f.wait(t);
        }
        Ok(f)
    }
}

/// The function of a name; waits for one where that is given.
pub(crate) fn get(py: Python<'_>, s: &baton::Session, name: &str, until: Option<f64>) -> PyResult<Function> {
    let limit = seconds(py, until)?;
    let get = || match limit {
        Some(t) => s.await_function(name, t),
        None => s.get_function(name),
    };
    let function = in_task(py, |_| wait(py, get))?;
    Ok(Function { function, session: s.clone() })
}

/// The function of a name, of a session.
#[pyfunction]
pub(crate) fn get_function(py: Python<'_>, session: &Session, name: Text<'_>, wait: Option<f64>) -> PyResult<Function> {
    get(py, &session.session, &name, wait)
}

/// Calls the function of a name.
pub(super) fn call<'py>(
    session: &baton::Session,
    name: &str,
    args: &Bound<'py, PyTuple>,
    named: Option<&Bound<'py, PyDict>>,
) -> PyResult<Py<PyAny>> {
    let py = args.py();
    let function = in_task(py, |task| for_call(is_within(task), || wait(py, || session.function_to_call(name))))?;
    Function { function, session: session.clone() }.__call__(args, named)
}

/// What `baton._functions` does for a method of a session. It is imported when it is first needed.
pub(super) fn by_python<'py>(py: Python<'py>, what: &str, args: impl PyCallArgs<'py>) -> PyResult<Bound<'py, PyAny>> {
    py.import("baton._functions")?.call_method1(what, args)
}

/// Calls, errors, and the seconds within which half of the calls ended, and 99 of 100.
type Counts = (u64, u64, Option<f64>, Option<f64>);
/// Session, name, pid, concurrency, running, stopped, user.
type ListedProvider = (u64, String, u32, u32, usize, bool, u32, Counts);
/// Name, signature, doc, idempotent, exclusive, callers, waiting, running.
type Listed = (String, String, String, bool, bool, usize, usize, usize, Counts, Vec<ListedProvider>);

/// The functions that are registered.
#[pyfunction]
pub(crate) fn list_functions(py: Python<'_>, session: &Session, pattern: Text<'_>) -> PyResult<Vec<Listed>> {
    let all = wait(py, || session.session.functions(&pattern))?;
    let one = |f: baton::FunctionInfo| {
        let counts = |c: baton::CallCounts| (c.calls, c.errors, c.p50, c.p99);
        let provider = |p: baton::ProviderInfo| {
            (p.session, p.name, p.pid, p.concurrency, p.running, p.stopped, p.uid, counts(p.counted))
        };
        let providers = f.providers.into_iter().map(provider).collect();
        let counted = counts(f.counted);
        (f.name, f.signature, f.doc, f.idempotent, f.exclusive, f.callers, f.waiting, f.running, counted, providers)
    };
    Ok(all.into_iter().map(one).collect())
}

/// Ends all registrations of a function.
#[pyfunction]
pub(crate) fn remove_function_everywhere(py: Python<'_>, session: &Session, name: Text<'_>) -> PyResult<u32> {
    wait(py, || session.session.remove_function(&name))
}

#[pymethods]
impl Function {
    /// Its name, with its version.
    #[getter]
    fn name(&self) -> &str {
        self.function.name()
    }

    /// What it does, as its provider says.
    #[getter]
    fn doc(&self) -> String {
        self.function.doc()
    }

    /// What it takes and gives, as its provider says.
    #[getter]
    fn signature(&self) -> String {
        self.function.signature()
    }

    /// How many sessions provide it now.
    #[getter]
    fn providers(&self) -> u32 {
        self.function.providers()
    }

    /// Calls it and waits for what it returns.
    #[pyo3(signature = (*args, **named))]
    fn __call__<'py>(&self, args: &Bound<'py, PyTuple>, named: Option<&Bound<'py, PyDict>>) -> PyResult<Py<PyAny>> {
        let py = args.py();
        let reply = in_task(py, |task| {
            let begun = self.function.begin();
            let a = self.arguments(begun, args, named, None)?;
            for_call(is_within(task), || wait(py, || self.function.reply(begun, a)))
        })?;
        of_reply(py, &self.session, &reply)
    }

    /// Calls it: a `concurrent.futures.Future` of what it returns. Cancelling that cancels the call.
    #[pyo3(signature = (*args, **named))]
    fn submit<'py>(
        slf: &Bound<'py, Self>,
        args: &Bound<'py, PyTuple>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let pending = slf.get().sent(args, named)?;
        slf.py().import("baton._calls")?.getattr("future_of")?.call1((pending,))
    }

    /// Calls it, as a coroutine, which waits without a thread.
    #[pyo3(signature = (*args, **named))]
    fn acall<'py>(
        slf: &Bound<'py, Self>,
        args: &Bound<'py, PyTuple>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let named = named.map_or_else(|| PyDict::new(slf.py()), Clone::clone);
        slf.py().import("baton._calls")?.getattr("result_of")?.call1((slf, args, named))
    }

    /// Calls a function that gives parts, one after the other: an iterator of them. Left before its end the call is
    /// cancelled; its `result()` is what the function has returned. Raises InvalidArgument for a function without parts.
    #[pyo3(signature = (*args, **named))]
    fn stream<'py>(
        &self,
        args: &Bound<'py, PyTuple>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, Parts>> {
        let parts = Parts::made(args.py(), self.begun(args, named, true)?, &self.session, self.title())?;
        parts.get().send(args.py())?;
        Ok(parts)
    }

    /// As `stream`, for `async for`: it waits without a thread. If it has to wait for room or for a provider, it is
    /// sent as its first part is waited for.
    #[pyo3(signature = (*args, **named))]
    fn astream<'py>(
        &self,
        args: &Bound<'py, PyTuple>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, Parts>> {
        let py = args.py();
        let parts = Parts::made(py, self.awaited(args, named, true, None)?, &self.session, self.title())?;
        py.import("baton._calls")?.getattr("begin")?.call1((parts.get()._sending(py),))?;
        Ok(parts)
    }

    /// The same function. timeout: how many seconds its calls take at most. wait: how long they wait for a provider if
    /// there is none. ahead: how many parts a stream may be ahead of what is taken of it, 1 to 63 (default 16).
    #[pyo3(signature = (*, timeout=None, wait=None, ahead=None))]
    fn options(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        wait: Option<f64>,
        ahead: Option<i64>,
    ) -> PyResult<Function> {
        let function = self.limited(py, timeout, wait, ahead)?;
        Ok(Function { function, session: self.session.clone() })
    }

    /// start: what sees to the calls of functions among the arguments.
    fn _sending<'py>(
        &self,
        args: &Bound<'py, PyTuple>,
        named: &Bound<'py, PyDict>,
        start: &Bound<'py, PyAny>,
    ) -> PyResult<Sending> {
        Ok(Sending::new(self.awaited(args, Some(named), false, Some(start))?, &self.session))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "a function belongs to its session: pickle its name and call baton.get_function with it there, or give the \
             function itself as an argument of a call",
        ))
    }

    fn __repr__(&self) -> String {
        let closed = if self.session.is_ended() { ", closed" } else { "" };
        format!("<baton.Function {}{}{closed}>", self.title(), self.function.signature())
    }
}

impl Function {
    /// What is shown of it: its name, or that it was an argument, which has none.
    fn title(&self) -> &str {
        Some(self.function.name()).filter(|name| !name.is_empty()).unwrap_or("(an argument)")
    }

    fn sent<'py>(&self, args: &Bound<'py, PyTuple>, named: Option<&Bound<'py, PyDict>>) -> PyResult<Pending> {
        let (py, mut sending) = (args.py(), self.begun(args, named, false)?);
        // Of a task its future is cancelled with it.
        let sending = in_task(py, |task| {
            let sending = for_call(is_within(task), || wait(py, || sending.wait().map(|()| sending)))?;
            Ok(if task { sending.of_task() } else { sending })
        })?;
        Sending::new(sending, &self.session)._pending(py)
    }

    /// A call of it that is to be sent.
    fn begun<'py>(
        &self,
        args: &Bound<'py, PyTuple>,
        named: Option<&Bound<'py, PyDict>>,
        parts: bool,
    ) -> PyResult<baton::bindings::Sending> {
        in_task(args.py(), |_| self.to_send(args, named, parts, None))
    }

    fn to_send<'py>(
        &self,
        args: &Bound<'py, PyTuple>,
        named: Option<&Bound<'py, PyDict>>,
        parts: bool,
        start: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<baton::bindings::Sending> {
        let (f, begun) = (&self.function, self.function.begin());
        let a = self.arguments(begun, args, named, start)?;
        wait(args.py(), || if parts { f.sending_for_parts(begun, a) } else { f.sending(begun, a) })
    }

    /// As `begun`, of one that a task awaits, which is cancelled with the call that it runs for.
    fn awaited<'py>(
        &self,
        args: &Bound<'py, PyTuple>,
        named: Option<&Bound<'py, PyDict>>,
        parts: bool,
        start: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<baton::bindings::Sending> {
        in_task(args.py(), |task| {
            let sending = self.to_send(args, named, parts, start)?;
            Ok(if task { sending.of_task() } else { sending })
        })
    }
}

/// Provides a function with the settings of a decorator. another: starts one more thread that takes calls; where it is
/// None there is one always.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "settings")]
pub(crate) fn provide(
    py: Python<'_>,
    session: &Session,
    name: Text<'_>,
    description: Text<'_>,
    concurrency: u32,
    idempotent: bool,
    exclusive: bool,
    replace: bool,
    linger: f64,
    another: Option<Py<PyAny>>,
) -> PyResult<super::provided::Provided> {
    let s = &session.session;
    let p = s.provide(&name).and_then(|p| p.description(&description)).or_raise(py)?;
    let p = p.concurrency(concurrency).idempotent(idempotent).exclusive(exclusive).replace(replace);
    let linger = std::time::Duration::try_from_secs_f64(linger).map_err(|e| PyValueError::new_err(e.to_string()))?;
    let p = p.linger(linger);
    let another = move || {
        let start = |py: Python<'_>| another.as_ref().map_or(Ok(true), |start| start.call0(py)?.is_truthy(py));
        Python::try_attach(|py| start(py).unwrap_or(false)).unwrap_or(false)
    };
    let provided = wait(py, || p.register(another))?;
    Ok(super::provided::Provided::new(provided, s))
}
