//! Providing functions: threads of Python take calls and run them.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Instant;

use baton::bindings::{Outer, Taken, Waits, caught};
use baton::{Arguments, Code, Error, FunctionValue};
use pyo3::exceptions::{
    PyBaseException, PyKeyboardInterrupt, PyRuntimeError, PyStopIteration, PySystemExit, PyTypeError,
};
use pyo3::intern;
use pyo3::panic::PanicException;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::base::errors::{OrRaise, error};
use crate::base::poll::poll_fd;
use crate::base::wait::{for_call, raise, wait};
use crate::value::{of_args, result};

thread_local! {
    /// The calls that this thread runs, the innermost last.
    static RUNS: RefCell<Vec<Arc<Running>>> = const { RefCell::new(Vec::new()) };
}

/// A call that runs, until it is replied to.
struct Running {
    taken: RwLock<Option<Taken>>,
    /// Of one that runs in a task: for what is made within it, in whichever thread.
    outer: Option<Arc<Outer>>,
    cancelled: AtomicBool, // as it was last seen
}

impl Running {
    fn new(taken: Taken) -> Arc<Running> {
        Running { taken: RwLock::new(Some(taken)), outer: None, cancelled: AtomicBool::new(false) }.into()
    }

    fn in_task(taken: Taken) -> Arc<Running> {
        let outer = Some(taken.outer());
        Running { taken: RwLock::new(Some(taken)), outer, cancelled: AtomicBool::new(false) }.into()
    }

    fn look<T>(&self, see: impl FnOnce(&Taken) -> T) -> Option<T> {
        self.taken.read().unwrap_or_else(|p| p.into_inner()).as_ref().map(see)
    }

    fn take(&self) -> Option<Taken> {
        self.taken.write().unwrap_or_else(|p| p.into_inner()).take()
    }

    fn cancelled(&self) -> bool {
        let now = self.look(|t| t.call().cancelled());
        if let Some(now) = now {
            self.cancelled.store(now, Ordering::Relaxed);
        }
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Runs the function in this thread. A panic is an error of the call.
    fn run(
        self: &Arc<Self>,
        py: Python<'_>,
        session: &baton::Session,
        f: &Bound<'_, PyAny>,
        parts: bool,
    ) -> PyResult<Arguments> {
        raised(|| for_call(true, || self.runs(py, session, f, parts)))
    }

    fn runs(
        self: &Arc<Self>,
        py: Python<'_>,
        session: &baton::Session,
        f: &Bound<'_, PyAny>,
        parts: bool,
    ) -> PyResult<Arguments> {
        struct Within;
        impl Drop for Within {
            fn drop(&mut self) {
                RUNS.with(|r| r.borrow_mut().pop());
            }
        }
        RUNS.with(|r| r.borrow_mut().push(self.clone()));
        let _within = Within;
        let ran = self.look(|taken| {
            taken.within(|| {
                let (args, named) = match taken.args() {
                    Some(args) => of_args(py, session, args)?,
                    None => (PyTuple::empty(py), None),
                };
                let value = match &named {
                    None => f.call1(args)?,
                    Some(named) => f.call(args, Some(named))?,
                };
                let value = if parts { give(taken, session, &value)? } else { value };
                taken.making(|| result(session, &value))
            })
        });
        ran.unwrap_or_else(|| Err(over(py)))
    }
}

/// Runs what a call does in the interpreter: a panic is raised as RuntimeError. An exception of Python code that stands for
/// a panic comes as one.
fn raised<T>(run: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    caught(run).unwrap_or_else(|text| Err(PyRuntimeError::new_err(text)))
}

/// Gives the parts of a generator: what it returns at its end.
fn give<'py>(taken: &Taken, session: &baton::Session, parts: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = parts.py();
    let all = parts.try_iter()?;
    let next = intern!(py, "__next__");
    loop {
        let part = match all.call_method0(next) {
            Ok(part) => part,
            Err(e) if e.is_instance_of::<PyStopIteration>(py) => return e.value(py).getattr("value"),
            Err(e) => return Err(e),
        };
        let sent = taken.making(|| result(session, &part)).and_then(|part| wait(py, || taken.send_part(part)));
        drop(part);
        if let Err(e) = sent {
            // It ends where it stands, before the call does.
            if all.hasattr("close")? {
                all.call_method0("close")?;
            }
            return Err(e);
        }
    }
}

/// Whether this process provides coroutines, whose calls are those of their tasks.
static COROUTINES: AtomicBool = AtomicBool::new(false);

/// Makes a call within that of the task which runs in this thread, or has it do something in another one: `make` is told
/// that. What it waits for holds nothing of the task's, which may end meanwhile.
pub(crate) fn in_task<T>(py: Python<'_>, make: impl FnOnce(bool) -> PyResult<T>) -> PyResult<T> {
    if !COROUTINES.load(Ordering::Relaxed) || RUNS.with(|r| !r.borrow().is_empty()) {
        return make(false); // of a thread that runs a call it is the call's already
    }
    let current = py.import("baton._coroutines")?.getattr("current")?.call_method0("get")?;
    match current.cast::<Call>().ok().and_then(|call| call.get().running.outer.clone()) {
        Some(outer) => outer.within(|| make(true)),
        None => make(false),
    }
}

/// Whether what this thread does is within a call; `task`: within that of a task.
pub(crate) fn is_within(task: bool) -> bool {
    task || RUNS.with(|r| !r.borrow().is_empty())
}

/// A function of this process, to be given as an argument.
pub(crate) fn lent(session: &baton::Session, f: &Bound<'_, PyAny>) -> FunctionValue {
    let (f, session) = (Object(Some(f.clone().unbind())), session.clone());
    FunctionValue::taking(move |taken| {
        let ran = Python::try_attach(|py| {
            let Some(f) = &f.0 else { return };
            let running = Running::new(taken);
            let outcome = running.run(py, &session, f.bind(py), false);
            if let Err(e) = &outcome
                && (e.is_instance_of::<PyKeyboardInterrupt>(py) || e.is_instance_of::<PySystemExit>(py))
            {
                raise(e.clone_ref(py)); // by the wait in this thread
            }
            let outcome = outcome.map_err(|e| failed(py, e));
            running.cancelled();
            if let Some(taken) = running.take() {
                py.detach(|| taken.reply(outcome));
            }
        });
        debug_assert!(ran.is_some(), "a wait of the interpreter's");
    })
}

/// As `lent`, of a function that runs elsewhere: `start` is called with it and each `Call` of it, which it sees to.
pub(crate) fn lent_to(session: &baton::Session, f: &Bound<'_, PyAny>, start: &Bound<'_, PyAny>) -> FunctionValue {
    COROUTINES.store(true, Ordering::Relaxed);
    let (f, start) = (Object(Some(f.clone().unbind())), Object(Some(start.clone().unbind())));
    let session = session.clone();
    FunctionValue::taking(move |taken| {
        let begun = Python::try_attach(|py| {
            let (Some(f), Some(start)) = (&f.0, &start.0) else { return };
            let running = Running::in_task(taken);
            let call = Call { running: running.clone(), session: Some(session.clone()), waits: Mutex::default() };
            let started = raised(|| start.call1(py, (f, Py::new(py, call)?)));
            if let Err(e) = started {
                let e = failed(py, e); // as of a loop that is closed
                if let Some(taken) = running.take() {
                    py.detach(|| taken.reply(Err(e)));
                }
            }
        });
        debug_assert!(begun.is_some(), "a wait of the interpreter's");
    })
}

/// An object that any thread may let go.
struct Object(Option<Py<PyAny>>);

impl Drop for Object {
    fn drop(&mut self) {
        let object = self.0.take();
        Python::try_attach(|_| drop(object));
    }
}

fn over(py: Python<'_>) -> PyErr {
    error(py, Code::Closed, "", "the call is over")
}

/// What `baton._functions.told` makes of an exception.
type Told = (String, String, String, Option<String>);

/// The error that a caller is told.
fn failed(py: Python<'_>, e: PyErr) -> Error {
    let e = e.into_value(py); // with its traceback
    let e = match e.bind(py).is_instance_of::<PanicException>() {
        true => as_error(py, e),
        false => e,
    };
    static TOLD: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let told = || -> PyResult<Told> {
        let tell =
            TOLD.get_or_try_init(py, || -> PyResult<_> { Ok(py.import("baton._errors")?.getattr("told")?.unbind()) })?;
        tell.bind(py).call1((&e,))?.extract()
    };
    match told() {
        Ok((kind, message, trace, cause)) => {
            let cause = cause.and_then(|c| serde_json::from_str(&c).ok());
            Error::of_kind(kind, message).traced(trace, cause)
        }
        Err(other) => Error::of_kind("RuntimeError", format!("an error that cannot be told: {other}")),
    }
}

/// What is no exception that programs handle, as one: with what it says and its traceback.
#[cold]
fn as_error(py: Python<'_>, e: Py<PyBaseException>) -> Py<PyBaseException> {
    let made = PyRuntimeError::new_err(e.bind(py).to_string());
    made.set_traceback(py, PyErr::from_value(e.into_bound(py).into_any()).traceback(py));
    made.into_value(py)
}

/// A function that this process provides.
#[pyclass(frozen, module = "baton", weakref)]
pub(crate) struct Provided {
    provided: baton::Provided,
    session: baton::Session,
}

impl Provided {
    pub(crate) fn new(provided: baton::Provided, session: &baton::Session) -> Provided {
        Provided { provided, session: session.clone() }
    }
}

#[pymethods]
impl Provided {
    /// Its name, with its version.
    #[getter]
    fn name(&self) -> &str {
        self.provided.name()
    }

    /// Whether it takes calls still.
    #[getter]
    fn current(&self) -> bool {
        self.provided.is_current()
    }

    /// How many calls run.
    #[getter]
    fn running(&self) -> usize {
        self.provided.running()
    }

    /// Takes calls and runs them in this thread, until the function is provided no more, or other threads take them. code:
    /// the function, in a list, of which each call takes the one that stands there as it begins. parts: it returns an
    /// iterator of those.
    #[pyo3(signature = (code, parts=false))]
    fn _work(&self, py: Python<'_>, code: &Bound<'_, PyList>, parts: bool) {
        let mut ended: Option<(Taken, baton::Result<Arguments>)> = None;
        loop {
            let next = py.detach(|| {
                if let Some((taken, outcome)) = ended.take() {
                    let _ = caught(|| taken.reply(outcome)); // after a panic it is over without a reply
                }
                self.provided.take()
            });
            let Some(taken) = next else { return };
            let running = Running::new(taken);
            let outcome = code.get_item(0).and_then(|f| running.run(py, &self.session, &f, parts));
            let outcome = outcome.map_err(|e| failed(py, e));
            running.cancelled();
            match running.take() {
                Some(taken) if !taken.is_here() => return, // in the child of a fork
                Some(taken) => ended = Some((taken, outcome)),
                None => {}
            }
        }
    }

    /// The next call; None once the function is provided no more.
    fn _take(&self, py: Python<'_>) -> Option<Call> {
        COROUTINES.store(true, Ordering::Relaxed);
        let taken = py.detach(|| self.provided.take())?;
        Some(Call { running: Running::in_task(taken), session: Some(self.session.clone()), waits: Mutex::default() })
    }

    /// Takes no more calls.
    fn _close(&self, py: Python<'_>) {
        py.detach(|| self.provided.close());
    }

    fn _poll_fd(&self, py: Python<'_>) -> PyResult<i32> {
        poll_fd(py, &self.session)
    }

    fn _clear_poll_fd(&self) {
        self.session.clear_poll_fd();
    }
}

/// The call that a function runs for.
///
/// >>> @baton.function("doc/looks")
/// ... def looks():
/// ...     c = baton.current_call()
/// ...     return c.cancelled, c.deadline > time.monotonic(), c.attempt, c.caller != ""
/// >>> with baton.start_functions(looks):
/// ...     baton.get_function("doc/looks").options(timeout=60)()
/// (False, True, 1, True)
#[pyclass(frozen, module = "baton", weakref)]
pub(crate) struct Call {
    running: Arc<Running>,
    /// Of one that is replied to by this object.
    session: Option<baton::Session>,
    /// A part that its caller has no room for.
    waits: Mutex<Option<Waits>>,
}

/// The innermost call that this thread runs. In the child of a fork those that it ran are the parent's.
#[pyfunction]
pub(crate) fn current_call() -> Option<Call> {
    let running = RUNS.with(|r| r.borrow().last().cloned()).filter(|r| r.look(Taken::is_here).unwrap_or(true));
    running.map(|running| Call { running, session: None, waits: Mutex::default() })
}

#[pymethods]
impl Call {
    /// Whether the caller wants it no more, or has gone, its deadline has passed, or the session that provides the function
    /// is over.
    #[getter]
    fn cancelled(&self) -> bool {
        self.running.cancelled()
    }

    /// Until when the caller waits, by `time.monotonic()`; None: without a limit.
    #[getter]
    fn deadline(&self, py: Python<'_>) -> PyResult<Option<f64>> {
        let Some(until) = self.running.look(|t| t.call().deadline()).flatten() else { return Ok(None) };
        let now: f64 = py.import("time")?.call_method0("monotonic")?.extract()?;
        let here = Instant::now();
        let left = until.saturating_duration_since(here).as_secs_f64();
        Ok(Some(now + left - here.saturating_duration_since(until).as_secs_f64()))
    }

    /// How often the call was begun, this time included.
    #[getter]
    fn attempt(&self) -> u32 {
        self.running.look(|t| t.call().attempt()).unwrap_or(1)
    }

    /// The name of the session that calls.
    #[getter]
    fn caller(&self) -> String {
        self.running.look(|t| t.call().caller().to_owned()).unwrap_or_default()
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("a call belongs to the process that runs it: pickle what is needed of it"))
    }

    fn __repr__(&self) -> String {
        let state = match (self.running.look(|_| ()), self.cancelled()) {
            (None, _) => ", ended",
            (_, true) => ", cancelled",
            _ => "",
        };
        format!("<baton.Call from {:?}, attempt {}{state}>", self.caller(), self.attempt())
    }

    fn _arguments<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyTuple>, Option<Bound<'py, PyDict>>)> {
        let session = self.session.as_ref().ok_or_else(|| over(py))?;
        let args = self.running.look(|t| t.args().map(|args| of_args(py, session, args))).flatten();
        args.unwrap_or_else(|| Err(over(py)))
    }

    /// Gives a part; false where its caller has no room for it: then others have the place of the call.
    fn _part(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        let session = self.session.as_ref().ok_or_else(|| over(py))?;
        let part = self.made(py, session, value)?;
        let waits = wait(py, || self.running.look(|t| t.try_part(part)).transpose())?.ok_or_else(|| over(py))?;
        let sent = waits.is_none();
        *self.waits.lock().unwrap_or_else(|p| p.into_inner()) = waits;
        Ok(sent)
    }

    /// Gives the part that waits: True once it is given, else None.
    fn _retry(&self, py: Python<'_>) -> PyResult<Option<bool>> {
        let mut waits = self.waits.lock().unwrap_or_else(|p| p.into_inner());
        let Some(part) = waits.as_mut() else { return Ok(Some(true)) };
        let sent = self.running.look(|t| t.retry_part(part)).unwrap_or(Ok(true)).or_raise(py)?;
        if sent {
            *waits = None;
        }
        Ok(sent.then_some(true))
    }

    /// Has a place again: True once it has, else None.
    fn _regain(&self) -> Option<bool> {
        self.running.look(Taken::regain_place).unwrap_or(true).then_some(true)
    }

    /// Waits for a place no more.
    fn _forget(&self) {
        self.running.look(Taken::forget_place);
    }

    /// Ends it with what the function has returned.
    fn _reply(&self, py: Python<'_>, value: &Bound<'_, PyAny>) {
        let made = self.session.as_ref().map_or_else(|| Err(over(py)), |s| raised(|| self.made(py, s, value)));
        let outcome = made.map_err(|e| failed(py, e));
        self.end(py, outcome);
    }

    /// Ends it with an exception.
    fn _fail(&self, py: Python<'_>, e: &Bound<'_, PyAny>) {
        self.end(py, Err(failed(py, PyErr::from_value(e.clone()))));
    }
}

impl Call {
    /// What the function has returned, or a part.
    fn made(&self, py: Python<'_>, session: &baton::Session, value: &Bound<'_, PyAny>) -> PyResult<Arguments> {
        let made = self.running.look(|taken| taken.making(|| result(session, value)));
        made.unwrap_or_else(|| Err(over(py)))
    }

    fn end(&self, py: Python<'_>, outcome: baton::Result<Arguments>) {
        self.running.cancelled();
        // Another thread may look at it, and wait for the interpreter.
        py.detach(|| self.running.take().map(|taken| taken.reply(outcome)));
    }
}
