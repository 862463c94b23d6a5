//! The exchange table by which libraries of one process give each other tensors without Python calls.

use std::ffi::{CString, c_int, c_void};
use std::sync::Arc;

use arc_swap::ArcSwapOption;

use super::view::View;
use super::{
    DLManagedTensorVersioned, DLPackExchangeAPI, DLPackExchangeAPIHeader, DLTensor, ExportOptions, Managed, SetError,
    VERSION, device,
};
use crate::cuda::Stream;
use crate::error::{Code, Error, Result};
use crate::panics::caught;
use crate::session::Session;

/// Makes a managed tensor of a Python object; a Python exception is set on failure.
pub type FromPyObject = unsafe extern "C" fn(*mut c_void, *mut *mut DLManagedTensorVersioned) -> c_int;
/// Makes a Python object of a managed tensor, which it steals.
pub type ToPyObject = unsafe extern "C" fn(*mut DLManagedTensorVersioned, *mut *mut c_void) -> c_int;
/// Borrows the view of a Python object until control returns.
pub type BorrowPyObject = unsafe extern "C" fn(*mut c_void, *mut DLTensor) -> c_int;

/// Where the allocator allocates.
static SESSION: ArcSwapOption<Where> = ArcSwapOption::const_empty();

struct Where {
    session: Session,
    /// The program has chosen it: none takes its place when it is over.
    named: bool,
}

/// A table of this library for a static: the allocator and the stream are its own, the functions that
/// meet Python objects are those of the Python package.
///
/// The allocator needs no interpreter and makes tensors in shared memory, in the session of
/// [`allocate_in`], else in one with the user's broker that it opens at its first call. Work on a GPU is
/// that of its legacy default stream, which `current_work_stream` gives; on the CPU there is none.
pub const fn exchange_api(
    from_py: FromPyObject,
    to_py: ToPyObject,
    borrow: Option<BorrowPyObject>,
) -> DLPackExchangeAPI {
    DLPackExchangeAPI {
        header: DLPackExchangeAPIHeader { version: VERSION, prev_api: std::ptr::null_mut() },
        managed_tensor_allocator: Some(allocate),
        managed_tensor_from_py_object_no_sync: Some(from_py),
        managed_tensor_to_py_object_no_sync: Some(to_py),
        dltensor_from_py_object_no_sync: borrow,
        current_work_stream: Some(work_stream),
    }
}

/// Sets the session in which the exchange table's allocator makes tensors. Once it is over, the allocator gives
/// `Closed`, or `SessionLost` where it was lost, until another one is set.
///
/// ```
/// # fn main() -> Result<(), baton::Error> {
/// # let Some(_broker) = baton_testkit::broker() else { return Ok(()) };
/// # let session = baton::Session::connect()?;
/// use baton::dlpack::{self, DLManagedTensorVersioned};
/// use std::ffi::{c_int, c_void};
///
/// unsafe extern "C" fn from_py(_: *mut c_void, _: *mut *mut DLManagedTensorVersioned) -> c_int {
///     -1 // those of the Python package know Python's objects
/// }
/// unsafe extern "C" fn to_py(_: *mut DLManagedTensorVersioned, _: *mut *mut c_void) -> c_int {
///     -1
/// }
/// let table = dlpack::exchange_api(from_py, to_py, None);
/// dlpack::allocate_in(&session);
/// let x = session.zeros::<f32>(&[2])?.freeze().to_dlpack(dlpack::ExportOptions::default())?;
/// let mut made = std::ptr::null_mut();
/// let make = table.managed_tensor_allocator.unwrap();
/// // The prototype has the type and the shape; errors go to the function, here to none.
/// assert_eq!(unsafe { make(&raw mut (*x.as_ptr()).dl_tensor, &mut made, std::ptr::null_mut(), None) }, 0);
/// let y = session.from_dlpack(unsafe { dlpack::Managed::from_raw(made)? })?;
/// assert_eq!((y.shape(), y.is_shared()), (&[2][..], true));
/// # Ok(()) }
/// ```
pub fn allocate_in(session: &Session) {
    SESSION.store(Some(Arc::new(Where { session: session.clone(), named: true })));
}

/// As [`allocate_in`], of a default session: another one with the user's broker takes its place when it is over. For the
/// bindings alone.
#[doc(hidden)]
pub fn allocate_by_default_in(session: &Session) {
    SESSION.store(Some(Arc::new(Where { session: session.clone(), named: false })));
}

fn session() -> Result<Session> {
    let known = SESSION.load_full();
    match known.as_deref() {
        Some(k) if !k.session.is_ended() => return Ok(k.session.clone()),
        Some(k) if k.named => return Err(k.session.why_lost().unwrap_or_else(over)),
        Some(k) => {
            SESSION.store(None); // once: the next call opens another
            if let Some(lost) = k.session.why_lost() {
                return Err(lost);
            }
        }
        None => {}
    }
    let s = Session::connect()?;
    allocate_by_default_in(&s);
    Ok(s)
}

#[cold]
fn over() -> Error {
    Error::new(
        Code::Closed,
        "name another session: allocate_in, in C baton_exchange_api",
        "the session in which exchange tables allocate is closed",
    )
}

/// `managed_tensor_allocator`: a writable tensor with the type, shape and device of a prototype, of
/// which nothing else is used.
///
/// # Safety
/// As the DLPack header says: a live prototype, a place for the result, and a function that may be
/// called with its context once.
unsafe extern "C" fn allocate(
    prototype: *mut DLTensor,
    out: *mut *mut DLManagedTensorVersioned,
    context: *mut c_void,
    set_error: SetError,
) -> c_int {
    // A panic must not leave a C function.
    let made = caught(|| {
        // SAFETY: as the caller says.
        unsafe { make(prototype) }
    });
    let panicked =
        || Error::new(Code::Internal, "report this with the broker's log, see docs/support.md", "the allocator failed");
    match made.unwrap_or_else(|_| Err(panicked())) {
        Ok(m) if !out.is_null() => {
            // SAFETY: a place of the caller's.
            unsafe { *out = m.into_raw() };
            0
        }
        Ok(_) => -1,
        Err(e) => {
            if let Some(report) = set_error {
                let text = CString::new(e.to_string().replace('\0', " ")).unwrap_or_default();
                // SAFETY: both strings live until the call returns.
                unsafe { report(context, kind(e.code()).as_ptr(), text.as_ptr()) };
            }
            -1
        }
    }
}

/// # Safety
/// The prototype is null or live.
unsafe fn make(prototype: *mut DLTensor) -> Result<Managed<DLManagedTensorVersioned>> {
    // SAFETY: as the caller says.
    let Some(p) = (unsafe { prototype.as_ref() }) else {
        return Err(Error::new(Code::InvalidArgument, "give a prototype", "DLPack: the prototype is NULL"));
    };
    // An address is not looked at, so that any will do.
    let bare = DLTensor { data: std::ptr::dangling_mut(), strides: std::ptr::null_mut(), byte_offset: 0, ..*p };
    // SAFETY: as the caller says, its shape has `ndim` numbers.
    let v = unsafe { View::anywhere(&bare, 0)? };
    let device = match p.device.device_type {
        device::CUDA => format!("cuda:{}", p.device.device_id),
        t if device::is_host(t) => "cpu".to_owned(),
        t => {
            let what = format!("DLPack: a tensor on device type {t}");
            return Err(Error::new(Code::Unsupported, "ask for one on the CPU or a GPU of CUDA's", what));
        }
    };
    session()?.allocation(&v.shape).on(&device, v.dtype)?.to_dlpack(ExportOptions::default())
}

/// The Python exception that a code becomes.
fn kind(c: Code) -> &'static std::ffi::CStr {
    match c {
        Code::OutOfMemory | Code::QuotaExceeded => c"MemoryError",
        Code::InvalidArgument => c"ValueError",
        Code::Unsupported => c"BufferError",
        Code::NoBroker | Code::BrokerLost => c"ConnectionError",
        Code::Timeout => c"TimeoutError",
        _ => c"RuntimeError",
    }
}

/// `current_work_stream`: that by which tensors without a stream of their own are exported.
///
/// # Safety
/// `out` is null or a place of the caller's.
unsafe extern "C" fn work_stream(device_type: i32, _device_id: i32, out: *mut *mut c_void) -> c_int {
    if out.is_null() {
        return -1;
    }
    let stream = if device_type == device::CUDA { Stream::LEGACY.as_raw() as usize } else { 0 };
    // SAFETY: as the caller says.
    unsafe { *out = std::ptr::without_provenance_mut(stream) };
    0
}
