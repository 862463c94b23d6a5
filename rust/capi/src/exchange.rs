//! The table by which libraries of one process give each other tensors.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use baton::dlpack::{DLManagedTensorVersioned, DLPackExchangeAPI, allocate_in, exchange_api};

use crate::baton_session;
use crate::error::{refused, run};
use crate::status::baton_status;

/// Stands where a function for Python's objects is, until it is taken out again.
unsafe extern "C" fn from_py(_: *mut c_void, _: *mut *mut DLManagedTensorVersioned) -> c_int {
    -1
}

/// As `from_py`.
unsafe extern "C" fn to_py(_: *mut DLManagedTensorVersioned, _: *mut *mut c_void) -> c_int {
    -1
}

/// Fills in DLPack's table for libraries of this process (DLPack 1.2 and later): its version, the allocator,
/// which makes tensors in shared memory and may be called by any thread, and the stream. session: where the
/// allocator makes them from now on, in every table of this process; the session then stays open until
/// baton_session_end, or until another one is named. After baton_session_end allocations fail
/// (BATON_CLOSED's text goes to DLPack's error function) until another one is named. NULL leaves that as it is:
/// at first a session with the user's broker, opened at the first allocation. The functions that meet Python's objects are NULL: a module
/// that has a type of its own sets all three before it publishes the table.
#[unsafe(no_mangle)]
pub extern "C" fn baton_exchange_api(
    session: Option<&baton_session>,
    out: Option<&mut MaybeUninit<DLPackExchangeAPI>>,
) -> baton_status {
    run(|| {
        let Some(out) = out else { return refused("the pointer to the table is NULL") };
        let mut table = exchange_api(from_py, to_py, None);
        table.managed_tensor_from_py_object_no_sync = None;
        table.managed_tensor_to_py_object_no_sync = None;
        out.write(table);
        if let Some(session) = session {
            allocate_in(&session.0);
        }
        Ok(())
    })
}
