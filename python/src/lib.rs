//! The native half of the Python package `baton`: the Rust client behind Python objects.
//!
//! Ownership: each Python object owns its Rust value; arrays, buffers and capsules made from a tensor
//! hold the memory on their own. Concurrency: all objects may be used from any thread; no lock is
//! awaited while the interpreter is held. Hostile peers: what comes from another process is checked
//! by the client, and the value tree here. Death: as in the client; see there.

mod arrays;
mod base;
mod face;
mod objects;
mod value;
mod views;

use std::time::Duration;

use baton::bindings::OwnThread;
use pyo3::prelude::*;

use crate::base::errors::OrRaise;
use crate::base::text::Text;

/// The socket of the broker that a session without an address would use.
#[pyfunction]
fn default_address(py: Python<'_>) -> PyResult<String> {
    baton::Session::default_address().or_raise(py)
}

/// Raises InvalidArgument for what is no name.
#[pyfunction]
fn check_name(py: Python<'_>, name: Text<'_>) -> PyResult<()> {
    baton::Session::check_name(&name).or_raise(py)
}

/// Raises InvalidArgument for what is no name of a function, with a version or without.
#[pyfunction]
fn check_function(py: Python<'_>, name: Text<'_>) -> PyResult<()> {
    baton::Session::check_function(&name).or_raise(py)
}

/// Waits until the GPUs have done what this process gave them, ten seconds at most.
#[pyfunction]
fn finish_devices(py: Python<'_>) {
    py.detach(|| baton::finish_devices(Duration::from_secs(10)));
}

/// Has threads that wait for calls within no other call raise Cancelled, or no more.
#[pyfunction]
fn end_calls(yes: bool) {
    base::wait::end_calls(yes);
}

/// Notes that the calling thread runs nothing of the program's, to its end: a process does not go on for it.
#[pyfunction]
fn own_thread() {
    thread_local! {
        static OWN: OwnThread = OwnThread::begin();
    }
    OWN.with(|_| ());
}

/// The native classes; `baton` gives them their public names.
#[pymodule(name = "_native", gil_used = true)]
mod native {
    use pyo3::exceptions::PyImportError;
    use pyo3::ffi;
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::arrays::copies::own_buffers;
    #[pymodule_export]
    use super::face::any::wait_any;
    #[pymodule_export]
    use super::face::cuda_allocator::allocate_on_gpus_in;
    #[pymodule_export]
    use super::face::function::{get_function, list_functions, provide, remove_function_everywhere};
    #[pymodule_export]
    use super::face::message::Message;
    #[pymodule_export]
    use super::face::name::Watch;
    #[pymodule_export]
    use super::face::packing::{put_together, put_whole, take_apart, take_whole};
    #[pymodule_export]
    use super::face::parts::Parts;
    #[pymodule_export]
    use super::face::pending::Pending;
    #[pymodule_export]
    use super::face::pickle::{bundle_of, dense, end_lease, hand_over, lend, open_bundle};
    #[pymodule_export]
    use super::face::provided::{Call, Provided, current_call};
    #[pymodule_export]
    use super::face::queue::Queue;
    #[pymodule_export]
    use super::face::sending::Sending;
    #[pymodule_export]
    use super::face::session::empty;
    #[pymodule_export]
    use super::face::storages::{move_storages, storage_in_place, storages_over};
    #[pymodule_export]
    use super::face::topic::{Reader, Topic};
    #[pymodule_export]
    use super::objects::bundle::Bundle;
    #[pymodule_export]
    use super::objects::default::set_default;
    #[pymodule_export]
    use super::objects::function::Function;
    #[pymodule_export]
    use super::objects::handle::Handle;
    #[pymodule_export]
    use super::objects::session::Session;
    #[pymodule_export]
    use super::objects::tensor::Tensor;
    #[pymodule_export]
    use super::views::exchange::of_lent;
    #[pymodule_export]
    use super::{check_function, check_name, default_address, end_calls, finish_devices, own_thread};

    /// Refuses other interpreters of this process: what the client keeps of Python, such as the classes of
    /// errors, is the first one's.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        // SAFETY: the caller holds an interpreter, which has a number; the main one's is 0.
        if unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) } == 0 {
            return Ok(());
        }
        Err(PyImportError::new_err(
            "baton works in the main interpreter only: start a process in place of a subinterpreter",
        ))
    }
}
