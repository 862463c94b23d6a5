//! Waiting with the interpreter let go, and Ctrl-C.

use std::cell::{Cell, RefCell};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use baton::Code;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyBool;

use crate::base::errors::{error, invalid, to_py};

thread_local! {
    /// What a signal handler raised while this thread waited in the client.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
    /// Whether this thread waits for a call that was made within no other.
    static OUTSIDE: Cell<bool> = const { Cell::new(false) };
}

/// The process whose calls within no other end, while it waits for its functions at its end; 0: none.
static ENDING: AtomicU32 = AtomicU32::new(0);

/// Has the waits of threads for calls end that were made within no other, or no more.
pub(crate) fn end_calls(yes: bool) {
    // Relaxed: a look that comes too early is followed by another one, as each sleep looks again.
    ENDING.store(if yes { process::id() } else { 0 }, Ordering::Relaxed);
}

/// Does what may wait for a call: one that was made within another, or not. A function that runs meanwhile is within
/// one.
pub(crate) fn for_call<T>(within: bool, f: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            OUTSIDE.set(self.0);
        }
    }
    let _before = Before(OUTSIDE.replace(!within));
    f()
}

fn ends() -> bool {
    // Relaxed: see `end_calls`.
    OUTSIDE.get() && matches!(ENDING.load(Ordering::Relaxed), pid if pid != 0 && pid == process::id())
}

/// The client's hook: runs Python's signal handlers; true ends the wait. Only the main thread runs
/// handlers, to which the kernel gives signals first, so its sleeps end at each.
pub(crate) fn interrupted() -> bool {
    if RAISED.with(|r| r.borrow().is_some()) {
        return true;
    }
    let ended = |py: Python<'_>| error(py, Code::Cancelled, "", "the interpreter ends, and the call with it");
    let raised = match ends() {
        true => Python::try_attach(ended),
        false => Python::try_attach(|py| py.check_signals().err()).flatten(),
    };
    let stop = raised.is_some();
    if stop {
        RAISED.with(|r| *r.borrow_mut() = raised);
    }
    stop
}

/// Ends the wait of this thread, which raises an exception that a function has raised meanwhile.
pub(crate) fn raise(e: PyErr) {
    RAISED.with(|r| *r.borrow_mut() = Some(e));
}

/// Libraries that ask for memory in the program's place.
const BETWEEN: [&str; 5] = ["torch", "multiprocessing", "concurrent", "threading", "gymnasium"];

/// The client's other hook: file and line of the innermost frame that is neither this package's nor one of these
/// libraries', else of theirs.
pub(crate) fn caller() -> Option<String> {
    let look = |py: Python<'_>| -> PyResult<Option<String>> {
        let mut frame = py.import("sys")?.call_method1("_getframe", (0,))?;
        let mut between = None;
        while !frame.is_none() {
            let module = frame.getattr("f_globals")?.get_item("__name__").and_then(|n| n.extract::<String>());
            let module = module.unwrap_or_default();
            let package = module.split('.').next().unwrap_or_default();
            if package != "baton" {
                let file: String = frame.getattr("f_code")?.getattr("co_filename")?.extract()?;
                let at = format!("{file}:{}", frame.getattr("f_lineno")?.extract::<u32>()?);
                if !BETWEEN.contains(&package) && !file.starts_with("<frozen") {
                    return Ok(Some(at));
                }
                between.get_or_insert(at);
            }
            frame = frame.getattr("f_back")?;
        }
        Ok(between)
    };
    // A thread without a frame of Python raises, and an exception that was there stays.
    Python::try_attach(|py| {
        let before = PyErr::take(py);
        let found = look(py).ok().flatten();
        before.into_iter().for_each(|e| e.restore(py));
        found
    })
    .flatten()
}

/// Runs what may wait, with the interpreter let go. A wait that a signal handler ended by raising
/// raises that.
pub(crate) fn wait<T: Send>(py: Python<'_>, f: impl Send + FnOnce() -> baton::Result<T>) -> PyResult<T> {
    let got = py.detach(f);
    match (RAISED.with(|r| r.borrow_mut().take()), got) {
        (Some(raised), _) => Err(raised),
        (None, got) => got.map_err(|e| to_py(py, &e)),
    }
}

/// The seconds of a queue's calls, whose counterparts in `queue.Queue` take a bool, whether to wait, in their
/// place.
pub(crate) struct Seconds(pub(crate) f64);

impl<'a, 'py> FromPyObject<'a, 'py> for Seconds {
    type Error = PyErr;

    fn extract(ob: Borrowed<'a, 'py, PyAny>) -> PyResult<Seconds> {
        if ob.is_instance_of::<PyBool>() {
            return Err(PyTypeError::new_err(
                "a timeout is seconds, 0 to poll or None to wait without a limit, not a bool",
            ));
        }
        ob.extract().map(Seconds)
    }
}

/// Seconds of Python: None waits without a limit, 0 polls.
pub(crate) fn timeout(py: Python<'_>, seconds: Option<f64>) -> PyResult<Option<Duration>> {
    match seconds {
        None => Ok(None),
        Some(s) => time(s).ok_or_else(|| {
            invalid(py, "use None to wait without a limit, 0 to poll, or seconds", format!("timeout {s} is no time"))
        }),
    }
}

/// So many seconds; `Some(None)` where they are more than any program runs, `None` where they are no time.
pub(crate) fn time(seconds: f64) -> Option<Option<Duration>> {
    match seconds {
        s if s.is_nan() || s < 0.0 => None,
        s if s > 1e9 => Some(None),
        s => Some(Some(Duration::from_secs_f64(s))),
    }
}
