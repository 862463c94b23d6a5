//! From results to statuses, with the text of the last failure of each thread.

use std::cell::RefCell;
use std::ffi::{CString, c_char};

use baton::bindings::caught;

use crate::status::{baton_status, of};

/// Why a call was not done.
pub(crate) enum Refusal {
    /// The crate says so.
    Baton(baton::Error),
    /// This layer says so.
    Own(baton_status, String),
}

pub(crate) type Outcome<T = ()> = Result<T, Refusal>;

impl From<baton::Error> for Refusal {
    fn from(e: baton::Error) -> Refusal {
        Refusal::Baton(e)
    }
}

/// What the program gave cannot be.
pub(crate) fn refused<T>(what: impl Into<String>) -> Outcome<T> {
    refused_for(what, "baton.h says what it may be")
}

/// As [`refused`], with what to do.
pub(crate) fn refused_for<T>(what: impl Into<String>, remedy: &str) -> Outcome<T> {
    Err(Refusal::Own(baton_status::BATON_INVALID_ARGUMENT, with_remedy(what, remedy)))
}

/// What it asks for is not there.
pub(crate) fn missing<T>(what: impl Into<String>) -> Outcome<T> {
    Err(Refusal::Own(baton_status::BATON_NOT_FOUND, with_remedy(what, "ask for what there is: indices begin at 0")))
}

/// A text as the crate's errors have it.
fn with_remedy(what: impl Into<String>, remedy: &str) -> String {
    format!("{} ({remedy})", what.into())
}

/// The last failure of a thread.
struct Last {
    status: baton_status,
    text: CString,
    /// The crate's error, if it says so.
    error: Option<baton::Error>,
    /// What baton_last_detail has given of it.
    details: Vec<(String, CString)>,
}

impl Last {
    fn none() -> Last {
        Last { status: baton_status::BATON_OK, text: CString::default(), error: None, details: Vec::new() }
    }
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::new(Last::none());
}

fn fail(status: baton_status, text: String, error: Option<baton::Error>) -> baton_status {
    let text = crate::c_text(text);
    // While a thread ends it may have no place for the text any more.
    let _ = LAST.try_with(|last| last.replace(Last { status, text, error, details: Vec::new() }));
    status
}

/// Runs a function of the program, which sees no failure of before. What this thread has read of its last failure stays:
/// a function that a call was given runs within that call.
pub(crate) fn apart<T>(function: impl FnOnce() -> T) -> T {
    struct Before(Option<Last>);
    impl Drop for Before {
        fn drop(&mut self) {
            let _ = LAST.try_with(|last| last.replace(self.0.take().unwrap_or_else(Last::none)));
        }
    }
    let _before = Before(LAST.try_with(|last| last.replace(Last::none())).ok());
    function()
}

/// The thread's last failure as an error of the crate, if it has that status.
pub(crate) fn last_of(status: i32) -> Option<baton::Error> {
    LAST.try_with(|last| {
        let last = last.borrow();
        (last.status as i32 == status && status != 0)
            .then(|| last.error.clone().unwrap_or_else(|| own_error(last.status, last.text.to_string_lossy())))
    })
    .ok()
    .flatten()
}

/// What this layer says, as the error of a function.
pub(crate) fn own_error(status: baton_status, text: impl Into<String>) -> baton::Error {
    baton::Error::of_kind(format!("baton.{}", crate::status::name_of(status as i32)), text)
}

/// Carries a call out: the one place where errors become statuses, and where a panic ends.
pub(crate) fn run(call: impl FnOnce() -> Outcome) -> baton_status {
    // A panic leaves no object in a state that later calls could not bear: locks are taken again
    // although poisoned, as everywhere in the crate.
    match caught(call) {
        Ok(Ok(())) => baton_status::BATON_OK,
        Ok(Err(Refusal::Baton(e))) => fail(of(e.code()), e.to_string(), Some(e)),
        Ok(Err(Refusal::Own(status, what))) => fail(status, what, None),
        Err(_) => fail(baton_status::BATON_INTERNAL, "a mistake in Baton: report it".to_owned(), None),
    }
}

/// What a function that gives no status answers; `other` after a panic.
pub(crate) fn answer<T>(other: T, call: impl FnOnce() -> T) -> T {
    caught(call).unwrap_or(other)
}

/// What happened, to what, and what to do, for the last call of this thread that failed; "" when none
/// did. Never NULL. The text is the library's, until the next call of this thread that fails.
#[unsafe(no_mangle)]
pub extern "C" fn baton_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().text.as_ptr()).unwrap_or(c"".as_ptr())
}

/// The status of the last call of this thread that failed; BATON_OK when none did. It is for the calls that give
/// something else than a status.
#[unsafe(no_mangle)]
pub extern "C" fn baton_last_status() -> baton_status {
    LAST.try_with(|last| last.borrow().status).unwrap_or(baton_status::BATON_OK)
}

/// A detail of the last call of this thread that failed, "" for one that it does not have. Never NULL. Of a function that
/// failed (BATON_REMOTE): "function", "kind" (the type of its error where it is written), "message", "trace", "provider"
/// (the session that ran it) and "cause", the JSON of what led to it: an object of kind, message, trace and perhaps
/// cause, in which "cause/message" and the like look. Of BATON_PROVIDER_DIED: "function", "provider", "pid", "reason".
/// Of BATON_CLOSED: "topic" where a topic or queue was closed for all sessions; a session that ended has none.
/// NULL or "": all that there are, as JSON. The text is the library's, until the next call of this thread that fails.
#[unsafe(no_mangle)]
pub extern "C" fn baton_last_detail(path: *const c_char) -> *const c_char {
    answer(c"".as_ptr(), || {
        // SAFETY: the header asks for a text or NULL.
        let Ok(path) = (unsafe { crate::maybe_text(path, "path") }) else { return c"".as_ptr() };
        LAST.try_with(|last| last.borrow_mut().detail(path.unwrap_or_default())).unwrap_or(c"".as_ptr())
    })
}

impl Last {
    fn detail(&mut self, path: &str) -> *const c_char {
        let Some(e) = &self.error else { return c"".as_ptr() };
        if let Some((_, text)) = self.details.iter().find(|(p, _)| p == path) {
            return text.as_ptr();
        }
        let text = match path {
            "" if e.detail().is_empty() => String::new(),
            "" => serde_json::to_string(e.detail()).unwrap_or_default(),
            path => {
                let (first, rest) = path.split_once('/').unwrap_or((path, ""));
                let mut found = e.detail().get(first);
                for key in rest.split('/').filter(|key| !key.is_empty()) {
                    found = found.and_then(|v| v.get(key));
                }
                match found {
                    None | Some(serde_json::Value::Null) => String::new(),
                    Some(serde_json::Value::String(s)) => s.clone(),
                    Some(other) => other.to_string(),
                }
            }
        };
        // A CString's text stays where it is while the vector grows.
        self.details.push((path.to_owned(), crate::c_text(text)));
        self.details.last().map_or(c"".as_ptr(), |(_, text)| text.as_ptr())
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn last() -> String {
        // SAFETY: the text of this thread, which does not fail meanwhile.
        unsafe { CStr::from_ptr(baton_last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_ends_at_the_boundary() {
        assert_eq!(last(), "");
        assert_eq!(run(|| panic!("on purpose")), baton_status::BATON_INTERNAL);
        assert!(last().contains("report it"));
        assert_eq!(run(|| refused("no such thing\0hidden")), baton_status::BATON_INVALID_ARGUMENT);
        assert_eq!((last().as_str(), baton_last_status()), ("no such thing", baton_status::BATON_INVALID_ARGUMENT));
        assert_eq!(run(|| refused("start is 7")), baton_status::BATON_INVALID_ARGUMENT);
        assert_eq!(last(), "start is 7 (baton.h says what it may be)");
        assert_eq!(run(|| refused_for("no such thing", "give one")), baton_status::BATON_INVALID_ARGUMENT);
        assert_eq!(last(), "no such thing (give one)");
        assert_eq!(run(|| Ok(())), baton_status::BATON_OK);
        assert_eq!(last(), "no such thing (give one)", "kept until the next failure");
        std::thread::spawn(|| assert_eq!(last(), "")).join().unwrap();
        assert_eq!(answer(7, || panic!("on purpose")), 7);
    }
}
