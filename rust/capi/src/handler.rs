//! Functions of programs, as the library calls them.

use std::ffi::{CString, c_int, c_void};

use baton::{Args, Call, Error, PartSender, Value};

use crate::c_text;
use crate::current::baton_current;
use crate::error::{Outcome, Refusal, apart, last_of, own_error, refused};
use crate::status::{baton_status, name_of};
use crate::value::baton_value;

/// A function of a program. args are lent until it returns. result begins as None; what it holds then is the library's.
/// To return one of the arguments, copy it by baton_value_copy: *result = args[0] is a double free. It returns BATON_OK, or
/// an error: what baton_fail gives, or the status of a call that has failed. Any other number but 0 is an error, too, of
/// the kind "error" if it is no baton_status. A function that is provided is called by threads of the library, as many
/// at a time as its concurrency says, and has to be able to bear that. An exception of C++ must not leave it: baton.hpp sees
/// to that, else the process ends.
pub type baton_handler = Option<
    unsafe extern "C-unwind" fn(
        state: *mut c_void,
        args: *const baton_value,
        count: i32,
        result: *mut baton_value,
    ) -> c_int,
>;

/// What is called with a state when the library needs it no more.
pub(crate) type Release = Option<unsafe extern "C" fn(state: *mut c_void)>;

/// A program's function with its state, which is given back when it is called no more.
pub(crate) struct Handler {
    call: unsafe extern "C-unwind" fn(*mut c_void, *const baton_value, i32, *mut baton_value) -> c_int,
    state: State,
    /// The names of its parameters; none if it takes whatever is given.
    parameters: Option<Names>,
}

/// The names of parameters, for Rust and for C.
pub(crate) type Names = Vec<(String, CString)>;

/// What a program gives with a function.
pub(crate) struct State(*mut c_void, Release);

// SAFETY: the header says that threads of the library call the function with it, and one releases it.
unsafe impl Send for State {}
// SAFETY: as above.
unsafe impl Sync for State {}

impl State {
    pub(crate) fn new(state: *mut c_void, release: Release) -> State {
        State(state, release)
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if let Some(release) = self.1 {
            // SAFETY: the header asks for a function that releases it, which is called once.
            unsafe { release(self.0) };
        }
    }
}

/// What the error of a function is if it is this layer's.
fn told(refusal: Refusal) -> Error {
    match refusal {
        Refusal::Baton(e) => e,
        Refusal::Own(status, what) => own_error(status, what),
    }
}

impl Handler {
    pub(crate) fn new(call: baton_handler, state: State, parameters: Option<Names>) -> Outcome<Handler> {
        match call {
            Some(call) => Ok(Handler { call, state, parameters }),
            None => refused("the function is NULL"),
        }
    }

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

    /// Calls it. `parts`: how it gives parts, if it does.
    pub(crate) fn run(&self, args: &Args, call: &Call, parts: Option<&PartSender<'_>>) -> baton::Result<Value> {
        let (names, values) = self.arguments(args).map_err(told)?;
        let current = baton_current::new(call, names, &values, parts);
        let count = i32::try_from(values.len()).unwrap_or(i32::MAX);
        let mut result = baton_value::NONE;
        let (status, failed) = apart(|| {
            let (status, failed) = current.run(|| {
                // SAFETY: the header asks for such a function; the arguments and the place of the result live as long.
                unsafe { (self.call)(self.state.0, values.as_ptr(), count, &raw mut result) }
            });
            (status, failed.or_else(|| last_of(status)))
        });
        if status == baton_status::BATON_OK as c_int {
            return result.value().map_err(told);
        }
        Err(failed.unwrap_or_else(|| match name_of(status) {
            "unknown" => Error::of_kind("error", format!("the function returned {status}")),
            name => Error::of_kind(format!("baton.{name}"), format!("the function returned {name}")),
        }))
    }
}
