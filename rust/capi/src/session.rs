//! Sessions.

use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::time::Duration;

use baton::{Builder, Session};

use crate::error::{Outcome, answer, refused_for, run};
use crate::grown::{grown, grows};
use crate::status::baton_status;
use crate::{give_object, given, maybe_text, wait};

/// Waits without a timeout; as a lease: until the session ends.
pub const BATON_FOREVER: i64 = -1;

/// A choice that is left to what exists, or the default. The other two are BATON_YES and BATON_NO.
pub const BATON_DEFAULT: i32 = 0;
/// Yes.
pub const BATON_YES: i32 = 1;
/// No.
pub const BATON_NO: i32 = -1;

/// How a session is opened. BATON_OPTIONS_INIT is the default; set what differs.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct baton_options {
    /// Of this structure, set by BATON_OPTIONS_INIT.
    pub size: usize,
    /// The broker's socket, "unix:/path" or "/path". NULL: $BATON_ADDRESS, else the user's broker. A
    /// broker that was named is awaited and never started.
    pub address: *const c_char,
    /// Where names live: one token of A-Z a-z 0-9 _ -. NULL: $BATON_NAMESPACE, else "default".
    pub name_space: *const c_char,
    /// The name shown in listings, 1 to 48 bytes. NULL: $BATON_NAME, else the program's.
    pub name: *const c_char,
    /// The program baton, which is run to start a broker. NULL: $BATON_BINARY, else baton on PATH or
    /// beside this program.
    pub binary: *const c_char,
    /// Whether the user's broker is started when none runs. Default: BATON_YES.
    pub start: i32,
    /// How long to wait for a broker: 0 for 30 s, BATON_FOREVER.
    pub timeout_ns: i64,
}

grows! { baton_options to timeout_ns: i64, BATON_OPTIONS_INIT; }

/// A connection to the broker, with a session file of its own. It ends when it and all tensors,
/// messages, topics, queues, readers and watches of it are released, or with baton_session_end.
pub struct baton_session(pub(crate) Session);

/// A choice of the program.
pub(crate) fn choice(value: i32, what: &str) -> Outcome<Option<bool>> {
    match value {
        BATON_DEFAULT => Ok(None),
        BATON_YES => Ok(Some(true)),
        BATON_NO => Ok(Some(false)),
        n => refused_for(format!("{what} is {n}"), "use BATON_DEFAULT, BATON_YES or BATON_NO"),
    }
}

fn builder(o: &baton_options) -> Outcome<Builder> {
    let mut b = Session::builder().language("c");
    // SAFETY: the header asks for texts or NULL.
    let texts = unsafe {
        [
            maybe_text(o.address, "address")?,
            maybe_text(o.name_space, "namespace")?,
            maybe_text(o.name, "name")?,
            maybe_text(o.binary, "binary")?,
        ]
    };
    let [address, namespace, name, binary] = texts;
    if let Some(s) = address {
        b = b.address(s);
    }
    if let Some(s) = namespace {
        b = b.namespace(s);
    }
    if let Some(s) = name {
        b = b.name(s);
    }
    if let Some(s) = binary {
        b = b.binary(s);
    }
    if let Some(start) = choice(o.start, "start")? {
        b = b.start(start);
    }
    Ok(match o.timeout_ns {
        0 => b,
        ns => b.timeout(wait(ns).unwrap_or(Duration::MAX)),
    })
}

/// Opens a session with the user's broker, which is started if none runs. options may be NULL.
/// Errors: BATON_NO_BROKER, BATON_VERSION_MISMATCH, BATON_PERMISSION_DENIED, BATON_TOO_MANY.
#[unsafe(no_mangle)]
pub extern "C" fn baton_connect(
    options: *const baton_options,
    out: Option<&mut MaybeUninit<Option<Box<baton_session>>>>,
) -> baton_status {
    run(|| {
        give_object(out, || {
            // SAFETY: the header asks for a structure of the size that it says, or NULL.
            let b = match unsafe { grown(options) }? {
                Some(o) => builder(&o)?,
                None => Session::builder().language("c"),
            };
            Ok(baton_session(b.connect()?))
        })
    })
}

/// Opens another session with the settings of this one, which stays as it is. After BATON_SESSION_LOST a
/// program goes on with the new one, opens its topics, queues and readers there, and releases those of the
/// old one; tensors of the old one can still be read and copied. Errors: as baton_connect.
#[unsafe(no_mangle)]
pub extern "C" fn baton_session_reopen(
    session: Option<&baton_session>,
    out: Option<&mut MaybeUninit<Option<Box<baton_session>>>>,
) -> baton_status {
    run(|| give_object(out, || Ok(baton_session(given(session, "session")?.0.reopen()?))))
}

/// Releases the session; NULL is nothing. What else there is of it stays valid and keeps it open.
#[unsafe(no_mangle)]
pub extern "C" fn baton_session_release(session: Option<Box<baton_session>>) {
    answer((), || drop(session));
}

/// Ends the session at once: calls of other threads that wait in it return BATON_CLOSED. What was sent
/// is still received; tensors keep their bytes until they are released. All its objects are still to be
/// released. It returns when the broker has been notified of it; while no broker runs, or the broker is unresponsive,
/// after two seconds. baton_session_release does not wait.
#[unsafe(no_mangle)]
pub extern "C" fn baton_session_end(session: Option<&baton_session>) -> baton_status {
    run(|| {
        given(session, "session")?.0.end();
        Ok(())
    })
}

/// A descriptor for poll, epoll and select: readable when something may have changed for this session,
/// be it a message, room in a queue, a name, or its end. -1 on failure. It is readable at first, stays
/// so until baton_session_fd_clear, and becomes readable about once a second although nothing has
/// changed. When it is readable: clear first, then take all there is, with timeout 0, until there is
/// no more. It is the session's: only poll it. The first call starts a thread.
#[unsafe(no_mangle)]
pub extern "C" fn baton_session_fd(session: Option<&baton_session>) -> i32 {
    let mut fd = -1;
    run(|| {
        fd = given(session, "session")?.0.poll_fd()?.as_raw_fd();
        Ok(())
    });
    fd
}

/// Makes the descriptor of baton_session_fd not readable, until something may have changed after this
/// call.
#[unsafe(no_mangle)]
pub extern "C" fn baton_session_fd_clear(session: Option<&baton_session>) -> baton_status {
    run(|| {
        given(session, "session")?.0.clear_poll_fd();
        Ok(())
    })
}
