//! Calling functions that give parts.

use std::mem::MaybeUninit;
use std::time::Instant;

use baton::bindings::Turns;
use baton::{Closer, Code, Deadline, Error, Parts, Value};

use crate::error::{Outcome, Refusal, answer, refused, run};
use crate::function::{arguments, limited};
use crate::status::baton_status;
use crate::value::baton_value;
use crate::{baton_function, give, give_object, given, wait};

/// The parts of a call of a function that gives them. Threads that take them take turns; any thread may cancel the call
/// meanwhile.
pub struct baton_parts {
    stream: Turns<Stream>,
    closer: Closer,
}

/// How the call stands.
enum Stream {
    Runs(Box<Parts<Value>>),
    /// It was cancelled here, which is to be said once.
    Cancelled,
    Over,
}

impl Stream {
    /// Ends it if it was cancelled.
    fn end_if_cancelled(&mut self, closer: &Closer) {
        if closer.is_closed() && matches!(self, Stream::Runs(_)) {
            *self = Stream::Cancelled; // dropped parts cancel their call
        }
    }

    /// The parts; the error of a call that has none any more.
    fn parts(&mut self, closer: &Closer) -> Outcome<&mut Parts<Value>> {
        self.end_if_cancelled(closer);
        match self {
            Stream::Runs(parts) => return Ok(parts),
            Stream::Cancelled => {}
            Stream::Over => return Err(Error::closed_here("the call").into()),
        }
        *self = Stream::Over;
        Err(Refusal::Own(baton_status::BATON_CANCELLED, "the call was cancelled here".to_owned()))
    }
}

impl baton_parts {
    /// Does something in this thread's turn.
    fn turn<T>(&self, limit: Option<std::time::Duration>, act: impl FnOnce(&mut Stream) -> Outcome<T>) -> Outcome<T> {
        let mut stream = self.stream.lock(limit, || false).map_err(|e| match e.code() {
            Code::Timeout => none_yet("another thread takes the parts"),
            _ => e.into(),
        })?;
        let done = act(&mut stream);
        drop(stream);
        self.end_if_cancelled()?;
        done
    }

    /// Ends a call that was cancelled, unless a thread has its turn, which does it after that.
    fn end_if_cancelled(&self) -> Outcome {
        if self.closer.is_closed()
            && let Some(mut stream) = self.stream.try_lock()?
        {
            stream.end_if_cancelled(&self.closer);
        }
        Ok(())
    }
}

fn none_yet(what: &str) -> Refusal {
    Refusal::Own(baton_status::BATON_EMPTY, format!("{what} (give the call a longer timeout)"))
}

/// Calls a function that gives parts, one after the other; it waits for room. ahead: how many parts the function may give
/// that are not taken, 1 to 63; 0: 16. timeout_ns is that of the whole call. Errors: those of baton_function_submit, also
/// BATON_INVALID_ARGUMENT of a function that gives no parts.
#[unsafe(no_mangle)]
pub extern "C" fn baton_function_stream(
    function: Option<&baton_function>,
    args: *const baton_value,
    count: i32,
    names: *const *const std::ffi::c_char,
    ahead: u32,
    out: Option<&mut MaybeUninit<Option<Box<baton_parts>>>>,
    timeout_ns: i64,
) -> baton_status {
    run(|| {
        give_object(out, || {
            let mut f = limited(function, timeout_ns)?;
            if ahead != 0 {
                f = f.ahead(ahead);
            }
            // SAFETY: the header asks for so many values and names.
            let mut parts = f.stream(unsafe { arguments(args, count, names) }?)?;
            Ok(baton_parts { closer: parts.closer(), stream: Turns::new(Stream::Runs(Box::new(parts)))? })
        })
    })
}

/// Waits for the next part, which is the caller's, to be released with baton_value_release; more is 1 then. When the
/// function has returned there are no more: BATON_OK with more 0, and baton_parts_result has what it returned.
/// BATON_EMPTY if no part has come in that time: the call goes on. Else the call has ended as those of baton_call do,
/// which is said once; after that it is BATON_CLOSED.
#[unsafe(no_mangle)]
pub extern "C" fn baton_parts_next(
    parts: Option<&baton_parts>,
    part: Option<&mut MaybeUninit<baton_value>>,
    more: Option<&mut MaybeUninit<i32>>,
    timeout_ns: i64,
) -> baton_status {
    run(|| {
        let Some(more) = more else { return refused("the pointer to more is NULL") };
        more.write(0);
        give(part, baton_value::NONE, || {
            let parts = given(parts, "parts")?;
            let t = Deadline::after(wait(timeout_ns));
            let next = parts.turn(t.left(), |stream| {
                let limit = t.left().and_then(|left| Instant::now().checked_add(left));
                let next = stream.parts(&parts.closer)?.next_value(limit);
                if let Some(Some(Err(_))) = next {
                    *stream = Stream::Over;
                }
                next.ok_or_else(|| none_yet("no part has come"))
            })?;
            let Some(part) = next else { return Ok(baton_value::NONE) };
            let part = baton_value::of(part?)?;
            more.write(1);
            Ok(part)
        })
    })
}

/// Waits until the function has returned, and gives what it returned, once; after that the call is BATON_CLOSED. Parts
/// that were not taken are let go. It ends as baton_call does.
#[unsafe(no_mangle)]
pub extern "C" fn baton_parts_result(
    parts: Option<&baton_parts>,
    result: Option<&mut MaybeUninit<baton_value>>,
) -> baton_status {
    run(|| {
        give(result, baton_value::NONE, || {
            let parts = given(parts, "parts")?;
            let ended = parts.turn(None, |stream| {
                stream.parts(&parts.closer)?;
                match std::mem::replace(stream, Stream::Over) {
                    Stream::Runs(parts) => Ok(parts.result::<Value>()?),
                    _ => Err(Error::closed_here("the call").into()),
                }
            })?;
            baton_value::of(ended)
        })
    })
}

/// Says that no more parts are wanted: the function is told, as by baton_pending_cancel. A thread that waits for a part
/// has BATON_CANCELLED then, or the next one that asks, unless the call was over before.
#[unsafe(no_mangle)]
pub extern "C" fn baton_parts_cancel(parts: Option<&baton_parts>) -> baton_status {
    run(|| {
        let parts = given(parts, "parts")?;
        parts.closer.close();
        parts.end_if_cancelled()
    })
}

/// Releases the call, which is cancelled unless it is over; NULL is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn baton_parts_release(parts: Option<Box<baton_parts>>) {
    answer((), || drop(parts));
}
