//! The driver's functions, a private table of those that are used. The library is loaded at run time, so
//! nothing of CUDA is needed to build, and a machine without a driver gets an error and nothing else.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::result::{check, missing};
use crate::error::Result;

/// A device address.
pub(crate) type Address = u64;

/// Bytes of a legacy handle.
pub(super) const HANDLE_BYTES: usize = 64;

/// CUipcMemHandle.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IpcHandle(pub(super) [u8; HANDLE_BYTES]);
/// A stream, as the driver's functions take it.
pub(crate) type RawStream = usize;

/// CUmemLocation.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Location {
    pub(crate) kind: c_int,
    pub(crate) id: c_int,
}

/// CUmemAllocationProp.
#[repr(C)]
pub(crate) struct Properties {
    pub(crate) kind: c_int,
    pub(crate) handle_types: c_int,
    pub(crate) location: Location,
    pub(crate) win32: usize,
    pub(crate) flags: [u8; 8],
}

/// CUmemAccessDesc.
#[repr(C)]
pub(crate) struct Access {
    pub(crate) location: Location,
    pub(crate) flags: c_int,
}

const _: () = assert!(size_of::<Properties>() == 32 && size_of::<Access>() == 12);

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal ($($arg:ident: $kind:ty),*);)*) => {
        /// What of the driver is used. A function that the library lacks fails when it is called.
        pub(crate) struct Api {
            $($name: Option<unsafe extern "C" fn($($kind),*) -> c_int>,)*
        }

        impl Api {
            /// Finds the driver's library and its functions.
            #[cfg(feature = "cuda")]
            pub(super) fn load() -> Result<Api> {
                // SAFETY: the driver's own library, whose constructors are made to be run so.
                let library = unsafe { libloading::Library::new(super::LIBRARY) }.map_err(super::result::no_driver)?;
                let api = Api {
                    // SAFETY: each has the type that cuda.h gives to the function of this name, and the
                    // library stays.
                    $($name: unsafe { library.get(concat!($symbol, "\0").as_bytes()) }.ok().map(|f| *f),)*
                };
                // Never unloaded, also where it cannot start: it may have threads by then.
                std::mem::forget(library);
                Ok(api)
            }

            $(
                $(#[$doc])*
                /// # Safety
                /// As NVIDIA's documents say of the function.
                pub(super) unsafe fn $name(&self, $($arg: $kind),*) -> Result<()> {
                    let Some(f) = self.$name else { return Err(missing($symbol)) };
                    // SAFETY: as the caller says.
                    check($symbol, unsafe { f($($arg),*) })
                }
            )*
        }
    };
}

functions! {
    init = "cuInit"(flags: c_uint);
    device_count = "cuDeviceGetCount"(n: *mut c_int);
    device_get = "cuDeviceGet"(device: *mut c_int, index: c_int);
    device_name = "cuDeviceGetName"(name: *mut c_char, n: c_int, device: c_int);
    device_uuid = "cuDeviceGetUuid_v2"(uuid: *mut [u8; 16], device: c_int);
    device_attribute = "cuDeviceGetAttribute"(value: *mut c_int, attribute: c_int, device: c_int);
    primary_retain = "cuDevicePrimaryCtxRetain"(context: *mut usize, device: c_int);
    push = "cuCtxPushCurrent_v2"(context: usize);
    pop = "cuCtxPopCurrent_v2"(context: *mut usize);
    synchronize = "cuCtxSynchronize"();
    memory_info = "cuMemGetInfo_v2"(free: *mut usize, total: *mut usize);
    granularity = "cuMemGetAllocationGranularity"(n: *mut usize, of: *const Properties, option: c_int);
    create = "cuMemCreate"(handle: *mut u64, bytes: usize, of: *const Properties, flags: u64);
    release = "cuMemRelease"(handle: u64);
    export = "cuMemExportToShareableHandle"(fd: *mut c_int, handle: u64, kind: c_int, flags: u64);
    import = "cuMemImportFromShareableHandle"(handle: *mut u64, fd: *mut c_void, kind: c_int);
    reserve = "cuMemAddressReserve"(at: *mut Address, bytes: usize, alignment: usize, hint: Address, flags: u64);
    unreserve = "cuMemAddressFree"(at: Address, bytes: usize);
    map = "cuMemMap"(at: Address, bytes: usize, offset: usize, handle: u64, flags: u64);
    unmap = "cuMemUnmap"(at: Address, bytes: usize);
    set_access = "cuMemSetAccess"(at: Address, bytes: usize, of: *const Access, n: usize);
    pointer_attribute = "cuPointerGetAttribute"(to: *mut c_void, attribute: c_int, at: Address);
    address_range = "cuMemGetAddressRange_v2"(base: *mut Address, bytes: *mut usize, at: Address);
    ipc_handle = "cuIpcGetMemHandle"(handle: *mut IpcHandle, at: Address);
    ipc_open = "cuIpcOpenMemHandle_v2"(at: *mut Address, handle: IpcHandle, flags: c_uint);
    ipc_close = "cuIpcCloseMemHandle"(at: Address);
    stream_synchronize = "cuStreamSynchronize"(stream: RawStream);
    is_capturing = "cuStreamIsCapturing"(stream: RawStream, status: *mut c_int);
    write_value = "cuStreamWriteValue64_v2"(stream: RawStream, at: Address, value: u64, flags: c_uint);
    wait_value = "cuStreamWaitValue64_v2"(stream: RawStream, at: Address, value: u64, flags: c_uint);
    register = "cuMemHostRegister_v2"(at: *mut c_void, bytes: usize, flags: c_uint);
    unregister = "cuMemHostUnregister"(at: *mut c_void);
    host_address = "cuMemHostGetDevicePointer_v2"(at: *mut Address, host: *mut c_void, flags: c_uint);
    copy_in = "cuMemcpyHtoDAsync_v2"(to: Address, from: *const c_void, bytes: usize, stream: RawStream);
    copy_out = "cuMemcpyDtoHAsync_v2"(to: *mut c_void, from: Address, bytes: usize, stream: RawStream);
    copy_within = "cuMemcpyDtoDAsync_v2"(to: Address, from: Address, bytes: usize, stream: RawStream);
    fill = "cuMemsetD8Async"(to: Address, value: u8, bytes: usize, stream: RawStream);
}
