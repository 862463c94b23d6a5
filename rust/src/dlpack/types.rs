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
    /// DLDeviceType, see [`device`].
    pub device_type: i32,
    /// Which one.
    pub device_id: i32,
}

/// DLDeviceType: kinds of devices. What another library writes may be none of them.
pub mod device {
    /// kDLCPU.
    pub const CPU: i32 = 1;
    /// kDLCUDA.
    pub const CUDA: i32 = 2;
    /// kDLCUDAHost: pinned by CUDA.
    pub const CUDA_HOST: i32 = 3;
    /// kDLOpenCL.
    pub const OPENCL: i32 = 4;
    /// kDLVulkan.
    pub const VULKAN: i32 = 7;
    /// kDLMetal.
    pub const METAL: i32 = 8;
    /// kDLVPI.
    pub const VPI: i32 = 9;
    /// kDLROCM.
    pub const ROCM: i32 = 10;
    /// kDLROCMHost: pinned by ROCm.
    pub const ROCM_HOST: i32 = 11;
    /// kDLExtDev.
    pub const EXT_DEV: i32 = 12;
    /// kDLCUDAManaged: CPU and GPU reach it.
    pub const CUDA_MANAGED: i32 = 13;
    /// kDLOneAPI.
    pub const ONE_API: i32 = 14;
    /// kDLWebGPU.
    pub const WEB_GPU: i32 = 15;
    /// kDLHexagon.
    pub const HEXAGON: i32 = 16;
    /// kDLMAIA.
    pub const MAIA: i32 = 17;
    /// kDLTrn.
    pub const TRN: i32 = 18;

    /// Whether the processor reads and writes the memory of a device as its own.
    pub fn is_host(device_type: i32) -> bool {
        matches!(device_type, CPU | CUDA_HOST | ROCM_HOST | CUDA_MANAGED)
    }
}

pub use device::CPU;

/// DLDataTypeCode: kinds of numbers, the `code` of a [`DLDataType`].
pub mod code {
    /// kDLInt.
    pub const INT: u8 = 0;
    /// kDLUInt.
    pub const UINT: u8 = 1;
    /// kDLFloat.
    pub const FLOAT: u8 = 2;
    /// kDLOpaqueHandle.
    pub const OPAQUE_HANDLE: u8 = 3;
    /// kDLBfloat.
    pub const BFLOAT: u8 = 4;
    /// kDLComplex: `bits` are those of both parts.
    pub const COMPLEX: u8 = 5;
    /// kDLBool.
    pub const BOOL: u8 = 6;
    /// kDLFloat8_e3m4.
    pub const FLOAT8_E3M4: u8 = 7;
    /// kDLFloat8_e4m3.
    pub const FLOAT8_E4M3: u8 = 8;
    /// kDLFloat8_e4m3b11fnuz.
    pub const FLOAT8_E4M3B11FNUZ: u8 = 9;
    /// kDLFloat8_e4m3fn.
    pub const FLOAT8_E4M3FN: u8 = 10;
    /// kDLFloat8_e4m3fnuz.
    pub const FLOAT8_E4M3FNUZ: u8 = 11;
    /// kDLFloat8_e5m2.
    pub const FLOAT8_E5M2: u8 = 12;
    /// kDLFloat8_e5m2fnuz.
    pub const FLOAT8_E5M2FNUZ: u8 = 13;
    /// kDLFloat8_e8m0fnu.
    pub const FLOAT8_E8M0FNU: u8 = 14;
    /// kDLFloat6_e2m3fn.
    pub const FLOAT6_E2M3FN: u8 = 15;
    /// kDLFloat6_e3m2fn.
    pub const FLOAT6_E3M2FN: u8 = 16;
    /// kDLFloat4_e2m1fn.
    pub const FLOAT4_E2M1FN: u8 = 17;
}

/// DLTensor: a view of memory with another owner.
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

/// DLPackExchangeAPI: functions that return 0 or -1 and never synchronise. A table is static.
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

// SAFETY: a table and the tables it points to are static and never change.
unsafe impl Sync for DLPackExchangeAPI {}

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
