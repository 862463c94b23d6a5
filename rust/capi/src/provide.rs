//! Providing functions.

use std::ffi::{CString, c_char, c_int, c_void};
use std::mem::MaybeUninit;

use baton::{Args, Call, Deadline, Error, Provide, Provided, Value};

use crate::current::baton_current;
use crate::error::{Outcome, Refusal, answer, forget, last_of, own_error, refused, run};
use crate::grown::{Grows, each, grown, grows};
use crate::session::choice;
use crate::status::{baton_status, name_of};
use crate::value::baton_value;
use crate::{baton_session, c_text, give_object, given, maybe_text, text, wait};

/// A function that a program provides. args are lent until it returns. result begins as None; what it holds then is the
/// library's. It returns BATON_OK, or an error: what baton_fail gives, or the status of a call that has failed. It is
/// called by threads of the library, as many at a time as its concurrency says, and has to be able to bear that. An
/// exception of C++ must not leave it: baton.hpp sees to that, else the process ends.
pub type baton_handler = Option<
    unsafe extern "C-unwind" fn(
        state: *mut c_void,
        args: *const baton_value,
        count: i32,
        result: *mut baton_value,
    ) -> c_int,
>;

/// A parameter is given by its position or its name.
pub const BATON_BY_EITHER: i32 = 0;
/// A parameter is given by its position alone.
pub const BATON_BY_POSITION: i32 = 1;
/// A parameter is given by its name alone.
pub const BATON_BY_NAME: i32 = 2;

/// A parameter of a function. Its size is the parameter_size of the options, which steps by it; what follows the members
/// in a newer header is zero where it is left out.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct baton_parameter {
    /// What it is called.
    pub name: *const c_char,
    /// What it takes, joined by |: none, bool, int, int64, float, str, bytes, tensor, dtype, device, list, tuple, dict,
    /// any. NULL: any.
    pub types: *const c_char,
    /// Its value where it is not given, lent until it is registered: no tensor. NULL: it has to be given.
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
    /// What it gives, as the types of a parameter. NULL: it is not said.
    pub result: *const c_char,
    /// What it does, for people. NULL: it is not said.
    pub doc: *const c_char,
    /// BATON_YES: it takes nothing. Default: BATON_NO.
    pub no_parameters: i32,
    /// How many calls it runs at a time, each in a thread of the library, 1 to 1024. 0: 1.
    pub concurrency: u32,
    /// BATON_YES gives what a provider that has ended had begun to another: the function may run more than once for one
    /// call. Default: BATON_NO.
    pub idempotent: i32,
    /// BATON_YES allows one process alone to provide it. Default: BATON_NO.
    pub exclusive: i32,
    /// BATON_YES takes the place of the providers that there are: what runs there ends there, what waits comes here. The
    /// signature may be another one. Default: BATON_NO.
    pub replace: i32,
    /// 0.
    pub reserved: i32,
}

grows! { baton_function_options to reserved: i32, BATON_FUNCTION_OPTIONS_INIT; }

/// A program's function with its state, which is given back when it is called no more.
struct Handler {
    call: unsafe extern "C-unwind" fn(*mut c_void, *const baton_value, i32, *mut baton_value) -> c_int,
    state: State,
    /// The names of its parameters; none where it takes whatever is given.
    parameters: Option<Names>,
}

/// The names of parameters, for Rust and for C.
type Names = Vec<(String, CString)>;

/// What a program gives with a function.
struct State(*mut c_void, Option<unsafe extern "C" fn(*mut c_void)>);

// SAFETY: the header says that threads of the library call the function with it, and one releases it.
unsafe impl Send for State {}
// SAFETY: as above.
unsafe impl Sync for State {}

impl Drop for State {
    fn drop(&mut self) {
        if let Some(release) = self.1 {
            // SAFETY: the header asks for a function that releases it, which is called once.
            unsafe { release(self.0) };
        }
    }
}

/// What the error of a function is where it is this layer's.
fn told(refusal: Refusal) -> Error {
    match refusal {
        Refusal::Baton(e) => e,
        Refusal::Own(status, what) => own_error(status, what),
    }
}

impl Handler {
    /// The arguments of a call with their names: of a function with parameters one for each, in their order.
    fn arguments(&self, args: &Args) -> Outcome<(Vec<CString>, Vec<baton_value>)> {
        let mut all = Vec::new();
        match &self.parameters {
            Some(parameters) => {
                for (name, text) in parameters {
                    all.push((text.clone(), baton_value::of(args.get::<Value>(name.as_str())?)?));
                }
            }
            None => {
                for (name, v) in args.all()? {
                    all.push((c_text(name), baton_value::of(v)?));
                }
            }
        }
        Ok(all.into_iter().unzip())
    }

    fn run(&self, args: &Args, call: &Call) -> baton::Result<Value> {
        let (names, values) = self.arguments(args).map_err(told)?;
        let current = baton_current::new(call, names, &values);
        let count = i32::try_from(values.len()).unwrap_or(i32::MAX);
        let mut result = baton_value::NONE;
        forget();
        let (status, failed) = current.run(|| {
            // SAFETY: the header asks for such a function; the arguments and the place of the result live as long.
            unsafe { (self.call)(self.state.0, values.as_ptr(), count, &raw mut result) }
        });
        if status == baton_status::BATON_OK as c_int {
            return result.value().map_err(told);
        }
        Err(failed.or_else(|| last_of(status)).unwrap_or_else(|| match name_of(status) {
            "unknown" => Error::of_kind("error", format!("the function returned {status}")),
            name => Error::of_kind(format!("baton.{name}"), format!("the function returned {name}")),
        }))
    }
}

/// # Safety
/// The pointers of the options are right.
unsafe fn described(mut p: Provide, o: &baton_function_options) -> Outcome<(Provide, Option<Names>)> {
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
    let known = (none || !names.is_empty()).then_some(names);
    Ok((p, known))
}

/// A function that this process provides, until it is released. A child of a fork provides nothing.
pub struct baton_provided {
    provided: Provided,
    name: CString,
}

/// Provides a function under a name, with a version behind it (name@1.2) or without: processes of any language call it
/// until what is given is released. options may be NULL. state is given to each call; release, which may be NULL, is
/// called with it once: when the function is called no more, or with an error as well.
/// Errors: BATON_CONFLICT where it is registered otherwise, or this session provides it already;
/// BATON_PERMISSION_DENIED where another user has the name; BATON_INVALID_ARGUMENT, BATON_TOO_MANY.
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
        let state = State(state, release);
        give_object(out, || {
            let session = &given(session, "session")?.0;
            // SAFETY: the header asks for a text or NULL.
            let name = unsafe { text(name, "name") }?;
            let Some(call) = handler else { return refused("the function is NULL") };
            let p = session.provide(name)?;
            // SAFETY: the header asks for a structure of the size that it says, with right pointers, or NULL.
            let (p, parameters) = match unsafe { grown(options) }? {
                // SAFETY: as above.
                Some(o) => unsafe { described(p, &o) }?,
                None => (p, None),
            };
            let handler = Handler { call, state, parameters };
            let provided = p.serve(move |args, call| handler.run(args, call))?;
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
/// ended. BATON_TIMEOUT where it takes calls still.
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

/// Takes no more calls, without waiting for those that run.
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
