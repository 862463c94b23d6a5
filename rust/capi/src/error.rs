//! From results to statuses, with the text of the last failure of each thread.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

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
    Err(Refusal::Own(baton_status::BATON_INVALID_ARGUMENT, what.into()))
}

/// What it asks for is not there.
pub(crate) fn missing<T>(what: impl Into<String>) -> Outcome<T> {
    Err(Refusal::Own(baton_status::BATON_NOT_FOUND, what.into()))
}

thread_local! {
    static LAST: RefCell<(baton_status, CString)> = RefCell::new((baton_status::BATON_OK, CString::default()));
}

fn fail(status: baton_status, text: String) -> baton_status {
    let text = crate::c_text(text);
    // While a thread ends it may have no place for the text any more.
    let _ = LAST.try_with(|last| *last.borrow_mut() = (status, text));
    status
}

/// Carries a call out: the one place where errors become statuses, and where a panic ends.
pub(crate) fn run(call: impl FnOnce() -> Outcome) -> baton_status {
    // A panic leaves no object in a state that later calls could not bear: locks are taken again
    // although poisoned, as everywhere in the crate.
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => baton_status::BATON_OK,
        Ok(Err(Refusal::Baton(e))) => fail(of(e.code()), e.to_string()),
        Ok(Err(Refusal::Own(status, what))) => fail(status, what),
        Err(_) => fail(baton_status::BATON_INTERNAL, "a mistake in Baton: report it".to_owned()),
    }
}

/// What a function that gives no status answers; `other` after a panic.
pub(crate) fn answer<T>(other: T, call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(other)
}

/// What happened, to what, and what to do, for the last call of this thread that failed; "" when none
/// did. Never NULL. The text is the library's, until the next call of this thread that fails.
#[unsafe(no_mangle)]
pub extern "C" fn baton_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().1.as_ptr()).unwrap_or(c"".as_ptr())
}

/// The status of the last call of this thread that failed; BATON_OK when none did. It is for the calls that give
/// something else than a status.
#[unsafe(no_mangle)]
pub extern "C" fn baton_last_status() -> baton_status {
    LAST.try_with(|last| last.borrow().0).unwrap_or(baton_status::BATON_OK)
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
        assert_eq!(run(|| Ok(())), baton_status::BATON_OK);
        assert_eq!(last(), "no such thing", "kept until the next failure");
        std::thread::spawn(|| assert_eq!(last(), "")).join().unwrap();
        assert_eq!(answer(7, || panic!("on purpose")), 7);
    }
}
