//! Names.

use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;

use baton::bindings::Closable;
use baton::{Deadline, NameOptions, Watch};

use crate::error::{answer, refused, run};
use crate::message::baton_message;
use crate::payload::{baton_payload, payload};
use crate::status::baton_status;
use crate::{baton_session, c_text, give, give_object, given, maybe_give, maybe_text, text, wait};

/// The name is live: one bundle that all sessions may write in place.
pub const BATON_LIVE: u32 = 1;
/// The name is deleted when this session ends.
pub const BATON_EPHEMERAL: u32 = 2;

/// Follows a name. Threads that share one take turns, also while one waits.
pub struct baton_watch(pub(crate) Closable<Watch>);

/// Publishes a revision of a name: a whole that is not written any more, or, with BATON_LIVE, one that
/// all may. flags: 0, BATON_LIVE, BATON_EPHEMERAL, or both joined by |. revision: its number, may be NULL.
/// Errors: BATON_INVALID_ARGUMENT, BATON_EXPIRED, BATON_OUT_OF_MEMORY, BATON_QUOTA_EXCEEDED.
#[unsafe(no_mangle)]
pub extern "C" fn baton_set(
    session: Option<&baton_session>,
    name: *const c_char,
    value: *const baton_payload,
    flags: u32,
    revision: Option<&mut MaybeUninit<u64>>,
) -> baton_status {
    let set = || {
        let session = &given(session, "session")?.0;
        if flags & !(BATON_LIVE | BATON_EPHEMERAL) != 0 {
            return refused(format!("flags are {flags:#x}"));
        }
        // SAFETY: the header asks for a text or NULL.
        let name = unsafe { text(name, "name") }?;
        let o = NameOptions::default().live(flags & BATON_LIVE != 0).ephemeral(flags & BATON_EPHEMERAL != 0);
        // SAFETY: the header asks for a payload whose pointers are right, or NULL.
        let value = unsafe { payload(session, value) }?;
        Ok(session.set_with(name, value, &o)?)
    };
    run(|| maybe_give(revision, 0, set))
}

/// The newest revision of a name, as a message whose sequence is its number. With the time 0 it does not wait for
/// a revision, and for a broker that is away 30 s at most. Errors: BATON_NOT_FOUND when there is none within
/// timeout_ns; BATON_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub extern "C" fn baton_get(
    session: Option<&baton_session>,
    name: *const c_char,
    out: Option<&mut MaybeUninit<Option<Box<baton_message>>>>,
    timeout_ns: i64,
) -> baton_status {
    run(|| {
        give_object(out, || {
            // SAFETY: the header asks for a text or NULL.
            let name = unsafe { text(name, "name") }?;
            Ok(baton_message::revision(given(session, "session")?.0.get(name, wait(timeout_ns))?))
        })
    })
}

/// Follows a name, which need not be set yet: the current revision at once, then always the newest. Errors:
/// BATON_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub extern "C" fn baton_watch_open(
    session: Option<&baton_session>,
    name: *const c_char,
    out: Option<&mut MaybeUninit<Option<Box<baton_watch>>>>,
) -> baton_status {
    run(|| {
        give_object(out, || {
            // SAFETY: the header asks for a text or NULL.
            let name = unsafe { text(name, "name") }?;
            Ok(baton_watch(Closable::new(given(session, "session")?.0.watch(name)?)?))
        })
    })
}

/// The newest revision not seen yet, waiting for one. A name that was deleted may be set again: the
/// watch waits for that. Errors: BATON_TIMEOUT when there is none within timeout_ns; BATON_CLOSED when the session
/// ended.
#[unsafe(no_mangle)]
pub extern "C" fn baton_watch_receive(
    watch: Option<&baton_watch>,
    out: Option<&mut MaybeUninit<Option<Box<baton_message>>>>,
    timeout_ns: i64,
) -> baton_status {
    run(|| {
        give_object(out, || {
            let t = Deadline::after(wait(timeout_ns));
            let next = given(watch, "watch")?.0.with(t, || false, |w| w.next(t.left()));
            Ok(baton_message::revision(next?))
        })
    })
}

/// Releases the watch; NULL is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn baton_watch_release(watch: Option<Box<baton_watch>>) {
    answer((), || drop(watch));
}

/// Removes a name. Bundles that were got stay with their holders. Errors: BATON_NOT_FOUND when it is not set.
#[unsafe(no_mangle)]
pub extern "C" fn baton_delete(session: Option<&baton_session>, name: *const c_char) -> baton_status {
    run(|| {
        // SAFETY: the header asks for a text or NULL.
        let name = unsafe { text(name, "name") }?;
        Ok(given(session, "session")?.0.delete(name)?)
    })
}

/// The names that are set in the session's namespace, in an array that ends with NULL and is released
/// with baton_names_free. In the pattern * stands for any run of characters; NULL matches all. Errors:
/// BATON_INVALID_ARGUMENT for a pattern that is not UTF-8.
#[unsafe(no_mangle)]
pub extern "C" fn baton_names(
    session: Option<&baton_session>,
    pattern: *const c_char,
    out: Option<&mut MaybeUninit<*mut *mut c_char>>,
) -> baton_status {
    run(|| {
        give(out, std::ptr::null_mut(), || {
            // SAFETY: the header asks for a text or NULL.
            let pattern = unsafe { maybe_text(pattern, "pattern") }?.unwrap_or_default();
            let names = given(session, "session")?.0.names(pattern)?;
            let texts = names.into_iter().map(|n| c_text(n).into_raw());
            let all: Box<[*mut c_char]> = texts.chain([std::ptr::null_mut()]).collect();
            Ok(Box::into_raw(all).cast())
        })
    })
}

/// Releases what baton_names gave; NULL is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn baton_names_free(names: *mut *mut c_char) {
    if names.is_null() {
        return;
    }
    // SAFETY: the header asks for an array of baton_names, which ends with its one NULL; array and
    // texts are made boxes again, once.
    unsafe {
        let count = (0..).take_while(|i| !(*names.add(*i)).is_null()).count();
        let all = Box::from_raw(std::ptr::slice_from_raw_parts_mut(names, count + 1));
        all.iter().filter(|t| !t.is_null()).for_each(|t| drop(CString::from_raw(*t)));
    }
}
