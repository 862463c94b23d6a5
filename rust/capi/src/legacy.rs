//! Tensors as the structure before DLPack 1.0, for libraries that know no other.

use std::mem::MaybeUninit;

use baton::Tensor;
use baton::dlpack::{DLManagedTensor, DLManagedTensorVersioned, ExportOptions};

use crate::error::{Outcome, refused, run};
use crate::gpu::lend;
use crate::status::baton_status;
use crate::tensor::{give_tensor, own, release};
use crate::{baton_session, give, given};

/// As baton_from_dlpack, of the structure before DLPack 1.0.
#[unsafe(no_mangle)]
pub extern "C" fn baton_from_legacy(
    session: Option<&baton_session>,
    tensor: *const DLManagedTensor,
    out: Option<&mut MaybeUninit<*mut DLManagedTensorVersioned>>,
) -> baton_status {
    run(|| {
        give_tensor(out, || {
            // SAFETY: the header asks for a live structure.
            let Some(tensor) = (unsafe { tensor.as_ref() }) else { return refused("tensor is NULL") };
            // SAFETY: as above; it keeps DLPack's rules.
            Ok(unsafe { given(session, "session")?.0.share(&tensor.dl_tensor, 0) }?)
        })
    })
}

/// As baton_lend, of the structure before DLPack 1.0.
#[unsafe(no_mangle)]
pub extern "C" fn baton_lend_legacy(
    session: Option<&baton_session>,
    tensor: *mut DLManagedTensor,
    stream: i64,
    out: Option<&mut MaybeUninit<*mut DLManagedTensorVersioned>>,
) -> baton_status {
    // SAFETY: the header asks for a live structure, which `lend` keeps.
    lend(session, tensor, stream, out, || unsafe {
        match tensor.as_ref() {
            Some(t) => Ok((&t.dl_tensor, 0)),
            None => refused("tensor is NULL"),
        }
    })
}

/// A tensor as the structure before DLPack 1.0; a reference of its own, which the consumer's call of its
/// deleter or baton_legacy_release gives back. That structure cannot say that a tensor is read-only:
/// BATON_READ_ONLY for one that is, as what comes from topics and names.
#[unsafe(no_mangle)]
pub extern "C" fn baton_to_legacy(
    tensor: *const DLManagedTensorVersioned,
    out: Option<&mut MaybeUninit<*mut DLManagedTensor>>,
) -> baton_status {
    // SAFETY: the header asks for a live structure.
    give_legacy(out, ExportOptions::default(), || unsafe { own(tensor) })
}

/// As baton_to_legacy, and a read-only tensor is mapped once more, copy-on-write: what the consumer writes
/// is not seen by others. BATON_READ_ONLY for a read-only one on a GPU.
#[unsafe(no_mangle)]
pub extern "C" fn baton_to_legacy_private(
    tensor: *const DLManagedTensorVersioned,
    out: Option<&mut MaybeUninit<*mut DLManagedTensor>>,
) -> baton_status {
    // SAFETY: the header asks for a live structure.
    give_legacy(out, ExportOptions::default().private(true), || unsafe { own(tensor) })
}

fn give_legacy<'a>(
    out: Option<&mut MaybeUninit<*mut DLManagedTensor>>,
    options: ExportOptions,
    tensor: impl FnOnce() -> Outcome<&'a Tensor>,
) -> baton_status {
    run(|| give(out, std::ptr::null_mut(), || Ok(tensor()?.to_dlpack_legacy(options)?.into_raw())))
}

/// As baton_tensor_release, of the structure before DLPack 1.0.
#[unsafe(no_mangle)]
pub extern "C" fn baton_legacy_release(tensor: *mut DLManagedTensor) {
    release(tensor);
}
