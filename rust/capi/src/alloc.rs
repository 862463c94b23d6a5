//! Making tensors.

use std::ffi::c_char;
use std::mem::MaybeUninit;

use baton::dlpack::{DLDataType, DLManagedTensorVersioned};
use baton::{Session, Tensor};

use crate::error::{Outcome, refused, run};
use crate::gpu::stream;
use crate::grown::{grown, grows};
use crate::status::baton_status;
use crate::tensor::{dims, give_tensor_on};
use crate::{baton_session, given, maybe_text, wait};

/// Where a tensor is allocated. BATON_ALLOC_OPTIONS_INIT is the machine's memory in its usual pages, without
/// waiting.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct baton_alloc_options {
    /// Of this structure, set by BATON_ALLOC_OPTIONS_INIT.
    pub size: usize,
    /// "2M" or "1G": huge pages of that size, of those that the machine has reserved. NULL: the usual
    /// pages.
    pub pages: *const c_char,
    /// "cuda:0" as this process counts, "cuda" the first, "cuda:GPU-..." by UUID: a GPU. NULL or
    /// "cpu": the machine's memory.
    pub device: *const c_char,
    /// How long to wait if memory is full: 0 not at all, BATON_FOREVER.
    pub timeout_ns: i64,
    /// On a GPU, the stream whose work uses it first, as of baton_tensor_use_on.
    pub stream: i64,
}

grows! { baton_alloc_options to stream: i64, BATON_ALLOC_OPTIONS_INIT; }

/// Allocates a tensor in shared memory, to be filled in place at its data, C-contiguous and aligned to
/// 256 bytes. What stands there is whatever was there before. Errors: BATON_INVALID_ARGUMENT,
/// BATON_OUT_OF_MEMORY, BATON_QUOTA_EXCEEDED, BATON_BROKER_LOST.
#[unsafe(no_mangle)]
pub extern "C" fn baton_alloc(
    session: Option<&baton_session>,
    dtype: DLDataType,
    ndim: i32,
    shape: *const i64,
    out: Option<&mut MaybeUninit<*mut DLManagedTensorVersioned>>,
) -> baton_status {
    baton_alloc_with(session, std::ptr::null(), dtype, ndim, shape, out)
}

/// As baton_alloc, with a choice of memory; options may be NULL. Huge pages are taken from the machine
/// whole and shared by small tensors; if too few are free it is BATON_OUT_OF_MEMORY, whose text says
/// how to reserve more. What lies on a GPU has its device address as data and is for work of the options'
/// stream (docs/cuda.md). Other errors: BATON_UNSUPPORTED if the machine has no such pages or
/// no driver, BATON_NOT_FOUND for a GPU that this process does not see.
#[unsafe(no_mangle)]
pub extern "C" fn baton_alloc_with(
    session: Option<&baton_session>,
    options: *const baton_alloc_options,
    dtype: DLDataType,
    ndim: i32,
    shape: *const i64,
    out: Option<&mut MaybeUninit<*mut DLManagedTensorVersioned>>,
) -> baton_status {
    run(|| {
        give_tensor_on(out, || {
            // SAFETY: the header asks for a structure of the size that it says, or NULL.
            let options = unsafe { grown(options) }?;
            let stream = stream(options.map_or(0, |o| o.stream))?;
            // SAFETY: the header asks for ndim numbers.
            let shape = unsafe { dims(ndim, shape, "shape") }?;
            let session = &given(session, "session")?.0;
            let t = match options {
                Some(o) => chosen(session, &o, dtype, shape)?,
                None => session.allocation(shape).raw(dtype)?.freeze(),
            };
            Ok((t, stream))
        })
    })
}

fn chosen(session: &Session, o: &baton_alloc_options, dtype: DLDataType, shape: &[i64]) -> Outcome<Tensor> {
    // SAFETY: the header asks for texts or NULL.
    let (pages, device) = unsafe { (maybe_text(o.pages, "pages")?, maybe_text(o.device, "device")?) };
    let timeout = wait(o.timeout_ns);
    match (pages, device.filter(|d| *d != "cpu")) {
        (Some(_), Some(device)) => refused(format!("pages are of the machine's memory, and device is {device:?}")),
        (Some(pages), None) => {
            Ok(session.allocation(shape).timeout(timeout).pages(pages.parse()?).raw(dtype)?.freeze())
        }
        (None, Some(device)) => Ok(session.allocation(shape).timeout(timeout).on(device, dtype)?),
        (None, None) => Ok(session.allocation(shape).timeout(timeout).raw(dtype)?.freeze()),
    }
}
