//! The functions by which torch's pluggable allocator (`CUDAPluggableAllocator`) allocates on a GPU in
//! Baton's slabs. torch finds them in this module's library by name.

use std::ffi::{c_int, c_void};
use std::panic::catch_unwind;
use std::sync::{Mutex, MutexGuard};

use baton::{DeviceAllocator, Stream};
use pyo3::prelude::*;

use crate::objects::session::Session;

/// The last one allocates; the memory of those before it is still given back to them.
static ALLOCATORS: Mutex<Vec<DeviceAllocator>> = Mutex::new(Vec::new());

fn all() -> MutexGuard<'static, Vec<DeviceAllocator>> {
    ALLOCATORS.lock().unwrap_or_else(|p| p.into_inner())
}

/// Sets the session in whose slabs torch allocates by `baton_cuda_alloc`.
#[pyfunction]
pub(crate) fn allocate_on_gpus_in(session: &Session) {
    let mut all = all();
    // The same session again needs no other.
    if !all.last().is_some_and(|a| a.is_of(&session.session)) {
        all.push(DeviceAllocator::new(&session.session));
    }
}

/// As handles of streams are written, 0 is the legacy default one.
fn stream_of(stream: *mut c_void) -> Stream {
    // SAFETY: torch gives a stream of its own, which lives as long as the memory is used on it.
    unsafe { Stream::from_raw(stream.addr() as i64) }.unwrap_or(Stream::LEGACY)
}

/// Memory of a GPU; null, which torch tells as out of memory, where there is none.
#[unsafe(no_mangle)]
extern "C" fn baton_cuda_alloc(bytes: isize, device: c_int, _stream: *mut c_void) -> *mut c_void {
    let got = catch_unwind(|| all().last().and_then(|a| a.alloc(device, u64::try_from(bytes).ok()?).ok()));
    std::ptr::without_provenance_mut(got.ok().flatten().unwrap_or_default() as usize)
}

/// Takes memory of `baton_cuda_alloc` back. It is used anew when the stream has come past what was enqueued.
#[unsafe(no_mangle)]
extern "C" fn baton_cuda_free(at: *mut c_void, _bytes: isize, _device: c_int, stream: *mut c_void) {
    // A panic has kept the memory: torch can be told nothing here.
    let _ = catch_unwind(|| all().iter().any(|a| a.free(at.addr() as u64, stream_of(stream))));
}
