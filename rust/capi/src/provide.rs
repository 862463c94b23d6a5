//! Providing functions.

use std::ffi::{CString, c_char, c_void};
use std::mem::MaybeUninit;

use baton::{Deadline, Provide, Provided};

use crate::error::{Outcome, Refusal, answer, refused, run};
use crate::grown::{Element, Grows, each, grown, grows};
use crate::handler::{Handler, Names, State, baton_handler};
use crate::session::choice;
use crate::status::baton_status;
use crate::value::baton_value;
use crate::{baton_session, c_text, give_object, given, maybe_text, text, wait};

/// A parameter is given by its position or its name.
pub const BATON_BY_EITHER: i32 = 0;
/// A parameter is given by its position alone.
pub const BATON_BY_POSITION: i32 = 1;
/// A parameter is given by its name alone.
pub const BATON_BY_NAME: i32 = 2;

/// A parameter of a function. Its size is the parameter_size of the options, which steps by it; what follows the members
/// in a newer header is zero if it is left out.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct baton_parameter {
    /// What it is called: not empty, without white space and control characters, and of no other parameter.
    pub name: *const c_char,
    /// What it takes, joined by |: none, bool, int, int64, float, str, bytes, tensor, dtype, device, list, tuple, dict,
    /// function, any, or the name of a class as module:Class, which callers take for any. NULL: any.
    pub types: *const c_char,
    /// Its value if it is not given, lent until it is registered: of one of its types or None, no tensor. NULL: it
    /// has to be given.
    pub otherwise: *const baton_value,
    /// BATON_BY_EITHER, _POSITION or _NAME.
    pub by: i32,
    /// 0.
    pub reserved: i32,
}

/// How a function is provided. BATON_FUNCTION_OPTIONS_INIT is a function that takes whatever is given, one call at a
/// time.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct baton_function_options {
    /// Of this structure, set by BATON_FUNCTION_OPTIONS_INIT.
    pub size: usize,
    /// sizeof(baton_parameter), set by BATON_FUNCTION_OPTIONS_INIT.
    pub parameter_size: usize,
    /// Its parameters, in their order; each call has as many arguments then, in that order, however they were given.
    /// Callers refuse what does not fit before they send it. NULL: it takes whatever is given, by position first.
    pub parameters: *const baton_parameter,
    /// How many.
    pub count: usize,
    /// What it gives, as the types of a parameter; if it gives parts, of each of these. NULL: it is not said.
    pub result: *const c_char,
    /// What it does, for people. NULL: it is not said.
    pub doc: *const c_char,
    /// BATON_YES: it takes nothing. Default: BATON_NO.
    pub no_parameters: i32,
    /// How many calls it runs at a time, each in a thread of the library, 1 to 1024. 0: 1.
    pub concurrency: u32,
    /// BATON_YES lets another provider run a call again whose provider has ended before it replied. So the function may
    /// run more than once for one call. Default: BATON_NO.
    pub idempotent: i32,
    /// BATON_YES allows one process alone to provide it. Default: BATON_NO.
    pub exclusive: i32,
    /// BATON_YES takes the place of the providers that there are: what runs there ends there, what waits comes here. The
    /// signature may be another one. Default: BATON_NO.
    pub replace: i32,
    /// BATON_YES: it gives parts, one after the other, by baton_current_send_part, before it returns; its callers call it
    /// by baton_function_stream. Default: BATON_NO.
    pub parts: i32,
    /// BATON_YES: requests over NATS call it too, by a broker that runs with --nats-functions: every client of NATS that
    /// may publish to its subject. Default: BATON_NO.
    pub over_nats: i32,
    /// 0.
    pub reserved: i32,
    /// For how many nanoseconds it stays listed once no session has it open; calls of one without a provider are
    /// BATON_NO_PROVIDER all the same. 0, the default: not at all.
    pub linger_ns: i64,
}

grows! { baton_function_options to linger_ns: i64, BATON_FUNCTION_OPTIONS_INIT; }

// SAFETY: three pointers and two halves of a word.
unsafe impl Element for baton_parameter {
    const FIRST: usize = 32;
}

/// A function that is to be provided.
struct Described {
    provide: Provide,
    parameters: Option<Names>,
    /// Whether it gives parts.
    parts: bool,
}

/// # Safety
/// The pointers of the options are right.
unsafe fn described(mut p: Provide, o: &baton_function_options) -> Outcome<Described> {
    // SAFETY: as the caller says.
    let (result, doc) = unsafe { (maybe_text(o.result, "result")?, maybe_text(o.doc, "doc")?) };
    let size = (o.parameter_size, "the parameter_size of baton_function_options", baton_function_options::INIT);
    // SAFETY: as the caller says.
    let parameters = unsafe { each(o.parameters, o.count, size, "parameters") }?;
    let mut names = Vec::new();
    for one in parameters {
        let one = one?;
        // SAFETY: as the caller says.
        let (name, types, otherwise) = unsafe {
            (
                text(one.name, "the name of a parameter")?,
                maybe_text(one.types, "the types of a parameter")?.unwrap_or("any"),
                one.otherwise.as_ref(),
            )
        };
        if one.reserved != 0 {
            return refused(format!("reserved of the parameter {name} is {}", one.reserved));
        }
        p = match otherwise {
            None => p.parameter(name, types),
            Some(v) => p.optional(name, types, v.value()?),
        };
        p = match one.by {
            BATON_BY_EITHER => p,
            BATON_BY_POSITION => p.by_position(),
            BATON_BY_NAME => p.by_name(),
            n => return refused(format!("by of the parameter {name} is {n}")),
        };
        names.push((name.to_owned(), c_text(name)));
    }
    let none = choice(o.no_parameters, "no_parameters")? == Some(true);
    match (none, names.is_empty()) {
        (true, false) => return refused(format!("no_parameters is set, and {} are given", names.len())),
        (true, true) => p = p.no_parameters(),
        _ => {}
    }
    if let Some(types) = result {
        p = p.result(types);
    }
    if let Some(text) = doc {
        p = p.doc(text);
    }
    if o.reserved != 0 {
        return refused(format!("reserved is {}", o.reserved));
    }
    let yes = |v, what| Ok::<_, Refusal>(choice(v, what)? == Some(true));
    p = p.concurrency(o.concurrency.max(1)).idempotent(yes(o.idempotent, "idempotent")?);
    p = p.exclusive(yes(o.exclusive, "exclusive")?).replace(yes(o.replace, "replace")?);
    p = p.over_nats(yes(o.over_nats, "over_nats")?);
    let Ok(linger) = u64::try_from(o.linger_ns) else { return refused(format!("linger_ns is {}", o.linger_ns)) };
    p = p.linger(std::time::Duration::from_nanos(linger));
    let parts = yes(o.parts, "parts")?;
    let parameters = (none || !names.is_empty()).then_some(names);
    Ok(Described { provide: p, parameters, parts })
}

/// A function that this process provides, until it is released. A child of a fork provides nothing.
pub struct baton_provided {
    provided: Provided,
    name: CString,
}

/// Provides a function under a name, with a version behind it (name@1.2) or without: processes of any language call it
/// until what is given is released. options may be NULL. state is given to each call; release, which may be NULL, is
/// called with it once: when the function is called no more, or with an error as well.
/// Errors: BATON_CONFLICT if it is registered otherwise, or this session provides it already;
/// BATON_PERMISSION_DENIED if another user has the name; BATON_INVALID_ARGUMENT, which names the parameter if it is one
/// of its names or types; BATON_TOO_MANY.
#[unsafe(no_mangle)]
pub extern "C" fn baton_provide(
    session: Option<&baton_session>,
    name: *const c_char,
    options: *const baton_function_options,
    handler: baton_handler,
    state: *mut c_void,
    release: Option<unsafe extern "C" fn(state: *mut c_void)>,
    out: Option<&mut MaybeUninit<Option<Box<baton_provided>>>>,
) -> baton_status {
    run(|| {
        let state = State::new(state, release);
        give_object(out, || {
            let session = &given(session, "session")?.0;
            // SAFETY: the header asks for a text or NULL.
            let name = unsafe { text(name, "name") }?;
            let provide = session.provide(name)?;
            // SAFETY: the header asks for a structure of the size that it says, with right pointers, or NULL.
            let described = match unsafe { grown(options) }? {
                // SAFETY: as above.
                Some(o) => unsafe { described(provide, &o) }?,
                None => Described { provide, parameters: None, parts: false },
            };
            let handler = Handler::new(handler, state, described.parameters)?;
            let provided = if described.parts {
                described.provide.serve_parts(move |args, call, parts| handler.run(args, call, Some(parts)))?
            } else {
                described.provide.serve(move |args, call| handler.run(args, call, None))?
            };
            Ok(baton_provided { name: c_text(provided.name()), provided })
        })
    })
}

/// The function's name. The object's; NULL for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn baton_provided_name(provided: Option<&baton_provided>) -> *const c_char {
    provided.map_or(std::ptr::null(), |p| p.name.as_ptr())
}

/// How many calls run now; 0 for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn baton_provided_running(provided: Option<&baton_provided>) -> usize {
    answer(0, || provided.map_or(0, |p| p.provided.running()))
}

/// Waits until it takes no more calls: another provider has replaced it, it was removed or ended, or the session has
/// ended. Errors: BATON_TIMEOUT when it takes calls still after timeout_ns.
#[unsafe(no_mangle)]
pub extern "C" fn baton_provided_wait(provided: Option<&baton_provided>, timeout_ns: i64) -> baton_status {
    run(|| {
        let p = &given(provided, "provided")?.provided;
        match p.wait_over(Deadline::after(wait(timeout_ns)).left())? {
            true => Ok(()),
            false => Err(Refusal::Own(baton_status::BATON_TIMEOUT, format!("{} takes calls still", p.name()))),
        }
    })
}

/// Takes no more calls, without waiting for those that run: baton_provided_release waits. Only NULL is an
/// error.
#[unsafe(no_mangle)]
pub extern "C" fn baton_provided_end(provided: Option<&baton_provided>) -> baton_status {
    run(|| {
        given(provided, "provided")?.provided.close();
        Ok(())
    })
}

/// Takes no more calls, waits for those that run, and leaves; NULL is nothing. A function that releases itself does not
/// wait for itself.
#[unsafe(no_mangle)]
pub extern "C" fn baton_provided_release(provided: Option<Box<baton_provided>>) {
    answer((), || drop(provided));
}
