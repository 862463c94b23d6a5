//! Tensors on GPUs: the order of streams, and memory of frameworks that is lent.

use std::mem::MaybeUninit;

use baton::Stream;
use baton::dlpack::{DLManagedTensorVersioned, DLTensor, Managed, Structure};

use crate::error::{Outcome, answer, refused, run};
use crate::message::baton_message;
use crate::status::baton_status;
use crate::tensor::{give_tensor_on, own, readable};
use crate::{baton_session, given, wait};

/// As a stream: none. The program has waited for its GPU, or does so itself.
pub const BATON_NO_STREAM: i64 = -1;

/// The stream that a program names.
pub(crate) fn stream(number: i64) -> Outcome<Stream> {
    match number {
        0 => Ok(Stream::LEGACY),
        // SAFETY: the header asks for a stream that lives as long as it is used.
        n => Ok(unsafe { Stream::from_raw(n) }?),
    }
}

/// Says that work enqueued on a stream from now on uses a tensor on a GPU: the stream waits until its
/// sender has written it, and released memory is not used anew before the stream has passed. Work that
/// follows a send is announced anew. stream: the CUstream or cudaStream_t as a number, 0 or 1 the legacy
/// default stream, 2 that of the thread, BATON_NO_STREAM none. Memory of the machine needs none of this.
/// Errors: BATON_EXPIRED when the sender ended before it had written, or the lender of the memory has ended.
#[unsafe(no_mangle)]
pub extern "C" fn baton_tensor_use_on(tensor: *const DLManagedTensorVersioned, stream: i64) -> baton_status {
    run(|| {
        let stream = self::stream(stream)?;
        // SAFETY: the header asks for a live structure.
        Ok(unsafe { own(tensor) }?.use_on(stream)?)
    })
}

/// Waits on the CPU until the sender's stream has written the tensor. A stream whose sender died is not held up
/// and reads what was there before: a reader that must not use that calls this when its stream has passed.
/// Errors: BATON_TIMEOUT when it is not written within timeout_ns; BATON_EXPIRED when the sender ended before it
/// had written, or the lender of the memory has ended.
#[unsafe(no_mangle)]
pub extern "C" fn baton_tensor_written(tensor: *const DLManagedTensorVersioned, timeout_ns: i64) -> baton_status {
    // SAFETY: the header asks for a live structure.
    run(|| Ok(unsafe { own(tensor) }?.written(wait(timeout_ns))?))
}

/// 1 if streams wait for each other when the tensor is handed over; 0 if the processor waits in
/// their place, since the driver cannot let them wait, and for a tensor that is on no GPU.
#[unsafe(no_mangle)]
pub extern "C" fn baton_tensor_ordered_by_streams(tensor: *const DLManagedTensorVersioned) -> i32 {
    // SAFETY: the header asks for a live structure.
    answer(0, || unsafe { own(tensor) }.map_or(0, |t| i32::from(t.is_ordered_by_streams())))
}

/// Names the stream for which tensors on a GPU are taken from a message from now on, as by
/// baton_tensor_use_on; until then it is the legacy default stream.
#[unsafe(no_mangle)]
pub extern "C" fn baton_message_stream(message: Option<&baton_message>, stream: i64) -> baton_status {
    run(|| {
        given(message, "message")?.set_stream(self::stream(stream)?);
        Ok(())
    })
}

/// A tensor of another library in memory of cudaMalloc as it lies, not copied, to be handed to others.
/// Ownership of the tensor given is taken in any case: its deleter is called when no session holds the memory any
/// more, on a thread of the session's, and on failure before the return. stream: after whose work it is
/// written. Others hold it as long as this session lives, then they get BATON_EXPIRED. What is held then
/// is kept to the end of the process. BATON_UNSUPPORTED: the driver cannot lend it (baton_from_dlpack
/// copies it), or there is none.
#[unsafe(no_mangle)]
pub extern "C" fn baton_lend(
    session: Option<&baton_session>,
    tensor: *mut DLManagedTensorVersioned,
    stream: i64,
    out: Option<&mut MaybeUninit<*mut DLManagedTensorVersioned>>,
) -> baton_status {
    lend(session, tensor, stream, out, || {
        if tensor.is_null() {
            return refused("tensor is NULL");
        }
        // SAFETY: the header asks for a live structure, which `lend` keeps; the version stands first in
        // every major version.
        unsafe {
            readable(tensor)?;
            Ok((&(*tensor).dl_tensor, (*tensor).flags))
        }
    })
}

/// Takes a structure over and lends its memory. Its view and flags are asked for once, which refuses NULL.
pub(crate) fn lend<'a, M: Structure + 'static>(
    session: Option<&baton_session>,
    tensor: *mut M,
    stream: i64,
    out: Option<&mut MaybeUninit<*mut DLManagedTensorVersioned>>,
    view: impl FnOnce() -> Outcome<(&'a DLTensor, u64)>,
) -> baton_status {
    // SAFETY: the header asks for a live structure that is given away and keeps DLPack's rules.
    let kept = unsafe { Managed::from_raw(tensor) }.ok();
    run(|| {
        give_tensor_on(out, || {
            let stream = self::stream(stream)?;
            let (view, flags) = view()?;
            // SAFETY: as above; the structure lives as long as `kept`.
            let t = unsafe { given(session, "session")?.0.lend(view, flags, stream, Box::new(kept)) }?;
            Ok((t, stream))
        })
    })
}
