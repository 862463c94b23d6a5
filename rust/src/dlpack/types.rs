//! The structures of the header, for 64-bit little-endian machines.

use std::ffi::{c_char, c_int, c_void};

pub use crate::dtype::DType as DLDataType;

/// DLPackVersion.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DLPackVersion {
    /// Another one than ours: only the deleter may be used.
    pub major: u32,
    /// Adds enumeration values only.
    pub minor: u32,
}

/// The version that this crate writes.
pub const VERSION: DLPackVersion = DLPackVersion { major: 1, minor: 3 };

/// DLDevice.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DLDevice {
    /// DLDeviceType: 1 is the CPU.
    pub device_type: i32,
    /// Which one.
    pub device_id: i32,
}

/// kDLCPU.
pub const CPU: i32 = 1;

/// DLTensor: a view of memory that somebody else owns.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct DLTensor {
    /// The memory; NULL without elements.
    pub data: *mut c_void,
    /// Where it is.
    pub device: DLDevice,
    /// Dimensions; 0 is a scalar.
    pub ndim: i32,
    /// What one element is.
    pub dtype: DLDataType,
    /// `ndim` extents.
    pub shape: *mut i64,
    /// `ndim` strides in elements; NULL: compact and row-major.
    pub strides: *mut i64,
    /// Bytes from `data` to the first element.
    pub byte_offset: u64,
}

/// DLManagedTensor: the legacy structure, which cannot say that memory is read-only.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensor {
    /// The view.
    pub dl_tensor: DLTensor,
    /// The producer's.
    pub manager_ctx: *mut c_void,
    /// Frees the structure and lets go of the memory; may be NULL.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensor)>,
}

/// DLManagedTensorVersioned.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensorVersioned {
    /// Of the producer.
    pub version: DLPackVersion,
    /// The producer's.
    pub manager_ctx: *mut c_void,
    /// Frees the structure and lets go of the memory; may be NULL.
    pub deleter: Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned)>,
    /// Bits of [`flag`].
    pub flags: u64,
    /// The view.
    pub dl_tensor: DLTensor,
}

/// Bits of [`DLManagedTensorVersioned::flags`].
pub mod flag {
    /// The consumer must not write.
    pub const READ_ONLY: u64 = 1;
    /// The producer made a copy.
    pub const IS_COPIED: u64 = 2;
    /// Each element of a sub-byte type takes a whole byte.
    pub const SUBBYTE_TYPE_PADDED: u64 = 4;
}

/// DLPackExchangeAPIHeader.
#[repr(C)]
#[derive(Debug)]
pub struct DLPackExchangeAPIHeader {
    /// Of the table.
    pub version: DLPackVersion,
    /// An older table of the same library, or NULL.
    pub prev_api: *mut DLPackExchangeAPIHeader,
}

/// Reports an error of an allocator: context, kind, message.
pub type SetError = Option<unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char)>;

/// DLPackExchangeAPI: functions that return 0 or -1 and never synchronise.
#[repr(C)]
#[derive(Debug)]
pub struct DLPackExchangeAPI {
    /// Version and older tables.
    pub header: DLPackExchangeAPIHeader,
    /// Allocates a tensor like a prototype.
    pub managed_tensor_allocator:
        Option<unsafe extern "C" fn(*mut DLTensor, *mut *mut DLManagedTensorVersioned, *mut c_void, SetError) -> c_int>,
    /// Makes a managed tensor of a Python object.
    pub managed_tensor_from_py_object_no_sync:
        Option<unsafe extern "C" fn(*mut c_void, *mut *mut DLManagedTensorVersioned) -> c_int>,
    /// Makes a Python object of a managed tensor, which it steals.
    pub managed_tensor_to_py_object_no_sync:
        Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned, *mut *mut c_void) -> c_int>,
    /// Borrows a Python object's view; may be NULL.
    pub dltensor_from_py_object_no_sync: Option<unsafe extern "C" fn(*mut c_void, *mut DLTensor) -> c_int>,
    /// The stream that work is queued on.
    pub current_work_stream: Option<unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> c_int>,
}

macro_rules! layout {
    ($($t:ty: $size:literal/$align:literal { $($f:ident @ $at:literal),* })*) => { $(
        const _: () = {
            assert!(size_of::<$t>() == $size && align_of::<$t>() == $align);
            $(assert!(std::mem::offset_of!($t, $f) == $at);)*
        };
    )* };
}

layout! {
    DLPackVersion: 8/4 { major @ 0, minor @ 4 }
    DLDevice: 8/4 { device_type @ 0, device_id @ 4 }
    DLDataType: 4/2 { code @ 0, bits @ 1, lanes @ 2 }
    DLTensor: 48/8 { data @ 0, device @ 8, ndim @ 16, dtype @ 20, shape @ 24, strides @ 32, byte_offset @ 40 }
    DLManagedTensor: 64/8 { dl_tensor @ 0, manager_ctx @ 48, deleter @ 56 }
    DLManagedTensorVersioned: 80/8 { version @ 0, manager_ctx @ 8, deleter @ 16, flags @ 24, dl_tensor @ 32 }
    DLPackExchangeAPIHeader: 16/8 { version @ 0, prev_api @ 8 }
    DLPackExchangeAPI: 56/8 {
        header @ 0, managed_tensor_allocator @ 16, managed_tensor_from_py_object_no_sync @ 24,
        managed_tensor_to_py_object_no_sync @ 32, dltensor_from_py_object_no_sync @ 40, current_work_stream @ 48
    }
}
