//! Tensors, which are DLPack's structures, and handles.

use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;
use std::time::Duration;

use baton::dlpack::{DLDataType, DLManagedTensorVersioned, ExportOptions, Managed, Structure, VERSION};
use baton::{DType, Handle, Lease, Stream, Tensor};

use crate::error::{Outcome, Refusal, answer, refused, refused_for, run};
use crate::status::baton_status;
use crate::{BATON_FOREVER, array, baton_session, c_text, give, given, text};

/// As a lease: until a session has opened the handle, or 30 s after this session has ended.
pub const BATON_ONCE: i64 = -2;

/// Gives a tensor out as a structure of its own.
pub(crate) fn give_tensor(
    out: Option<&mut MaybeUninit<*mut DLManagedTensorVersioned>>,
    make: impl FnOnce() -> Outcome<Tensor>,
) -> Outcome {
    give_tensor_on(out, || Ok((make()?, Stream::LEGACY)))
}

/// As [`give_tensor`], for work of a stream.
pub(crate) fn give_tensor_on(
    out: Option<&mut MaybeUninit<*mut DLManagedTensorVersioned>>,
    make: impl FnOnce() -> Outcome<(Tensor, Stream)>,
) -> Outcome {
    give(out, std::ptr::null_mut(), || {
        let (t, stream) = make()?;
        Ok(t.to_dlpack(ExportOptions::default().stream(stream))?.into_raw())
    })
}

/// The tensor of a structure that this library made.
///
/// # Safety
/// It is null or a live structure.
pub(crate) unsafe fn own<'a>(tensor: *const DLManagedTensorVersioned) -> Outcome<&'a Tensor> {
    if tensor.is_null() {
        return refused("tensor is NULL");
    }
    // SAFETY: as the caller says.
    match unsafe { Tensor::of_dlpack(tensor) } {
        Some(t) => Ok(t),
        None => refused_for("the tensor is another library's", "take it in with baton_from_dlpack"),
    }
}

/// The tensor of a structure, copied into shared memory when it is another library's.
///
/// # Safety
/// It is null or a live structure that keeps DLPack's rules.
pub(crate) unsafe fn shared(session: &baton::Session, tensor: *const DLManagedTensorVersioned) -> Outcome<Tensor> {
    if tensor.is_null() {
        return refused("tensor is NULL");
    }
    // SAFETY: as the caller says; the version stands first in every major version.
    unsafe {
        if let Some(t) = Tensor::of_dlpack(tensor) {
            return Ok(t.clone());
        }
        readable(tensor)?;
        Ok(session.share(&(*tensor).dl_tensor, (*tensor).flags)?)
    }
}

/// As [`shared`]; a tensor of another session is copied as well.
///
/// # Safety
/// As of [`shared`].
unsafe fn ours(session: &baton::Session, tensor: *const DLManagedTensorVersioned) -> Outcome<Tensor> {
    // SAFETY: as the caller says.
    let t = unsafe { shared(session, tensor) }?;
    if t.belongs_to(session)? {
        return Ok(t);
    }
    // SAFETY: as the caller says; it is a structure of this library, since others have become tensors of the session.
    Ok(unsafe { session.share(&(*tensor).dl_tensor, (*tensor).flags) }?)
}

/// Refuses a structure of another major version, of which only the deleter may be used.
///
/// # Safety
/// It is a live structure, of any version.
pub(crate) unsafe fn readable(tensor: *const DLManagedTensorVersioned) -> Outcome {
    // SAFETY: as the caller says; the version stands first in every major version.
    let version = unsafe { (&raw const (*tensor).version).read() };
    if version.major == VERSION.major {
        return Ok(());
    }
    let what = format!(
        "a tensor of DLPack {}.{} cannot be read: ask its producer for 1.x (max_version)",
        version.major, version.minor
    );
    Err(Refusal::Own(baton_status::BATON_UNSUPPORTED, what))
}

/// A shape, or strides.
///
/// # Safety
/// It has `ndim` numbers.
pub(crate) unsafe fn dims<'a>(ndim: i32, first: *const i64, what: &str) -> Outcome<&'a [i64]> {
    match usize::try_from(ndim) {
        // SAFETY: as the caller says.
        Ok(n) if n <= 64 => unsafe { array(first, n, what) },
        _ => refused_for(format!("ndim is {ndim}"), "give 0 to 64"),
    }
}

/// Reads the name of a type as ml_dtypes spells it, such as "float32" or "bfloat16", followed by xN for N
/// lanes. Errors: BATON_INVALID_ARGUMENT for any other text.
#[unsafe(no_mangle)]
pub extern "C" fn baton_dtype(name: *const c_char, out: Option<&mut MaybeUninit<DLDataType>>) -> baton_status {
    run(|| {
        give(out, DType { code: 0, bits: 0, lanes: 0 }, || {
            // SAFETY: the header asks for a text or NULL.
            Ok(DType::parse(unsafe { text(name, "name") }?)?)
        })
    })
}

/// Releases a tensor by calling its deleter, on any thread; NULL is nothing. It works for tensors of
/// any library.
#[unsafe(no_mangle)]
pub extern "C" fn baton_tensor_release(tensor: *mut DLManagedTensorVersioned) {
    release(tensor);
}

/// Gives a structure back by its deleter; NULL is nothing.
pub(crate) fn release<M: Structure>(tensor: *mut M) {
    // SAFETY: the header asks for a live structure, which is given back here.
    answer((), || drop(unsafe { Managed::from_raw(tensor) }));
}

/// Takes a tensor of another library or session in: its elements are copied once into shared memory of this
/// session, unless they lie there already; then the result is one more reference to them. Without gaps they keep the order
/// of their dimensions, else they become C-contiguous. The tensor given stays the caller's. Errors:
/// BATON_UNSUPPORTED for memory that the processor cannot read, BATON_INVALID_ARGUMENT, and those of
/// baton_alloc.
#[unsafe(no_mangle)]
pub extern "C" fn baton_from_dlpack(
    session: Option<&baton_session>,
    tensor: *const DLManagedTensorVersioned,
    out: Option<&mut MaybeUninit<*mut DLManagedTensorVersioned>>,
) -> baton_status {
    // SAFETY: the header asks for a live structure.
    run(|| give_tensor(out, || unsafe { ours(&given(session, "session")?.0, tensor) }))
}

/// Another view of the same storage: type, shape, strides in elements (NULL: C-contiguous), byte_offset
/// bytes after the first element of tensor. It is a reference of its own. BATON_INVALID_ARGUMENT when
/// it reaches past the storage or is not aligned.
#[unsafe(no_mangle)]
pub extern "C" fn baton_tensor_view(
    tensor: *const DLManagedTensorVersioned,
    dtype: DLDataType,
    ndim: i32,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
    out: Option<&mut MaybeUninit<*mut DLManagedTensorVersioned>>,
) -> baton_status {
    run(|| {
        give_tensor(out, || {
            // SAFETY: the header asks for a live structure and for arrays of ndim numbers.
            unsafe {
                let shape = dims(ndim, shape, "shape")?;
                let strides = if strides.is_null() { None } else { Some(dims(ndim, strides, "strides")?) };
                Ok(own(tensor)?.view_as(dtype, shape, strides, byte_offset)?)
            }
        })
    })
}

/// The same tensor to be handed on read-only; a reference of its own. Errors: BATON_INVALID_ARGUMENT for a
/// tensor that is not of Baton.
#[unsafe(no_mangle)]
pub extern "C" fn baton_tensor_read_only(
    tensor: *const DLManagedTensorVersioned,
    out: Option<&mut MaybeUninit<*mut DLManagedTensorVersioned>>,
) -> baton_status {
    // SAFETY: the header asks for a live structure.
    run(|| give_tensor(out, || Ok(unsafe { own(tensor) }?.to_read_only())))
}

/// A handle of the tensor as JSON, which any means can carry to any process of this broker. The broker
/// holds the tensor for the lease's time, whatever becomes of this process: lease_ns, 0 for 30 s,
/// BATON_FOREVER until the session ends, BATON_ONCE. The text is released with baton_string_free.
#[unsafe(no_mangle)]
pub extern "C" fn baton_tensor_handle(
    tensor: *const DLManagedTensorVersioned,
    lease_ns: i64,
    out: Option<&mut MaybeUninit<*mut c_char>>,
) -> baton_status {
    run(|| {
        give(out, std::ptr::null_mut(), || {
            let lease = match lease_ns {
                0 => Lease::default(),
                BATON_FOREVER => Lease::Session,
                BATON_ONCE => Lease::Once,
                ns => match u64::try_from(ns) {
                    Ok(ns) => Lease::For(Duration::from_nanos(ns)),
                    Err(_) => return refused(format!("lease_ns is {ns}")),
                },
            };
            // SAFETY: the header asks for a live structure.
            let handle = unsafe { own(tensor) }?.handle(lease)?;
            Ok(c_text(handle.to_json()).into_raw())
        })
    })
}

/// The tensor of a handle, writable if the handle is; it redeems the handle's lease. The bytes of a
/// handle of another host are brought here first, where both brokers run with --span, and are read-only; that
/// takes 30 s at most. Errors: BATON_EXPIRED, BATON_INVALID_HANDLE; of other hosts also BATON_UNREACHABLE,
/// BATON_HOST_LOST, BATON_UNSUPPORTED, BATON_OUT_OF_MEMORY.
#[unsafe(no_mangle)]
pub extern "C" fn baton_open(
    session: Option<&baton_session>,
    handle: *const c_char,
    out: Option<&mut MaybeUninit<*mut DLManagedTensorVersioned>>,
) -> baton_status {
    run(|| {
        give_tensor(out, || {
            let session = &given(session, "session")?.0;
            // SAFETY: the header asks for a text or NULL.
            let handle = Handle::from_json(unsafe { text(handle, "handle") }?)?;
            Ok(session.open(&handle)?)
        })
    })
}

/// Ends a handle's lease before its time; only the session that made it may
/// (BATON_PERMISSION_DENIED).
#[unsafe(no_mangle)]
pub extern "C" fn baton_handle_release(session: Option<&baton_session>, handle: *const c_char) -> baton_status {
    run(|| {
        let session = &given(session, "session")?.0;
        // SAFETY: the header asks for a text or NULL.
        let handle = Handle::from_json(unsafe { text(handle, "handle") }?)?;
        Ok(session.release_handle(&handle)?)
    })
}

/// Releases a text that this library gave to be released; NULL is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn baton_string_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: the header asks for a text that baton_tensor_handle gave.
        drop(unsafe { CString::from_raw(text) });
    }
}
