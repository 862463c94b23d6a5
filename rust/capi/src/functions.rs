//! The functions that there are.

use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;

use crate::error::{answer, missing, run};
use crate::grown::{give_grown, grows};
use crate::status::baton_status;
use crate::{baton_session, c_text, give_object, given, maybe_text};

/// What baton_functions found, at that time.
pub struct baton_function_list(Vec<Listed>);

struct Listed {
    name: CString,
    signature: CString,
    doc: CString,
    info: baton::FunctionInfo,
    /// The names of its providers.
    providers: Vec<CString>,
}

/// A function that is registered. Its texts are the list's.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct baton_function_info {
    /// Of this structure, set by BATON_FUNCTION_INFO_INIT before the call.
    pub size: usize,
    /// Its name, with its version.
    pub name: *const c_char,
    /// What it takes and gives.
    pub signature: *const c_char,
    /// What it does, "" if it is not said.
    pub doc: *const c_char,
    /// How many sessions provide it.
    pub providers: u64,
    /// Sessions that have called it.
    pub callers: u64,
    /// Calls that no provider has taken.
    pub waiting: u64,
    /// Calls that providers have.
    pub running: u64,
    /// 1 if another provider runs a call again whose provider has ended before it replied.
    pub idempotent: i32,
    /// 1 if one process alone may provide it.
    pub exclusive: i32,
}

/// A provider of a function. Its text is the list's.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct baton_provider_info {
    /// Of this structure, set by BATON_PROVIDER_INFO_INIT before the call.
    pub size: usize,
    /// The name of its session.
    pub name: *const c_char,
    /// The serial of its session.
    pub session: u64,
    /// How many calls it has.
    pub running: u64,
    /// Its process.
    pub pid: u32,
    /// How many calls it takes at a time.
    pub concurrency: u32,
    /// 1 if its process is suspended.
    pub stopped: i32,
    /// 0.
    pub reserved: i32,
}

grows! {
    baton_function_info to exclusive: i32, BATON_FUNCTION_INFO_INIT;
    baton_provider_info to reserved: i32, BATON_PROVIDER_INFO_INIT;
}

/// The functions that are registered in the session's namespace. In the pattern * stands for any run of
/// characters; NULL matches all. Only the errors of every call occur.
#[unsafe(no_mangle)]
pub extern "C" fn baton_functions(
    session: Option<&baton_session>,
    pattern: *const c_char,
    out: Option<&mut MaybeUninit<Option<Box<baton_function_list>>>>,
) -> baton_status {
    run(|| {
        give_object(out, || {
            // SAFETY: the header asks for a text or NULL.
            let pattern = unsafe { maybe_text(pattern, "pattern") }?.unwrap_or_default();
            let all = given(session, "session")?.0.functions(pattern)?;
            let listed = all.into_iter().map(|info| Listed {
                name: c_text(info.name.as_str()),
                signature: c_text(info.signature.as_str()),
                doc: c_text(info.doc.as_str()),
                providers: info.providers.iter().map(|p| c_text(p.name.as_str())).collect(),
                info,
            });
            Ok(baton_function_list(listed.collect()))
        })
    })
}

/// How many there are; 0 for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn baton_function_list_count(list: Option<&baton_function_list>) -> usize {
    list.map_or(0, |l| l.0.len())
}

/// Reads a function of the list, counted from 0. out begins as BATON_FUNCTION_INFO_INIT; only members that it has are
/// set. Errors: BATON_NOT_FOUND when the list has no function of that number.
#[unsafe(no_mangle)]
pub extern "C" fn baton_function_list_get(
    list: Option<&baton_function_list>,
    index: usize,
    out: *mut baton_function_info,
) -> baton_status {
    // SAFETY: the header asks for a structure of the size that it says.
    run(|| unsafe {
        give_grown(out, || {
            let Some(f) = given(list, "list")?.0.get(index) else {
                return missing(format!("the list has no function {index}"));
            };
            Ok(baton_function_info {
                size: size_of::<baton_function_info>(),
                name: f.name.as_ptr(),
                signature: f.signature.as_ptr(),
                doc: f.doc.as_ptr(),
                providers: f.providers.len() as u64,
                callers: f.info.callers as u64,
                waiting: f.info.waiting as u64,
                running: f.info.running as u64,
                idempotent: f.info.idempotent.into(),
                exclusive: f.info.exclusive.into(),
            })
        })
    })
}

/// Reads a provider of a function of the list, both counted from 0. out begins as BATON_PROVIDER_INFO_INIT; only
/// members that it has are set. Errors: BATON_NOT_FOUND when there is no function or no provider of that number.
#[unsafe(no_mangle)]
pub extern "C" fn baton_function_list_provider(
    list: Option<&baton_function_list>,
    index: usize,
    provider: usize,
    out: *mut baton_provider_info,
) -> baton_status {
    // SAFETY: the header asks for a structure of the size that it says.
    run(|| unsafe {
        give_grown(out, || {
            let f = given(list, "list")?.0.get(index);
            let Some((f, p)) = f.and_then(|f| Some((f, f.info.providers.get(provider)?))) else {
                return missing(format!("the list has no provider {provider} of a function {index}"));
            };
            Ok(baton_provider_info {
                size: size_of::<baton_provider_info>(),
                name: f.providers[provider].as_ptr(),
                session: p.session,
                running: p.running as u64,
                pid: p.pid,
                concurrency: p.concurrency,
                stopped: p.stopped.into(),
                reserved: 0,
            })
        })
    })
}

/// Releases the list; NULL is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn baton_function_list_release(list: Option<Box<baton_function_list>>) {
    answer((), || drop(list));
}
