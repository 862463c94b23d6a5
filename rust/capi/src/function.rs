//! Calling functions.

use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;
use std::time::Duration;

use baton::bindings::Turns;
use baton::{Arguments, Closer, Deadline, Error, Function, FunctionValue, Pending, Value};

use crate::error::{Outcome, Refusal, answer, refused, run};
use crate::status::baton_status;
use crate::value::baton_value;
use crate::{array, baton_session, c_text, give, give_object, given, maybe_text, text, wait};

/// As long as a wait for a provider can be, about a century.
const LONGEST: Duration = Duration::from_secs(u32::MAX as u64);

/// A function that processes provide, to be called. Its calls keep what they need, so it is released at any time.
pub struct baton_function {
    function: Function,
    name: CString,
}

impl baton_function {
    pub(crate) fn new(function: Function) -> baton_function {
        baton_function { name: c_text(function.name()), function }
    }

    /// As an argument.
    pub(crate) fn value(&self) -> FunctionValue {
        self.function.value()
    }
}

/// The arguments of a call.
///
/// # Safety
/// There are `count` values, and as many names, or none.
pub(crate) unsafe fn arguments(
    args: *const baton_value,
    count: i32,
    names: *const *const c_char,
) -> Outcome<Arguments> {
    let Ok(n) = usize::try_from(count) else { return refused(format!("the count of arguments is {count}")) };
    // SAFETY: as the caller says.
    let args = unsafe { array(args, n, "args") }?;
    // SAFETY: as the caller says.
    let names = if names.is_null() { &[] } else { unsafe { array(names, n, "names") }? };
    let mut all = Arguments::new();
    for (i, arg) in args.iter().enumerate() {
        let name = match names.get(i) {
            // SAFETY: as the caller says.
            Some(name) => unsafe { maybe_text(*name, "the name of an argument") }?.unwrap_or_default(),
            None => "",
        };
        all.push(name, arg.value()?);
    }
    Ok(all)
}

/// Calls the function of a name, without a version behind it (name@1.2) the newest one, and waits for what it returns.
/// args: count values, which are lent for the call; names: as many texts, NULL or "" for an argument by its position,
/// which come first; NULL if all are. result is the caller's, to be released with baton_value_release. The first call
/// opens the function, later ones ask no broker.
/// A call ends once: with its result, or BATON_REMOTE (the function failed: baton_last_detail), BATON_NO_PROVIDER,
/// BATON_PROVIDER_DIED, BATON_TIMEOUT, BATON_CLOSED, BATON_SESSION_LOST, BATON_BROKER_LOST; within another call also
/// BATON_CANCELLED. With BATON_NOT_FOUND, BATON_FULL, and BATON_INVALID_ARGUMENT for arguments that do not fit, nothing
/// was sent.
#[unsafe(no_mangle)]
pub extern "C" fn baton_call(
    session: Option<&baton_session>,
    name: *const c_char,
    args: *const baton_value,
    count: i32,
    names: *const *const c_char,
    result: Option<&mut MaybeUninit<baton_value>>,
    timeout_ns: i64,
) -> baton_status {
    run(|| {
        give(result, baton_value::NONE, || {
            let session = &given(session, "session")?.0;
            // SAFETY: the header asks for a text, and for so many values and names.
            let (name, args) = unsafe { (text(name, "name")?, arguments(args, count, names)?) };
            let mut calling = session.calling(name)?;
            if let Some(time) = wait(timeout_ns) {
                calling = calling.timeout(time);
            }
            baton_value::of(calling.call(args)?)
        })
    })
}

/// Opens a function to be called again and again. wait_ns: how long it waits until some process provides it, 0 not at
/// all, or BATON_FOREVER; its calls wait as long if there is no provider. Errors: BATON_NOT_FOUND, whose text names
/// similar ones; with a wait also BATON_NO_PROVIDER.
#[unsafe(no_mangle)]
pub extern "C" fn baton_function_open(
    session: Option<&baton_session>,
    name: *const c_char,
    out: Option<&mut MaybeUninit<Option<Box<baton_function>>>>,
    wait_ns: i64,
) -> baton_status {
    run(|| {
        give_object(out, || {
            let session = &given(session, "session")?.0;
            // SAFETY: the header asks for a text or NULL.
            let name = unsafe { text(name, "name") }?;
            let function = match wait(wait_ns).unwrap_or(LONGEST) {
                Duration::ZERO => session.get_function(name)?,
                time => session.await_function(name, time)?,
            };
            Ok(baton_function::new(function))
        })
    })
}

/// Its name, with its version; of one that a caller has lent a text that says so. The function's; NULL for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn baton_function_name(function: Option<&baton_function>) -> *const c_char {
    function.map_or(std::ptr::null(), |f| f.name.as_ptr())
}

/// Gives a text that a function's provider says of it.
fn text_of(
    function: Option<&baton_function>,
    out: Option<&mut MaybeUninit<*mut c_char>>,
    say: fn(&Function) -> String,
) -> baton_status {
    run(|| give(out, std::ptr::null_mut(), || Ok(c_text(say(&given(function, "function")?.function)).into_raw())))
}

/// What it does, as its provider says now. The text is released with baton_string_free. It is empty if the
/// provider says nothing; only NULL for an object is an error.
#[unsafe(no_mangle)]
pub extern "C" fn baton_function_doc(
    function: Option<&baton_function>,
    out: Option<&mut MaybeUninit<*mut c_char>>,
) -> baton_status {
    text_of(function, out, Function::doc)
}

/// What it takes and gives, as its provider says now, such as (image: tensor, by: float = 2.0) -> tensor. The
/// text is released with baton_string_free. Only NULL for an object is an error.
#[unsafe(no_mangle)]
pub extern "C" fn baton_function_signature(
    function: Option<&baton_function>,
    out: Option<&mut MaybeUninit<*mut c_char>>,
) -> baton_status {
    text_of(function, out, Function::signature)
}

/// How many sessions provide it now; 0 for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn baton_function_providers(function: Option<&baton_function>) -> u32 {
    answer(0, || function.map_or(0, |f| f.function.providers()))
}

/// The function, whose calls take so long at most.
pub(crate) fn limited(function: Option<&baton_function>, timeout_ns: i64) -> Outcome<Function> {
    let f = given(function, "function")?.function.clone();
    Ok(match wait(timeout_ns) {
        Some(time) => f.timeout(time),
        None => f,
    })
}

/// As baton_call, of a function that is open.
#[unsafe(no_mangle)]
pub extern "C" fn baton_function_call(
    function: Option<&baton_function>,
    args: *const baton_value,
    count: i32,
    names: *const *const c_char,
    result: Option<&mut MaybeUninit<baton_value>>,
    timeout_ns: i64,
) -> baton_status {
    run(|| {
        give(result, baton_value::NONE, || {
            let f = limited(function, timeout_ns)?;
            // SAFETY: the header asks for so many values and names.
            baton_value::of(f.call(unsafe { arguments(args, count, names) }?)?)
        })
    })
}

/// Releases the function; NULL is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn baton_function_release(function: Option<Box<baton_function>>) {
    answer((), || drop(function));
}

/// A call that is under way. Threads that wait for it take turns; any thread may cancel it meanwhile.
pub struct baton_pending {
    /// Until its result is given.
    pending: Turns<Option<Pending>>,
    closer: Closer,
}

/// As baton_function_call, without waiting for what it returns; it waits for room. timeout_ns is that of the
/// call. Errors as of baton_call; those of the call itself come when it is waited for.
#[unsafe(no_mangle)]
pub extern "C" fn baton_function_submit(
    function: Option<&baton_function>,
    args: *const baton_value,
    count: i32,
    names: *const *const c_char,
    out: Option<&mut MaybeUninit<Option<Box<baton_pending>>>>,
    timeout_ns: i64,
) -> baton_status {
    run(|| {
        give_object(out, || {
            let f = limited(function, timeout_ns)?;
            // SAFETY: the header asks for so many values and names.
            let pending = f.submit(unsafe { arguments(args, count, names) }?)?;
            Ok(baton_pending { closer: pending.closer(), pending: Turns::new(Some(pending))? })
        })
    })
}

/// Waits until the call is over; with 0 it only looks. Errors: BATON_TIMEOUT when it is not over within timeout_ns.
#[unsafe(no_mangle)]
pub extern "C" fn baton_pending_wait(pending: Option<&baton_pending>, timeout_ns: i64) -> baton_status {
    run(|| {
        let t = Deadline::after(wait(timeout_ns));
        let mut turn = given(pending, "pending")?.pending.lock(t.left(), || false)?;
        let over = turn.as_mut().is_none_or(|p| p.wait_for(t.left().unwrap_or(Duration::MAX)));
        if over {
            Ok(())
        } else {
            Err(Refusal::Own(
                baton_status::BATON_TIMEOUT,
                "the call is not over (give the call a longer timeout)".to_owned(),
            ))
        }
    })
}

/// Waits for what the call returns, and ends as baton_call does, once: after that it is BATON_CLOSED.
#[unsafe(no_mangle)]
pub extern "C" fn baton_pending_result(
    pending: Option<&baton_pending>,
    result: Option<&mut MaybeUninit<baton_value>>,
) -> baton_status {
    run(|| {
        give(result, baton_value::NONE, || {
            let mut turn = given(pending, "pending")?.pending.lock(None, || false)?;
            match turn.take() {
                Some(p) => baton_value::of(p.wait::<Value>()?),
                None => Err(Error::closed_here("the call").into()),
            }
        })
    })
}

/// Says that the call is wanted no more: a provider that has not begun it never will, and one that runs it is told. Its
/// result is BATON_CANCELLED then, also for a thread that waits for it, unless it was over before.
#[unsafe(no_mangle)]
pub extern "C" fn baton_pending_cancel(pending: Option<&baton_pending>) -> baton_status {
    run(|| {
        let p = given(pending, "pending")?;
        p.closer.close();
        // A thread that waits does it itself, as it wakes by that.
        if let Some(mut turn) = p.pending.try_lock()?
            && let Some(pending) = turn.as_mut()
        {
            pending.is_over();
        }
        Ok(())
    })
}

/// Releases the call, which is cancelled unless it is over; NULL is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn baton_pending_release(pending: Option<Box<baton_pending>>) {
    answer((), || drop(pending));
}

/// Ends all registrations of a function, also those of other processes of this user: they take no more calls. What runs
/// ends there. providers: how many sessions provided it, may be NULL. Errors: BATON_NOT_FOUND, BATON_PERMISSION_DENIED.
#[unsafe(no_mangle)]
pub extern "C" fn baton_function_remove(
    session: Option<&baton_session>,
    name: *const c_char,
    providers: Option<&mut MaybeUninit<u32>>,
) -> baton_status {
    run(|| {
        crate::maybe_give(providers, 0, || {
            // SAFETY: the header asks for a text or NULL.
            let name = unsafe { text(name, "name") }?;
            Ok(given(session, "session")?.0.remove_function(name)?)
        })
    })
}
