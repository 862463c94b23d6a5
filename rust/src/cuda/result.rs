//! What the driver's statuses mean to callers.

use crate::error::{Code, Error, Result};

/// CUresult: its number and name, what it says, the code that callers match, what to do.
#[rustfmt::skip] // a table
const MEANINGS: &[(i32, &str, &str, Code, &str)] = &[
    (1, "CUDA_ERROR_INVALID_VALUE", "invalid argument", Code::InvalidArgument, "use memory and sizes that the call allows"),
    (2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory", Code::OutOfMemory, "release tensors of this GPU, or end what else uses it (nvidia-smi tells)"),
    (3, "CUDA_ERROR_NOT_INITIALIZED", "the driver is not initialised", Code::Unsupported, SPAWN),
    (4, "CUDA_ERROR_DEINITIALIZED", "the driver has shut down", Code::Closed, "close sessions before the program ends"),
    (34, "CUDA_ERROR_STUB_LIBRARY", "the toolkit's stub was loaded for the driver", Code::Unsupported, "let the loader find the driver's own libcuda.so.1 first (LD_LIBRARY_PATH)"),
    (46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "the GPU is busy or unavailable", Code::Busy, "see whether it is another process's alone (nvidia-smi -q -d COMPUTE)"),
    (100, "CUDA_ERROR_NO_DEVICE", "no GPU is there", Code::NotFound, "check CUDA_VISIBLE_DEVICES, and that the container was given a GPU"),
    (101, "CUDA_ERROR_INVALID_DEVICE", "no such GPU is visible", Code::NotFound, "make it visible with CUDA_VISIBLE_DEVICES"),
    (201, "CUDA_ERROR_INVALID_CONTEXT", "invalid context", Code::InvalidArgument, "use a stream and memory of this GPU"),
    (205, "CUDA_ERROR_MAP_FAILED", "mapping failed", Code::Internal, "see the kernel's log for the driver's reason"),
    (214, "CUDA_ERROR_ECC_UNCORRECTABLE", "memory of the GPU has failed", Code::Internal, "restart the process: its context is lost; see nvidia-smi -q -d ECC"),
    (217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "the GPUs cannot reach each other's memory", Code::Unsupported, "use it on the GPU where it lies, or copy it"),
    (220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", "a link between GPUs has failed", Code::Internal, "restart the process: its context is lost; see nvidia-smi nvlink -e"),
    (304, "CUDA_ERROR_OPERATING_SYSTEM", "a system call of the driver failed", Code::Internal, "see the kernel's log; raise the limit of open files"),
    (400, "CUDA_ERROR_INVALID_HANDLE", "invalid handle", Code::InvalidHandle, "use a handle or stream of this process that still lives"),
    (600, "CUDA_ERROR_NOT_READY", "not ready", Code::Busy, "ask again"),
    (700, "CUDA_ERROR_ILLEGAL_ADDRESS", "a kernel touched memory that it may not", Code::Internal, "restart the process: its context is lost; a read-only tensor was perhaps written"),
    (702, "CUDA_ERROR_LAUNCH_TIMEOUT", "a kernel ran longer than the display's watchdog allows", Code::Internal, LOST),
    (709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "the context was destroyed", Code::Internal, "restart the process, and do not reset the device while tensors of it are there"),
    (710, "CUDA_ERROR_ASSERT", "an assertion in a kernel failed", Code::Internal, LOST),
    (712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "the host memory is registered already", Code::Conflict, "register it once in a process"),
    (713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "the host memory is not registered", Code::InvalidArgument, "register it first"),
    (714, "CUDA_ERROR_HARDWARE_STACK_ERROR", "a kernel's stack was damaged", Code::Internal, LOST),
    (715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "a kernel met an instruction that is none", Code::Internal, LOST),
    (716, "CUDA_ERROR_MISALIGNED_ADDRESS", "a kernel used an address that is not aligned", Code::Internal, LOST),
    (717, "CUDA_ERROR_INVALID_ADDRESS_SPACE", "a kernel used an address of another kind of memory", Code::Internal, LOST),
    (718, "CUDA_ERROR_INVALID_PC", "a kernel jumped to no code", Code::Internal, LOST),
    (719, "CUDA_ERROR_LAUNCH_FAILED", "a kernel failed", Code::Internal, LOST),
    (800, "CUDA_ERROR_NOT_PERMITTED", "not permitted", Code::PermissionDenied, "see what NVIDIA's documents say of the call"),
    (801, "CUDA_ERROR_NOT_SUPPORTED", "not supported", Code::Unsupported, "use a newer driver or GPU (docs/cuda.md says which)"),
    (802, "CUDA_ERROR_SYSTEM_NOT_READY", "the system is not ready", Code::Unsupported, "start what the GPUs need (nvidia-fabricmanager)"),
    (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "kernel driver and library differ", Code::Unsupported, "install both of one version, or reboot after an update"),
    (804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "the compatibility library does not know this GPU", Code::Unsupported, "use the driver's own libcuda.so.1, or a newer driver"),
    (900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "not permitted while a stream is captured", Code::Conflict, "do it before the capture begins or after it has ended"),
    (906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "the legacy stream would wait for one that is captured", Code::Conflict, "do it before the capture begins or after it has ended, or by another stream"),
    (999, "CUDA_ERROR_UNKNOWN", "unknown error", Code::Internal, "see the kernel's log for the driver's reason"),
];

/// What statuses mean where what another process gave is at fault: the call, the statuses, code and remedy.
#[rustfmt::skip] // a table
const BLAMED: &[(&str, &[i32], Code, &str)] = &[
    ("cuMemImportFromShareableHandle", &[1, 101, 304, 400, 800, 999], Code::InvalidHandle, "restart the process that made it, or make its GPU visible here (CUDA_VISIBLE_DEVICES)"),
    ("cuIpcOpenMemHandle_v2", &[1, 101, 205, 304, 400, 999], Code::InvalidHandle, "have it lent anew: its owner has ended, or it is memory of another GPU"),
    ("cuIpcOpenMemHandle_v2", &[201], Code::InvalidArgument, "open another process's memory, in this one's pid namespace"),
];

/// The remedy of what ends a context: each later call fails like the first.
const LOST: &str = "restart the process: its context is lost";

pub(super) const SPAWN: &str = "start processes with spawn: CUDA does not survive a fork";

/// The error of a call, typed for Baton's callers.
pub(super) fn check(call: &str, status: i32) -> Result<()> {
    if status == 0 {
        return Ok(());
    }
    let Some((_, name, text, code, remedy)) = MEANINGS.iter().find(|m| m.0 == status) else {
        let what = format!("{call}: CUDA error {status}");
        return Err(Error::new(Code::Internal, "see NVIDIA's list of CUresult for the number", what));
    };
    let blamed = BLAMED.iter().find(|b| b.0 == call && b.1.contains(&status));
    let (code, remedy) = blamed.map_or((code, remedy), |(.., code, remedy)| (code, remedy));
    Err(Error::new(*code, *remedy, format!("{call}: {text} ({name})")))
}

/// The error of a function that the driver's library lacks.
pub(super) fn missing(symbol: &str) -> Error {
    let what = format!("this driver has no {symbol}");
    Error::new(Code::Unsupported, "install a newer NVIDIA driver (docs/cuda.md says which)", what)
}

/// The error of a machine without a driver.
#[cfg(feature = "cuda")]
pub(super) fn no_driver(why: impl std::fmt::Display) -> Error {
    let remedy = "install NVIDIA's driver, or give the container a GPU (--gpus); without one use tensors on the cpu";
    Error::new(Code::Unsupported, remedy, format!("no CUDA driver on this machine: {why}"))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::{BLAMED, MEANINGS, check};

    #[derive(Debug, Deserialize)]
    struct Row {
        call: Option<String>,
        status: i32,
        name: String,
        text: String,
        code: String,
        remedy: String,
    }

    #[test]
    fn statuses_mean_the_same_as_in_go() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../cudaipc/testdata/statuses.json");
        let rows: Vec<Row> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        for r in &rows {
            let call = r.call.as_deref().unwrap_or("cuTest");
            let e = check(call, r.status).unwrap_err();
            assert_eq!((e.code().as_str(), e.remedy()), (r.code.as_str(), r.remedy.as_str()), "{r:?}");
            assert_eq!(e.message(), format!("{call}: {} ({})", r.text, r.name));
        }
        let blamed: usize = BLAMED.iter().map(|b| b.1.len()).sum();
        assert_eq!(rows.len(), MEANINGS.len() + blamed);
    }
}
