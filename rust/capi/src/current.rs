//! The call that a function runs for.

use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char, c_int};
use std::ptr::NonNull;
use std::sync::Mutex;

use baton::{Call, Error, PartSender};
use serde_json::Value as Json;

use crate::error::{Refusal, answer, refused, run};
use crate::status::baton_status;
use crate::value::baton_value;
use crate::{c_text, given, text, wait};

/// The call that a function runs for, as long as it runs. Any thread may look at it until the function returns. Calls that
/// the function makes in its own thread end with it: at its deadline, and when it is cancelled.
pub struct baton_current {
    call: *const Call,
    caller: CString,
    args: *const [baton_value],
    /// As many as args.
    names: Vec<CString>,
    /// How it gives parts, if it does: threads take turns, for parts are numbered.
    parts: Option<Mutex<*const PartSender<'static>>>,
}

const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Call>();
    shared::<PartSender<'_>>();
};

thread_local! {
    /// The call that this thread runs.
    static CURRENT: Cell<Option<NonNull<baton_current>>> = const { Cell::new(None) };
    /// What `baton_fail` has said of it.
    static FAILED: RefCell<Option<Error>> = const { RefCell::new(None) };
}

impl baton_current {
    pub(crate) fn new(
        call: &Call,
        names: Vec<CString>,
        args: &[baton_value],
        parts: Option<&PartSender<'_>>,
    ) -> baton_current {
        let parts = parts.map(|p| Mutex::new(std::ptr::from_ref(p).cast()));
        baton_current { call, caller: c_text(call.caller()), args, names, parts }
    }

    /// Runs a function within it, and gives what `baton_fail` has said.
    pub(crate) fn run<T>(&self, function: impl FnOnce() -> T) -> (T, Option<Error>) {
        struct Before(Option<NonNull<baton_current>>, Option<Error>);
        impl Drop for Before {
            fn drop(&mut self) {
                CURRENT.set(self.0);
                FAILED.replace(self.1.take());
            }
        }
        let _before = Before(CURRENT.replace(Some(self.into())), FAILED.take());
        let given = function();
        (given, FAILED.take())
    }

    fn call(&self) -> &Call {
        // SAFETY: it lives until the function returns, as this does.
        unsafe { &*self.call }
    }

    fn args(&self) -> &[baton_value] {
        // SAFETY: as above.
        unsafe { &*self.args }
    }
}

/// The call that this thread runs; NULL outside of a function, and in the child of a fork. It is the library's, until the
/// function returns.
#[unsafe(no_mangle)]
pub extern "C" fn baton_current_call() -> *const baton_current {
    let current = CURRENT.try_with(Cell::get).ok().flatten();
    // SAFETY: it is set while `run` borrows it, in this thread.
    current.filter(|c| unsafe { c.as_ref() }.call().is_here()).map_or(std::ptr::null(), |c| c.as_ptr())
}

/// 1 if nothing waits for the call any more: its caller has cancelled it, or has gone, its deadline has passed, or the
/// session that provides the function is over; else 0. A function that runs long looks now and then, and ends by an error
/// of its choice, which no caller sees.
#[unsafe(no_mangle)]
pub extern "C" fn baton_current_cancelled(current: Option<&baton_current>) -> i32 {
    answer(0, || current.map_or(0, |c| c.call().cancelled().into()))
}

/// Whether the call is still wanted: BATON_OK if it is, BATON_CANCELLED if its caller wants it no more, BATON_TIMEOUT if
/// its deadline has passed, BATON_CLOSED or BATON_SESSION_LOST if the session that provides the function is over.
#[unsafe(no_mangle)]
pub extern "C" fn baton_current_check(current: Option<&baton_current>) -> baton_status {
    run(|| Ok(given(current, "current")?.call().check()?))
}

/// Sleeps until the caller wants the call no more, for timeout_ns at most. It never gives BATON_OK: BATON_CANCELLED when
/// the caller wants the call no more, BATON_TIMEOUT when the time is over before or the call's deadline has passed,
/// BATON_CLOSED or BATON_SESSION_LOST when the session that provides the function is over.
#[unsafe(no_mangle)]
pub extern "C" fn baton_current_wait(current: Option<&baton_current>, timeout_ns: i64) -> baton_status {
    run(|| {
        let call = given(current, "current")?.call();
        call.wait_cancelled(wait(timeout_ns))?;
        call.check()?;
        Err(Refusal::Own(baton_status::BATON_TIMEOUT, "the call was not cancelled in that time".to_owned()))
    })
}

/// How many nanoseconds the caller still waits, 0 if the deadline has passed; BATON_FOREVER without a limit, and for
/// NULL.
#[unsafe(no_mangle)]
pub extern "C" fn baton_current_left(current: Option<&baton_current>) -> i64 {
    answer(crate::BATON_FOREVER, || match current.and_then(|c| c.call().deadline()) {
        None => crate::BATON_FOREVER,
        Some(d) => {
            let left = d.saturating_duration_since(std::time::Instant::now());
            i64::try_from(left.as_nanos()).unwrap_or(i64::MAX)
        }
    })
}

/// How often the call was begun, this time included: more than once of an idempotent function alone, whose provider has
/// ended. 0 for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn baton_current_attempt(current: Option<&baton_current>) -> u32 {
    answer(0, || current.map_or(0, |c| c.call().attempt()))
}

/// The name of the session that calls. The call's; NULL for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn baton_current_caller(current: Option<&baton_current>) -> *const c_char {
    current.map_or(std::ptr::null(), |c| c.caller.as_ptr())
}

/// The name of an argument, from 0: of a function with parameters that of the parameter, else "" for one that was given
/// by its position. The call's; NULL when there is none of that number.
#[unsafe(no_mangle)]
pub extern "C" fn baton_current_name(current: Option<&baton_current>, index: usize) -> *const c_char {
    answer(std::ptr::null(), || current.and_then(|c| c.names.get(index)).map_or(std::ptr::null(), |n| n.as_ptr()))
}

/// The argument of a name. The call's; NULL when there is none.
#[unsafe(no_mangle)]
pub extern "C" fn baton_current_argument(current: Option<&baton_current>, name: *const c_char) -> *const baton_value {
    answer(std::ptr::null(), || {
        // SAFETY: the header asks for a text or NULL.
        let Ok(name) = (unsafe { text(name, "name") }) else { return std::ptr::null() };
        let found = current.and_then(|c| {
            let at = c.names.iter().position(|n| !name.is_empty() && n.to_bytes() == name.as_bytes())?;
            c.args().get(at)
        });
        found.map_or(std::ptr::null(), std::ptr::from_ref)
    })
}

/// Gives a part to the caller, of a function that is provided with the option parts. If the caller has not taken as many
/// before as it lets be ahead, this waits, and the function takes other calls meanwhile. BATON_CANCELLED if the caller
/// wants no more, or has gone; BATON_TIMEOUT after the call's deadline; BATON_INVALID_ARGUMENT for what cannot be sent,
/// and of a function that gives no parts. The value stays the function's.
#[unsafe(no_mangle)]
pub extern "C" fn baton_current_send_part(current: Option<&baton_current>, part: Option<&baton_value>) -> baton_status {
    run(|| {
        let (current, part) = (given(current, "current")?, given(part, "part")?.value()?);
        let Some(parts) = &current.parts else { return refused("the function was provided without the option parts") };
        let parts = parts.lock().unwrap_or_else(|p| p.into_inner());
        // SAFETY: it lives until the function returns, as this does.
        Ok(unsafe { &**parts }.send(part)?)
    })
}

/// Says how the function that this thread runs fails, and gives what it returns then:
/// return baton_fail("ValueError", "bad value 3", NULL). kind: the type of the error, by which callers in any language
/// tell it from others; NULL for "error". detail: a JSON object of what else there is to say, "trace" (where it happened)
/// and "cause" (an object of kind, message, trace and perhaps cause); NULL for nothing. A function that returns another
/// status than BATON_OK without it fails with the last failed call of its thread that gave that status.
#[unsafe(no_mangle)]
pub extern "C" fn baton_fail(kind: *const c_char, message: *const c_char, detail: *const c_char) -> c_int {
    answer((), || {
        let lossy = |text: *const c_char| {
            // SAFETY: the header asks for texts or NULL.
            (!text.is_null()).then(|| unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        let (kind, message) = (lossy(kind).filter(|k| !k.is_empty()), lossy(message).unwrap_or_default());
        let more: Json = lossy(detail).and_then(|d| serde_json::from_str(&d).ok()).unwrap_or_default();
        let trace = more.get("trace").and_then(Json::as_str).unwrap_or_default().to_owned();
        let cause = more.get("cause").filter(|c| c.is_object()).cloned();
        let e = Error::of_kind(kind.unwrap_or_else(|| "error".to_owned()), message).traced(trace, cause);
        let _ = FAILED.try_with(|f| f.replace(Some(e)));
    });
    baton_status::BATON_REMOTE as c_int
}
