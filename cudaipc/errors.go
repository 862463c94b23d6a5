package cudaipc

import (
	"fmt"
	"slices"

	"github.com/baton-ipc/baton/protocol"
)

// Result is a status of the driver's. As an error it is the cause of what this
// package returns: errors.Is(err, cudaipc.ErrOutOfMemory) tells.
type Result int32

// Statuses that callers may want to tell apart.
const (
	ErrInvalidValue      Result = 1
	ErrOutOfMemory       Result = 2
	ErrNotInitialized    Result = 3
	ErrDeinitialized     Result = 4
	ErrStubLibrary       Result = 34
	ErrUnavailable       Result = 46
	ErrNoDevice          Result = 100
	ErrInvalidDevice     Result = 101
	ErrInvalidContext    Result = 201
	ErrMapFailed         Result = 205
	ErrECC               Result = 214
	ErrPeerAccess        Result = 217
	ErrNVLink            Result = 220
	ErrOperatingSystem   Result = 304
	ErrInvalidHandle     Result = 400
	ErrNotReady          Result = 600
	ErrIllegalAddress    Result = 700
	ErrLaunchTimeout     Result = 702
	ErrContextDestroyed  Result = 709
	ErrAssert            Result = 710
	ErrAlreadyRegistered Result = 712
	ErrNotRegistered     Result = 713
	ErrHardwareStack     Result = 714
	ErrInstruction       Result = 715
	ErrMisaligned        Result = 716
	ErrAddressSpace      Result = 717
	ErrProgramCounter    Result = 718
	ErrLaunchFailed      Result = 719
	ErrNotPermitted      Result = 800
	ErrNotSupported      Result = 801
	ErrSystemNotReady    Result = 802
	ErrDriverMismatch    Result = 803
	ErrCompatibility     Result = 804
	ErrCapture           Result = 900
	ErrCaptureImplicit   Result = 906
	ErrUnknown           Result = 999
)

// meaning is what a status is called, which code callers match, and what to do.
type meaning struct {
	name, text string
	code       protocol.Code
	remedy     string
}

var meanings = map[Result]meaning{
	ErrInvalidValue:      {"CUDA_ERROR_INVALID_VALUE", "invalid argument", protocol.CodeInvalid, "use memory and sizes that the call allows"},
	ErrOutOfMemory:       {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory", protocol.CodeOutOfMemory, "release tensors of this GPU, or end what else uses it (nvidia-smi tells)"},
	ErrNotInitialized:    {"CUDA_ERROR_NOT_INITIALIZED", "the driver is not initialised", protocol.CodeUnsupported, "start processes with spawn: CUDA does not survive a fork"},
	ErrDeinitialized:     {"CUDA_ERROR_DEINITIALIZED", "the driver has shut down", protocol.CodeClosed, "close sessions before the program ends"},
	ErrStubLibrary:       {"CUDA_ERROR_STUB_LIBRARY", "the toolkit's stub was loaded for the driver", protocol.CodeUnsupported, "let the loader find the driver's own libcuda.so.1 first (LD_LIBRARY_PATH)"},
	ErrUnavailable:       {"CUDA_ERROR_DEVICE_UNAVAILABLE", "the GPU is busy or unavailable", protocol.CodeBusy, "see whether it is another process's alone (nvidia-smi -q -d COMPUTE)"},
	ErrNoDevice:          {"CUDA_ERROR_NO_DEVICE", "no GPU is there", protocol.CodeNotFound, "check CUDA_VISIBLE_DEVICES, and that the container was given a GPU"},
	ErrInvalidDevice:     {"CUDA_ERROR_INVALID_DEVICE", "no such GPU is visible", protocol.CodeNotFound, "make it visible with CUDA_VISIBLE_DEVICES"},
	ErrInvalidContext:    {"CUDA_ERROR_INVALID_CONTEXT", "invalid context", protocol.CodeInvalid, "use a stream and memory of this GPU"},
	ErrMapFailed:         {"CUDA_ERROR_MAP_FAILED", "mapping failed", protocol.CodeInternal, "see the kernel's log for the driver's reason"},
	ErrECC:               {"CUDA_ERROR_ECC_UNCORRECTABLE", "memory of the GPU has failed", protocol.CodeInternal, "restart the process: its context is lost; see nvidia-smi -q -d ECC"},
	ErrPeerAccess:        {"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "the GPUs cannot reach each other's memory", protocol.CodeUnsupported, "use it on the GPU where it lies, or copy it"},
	ErrNVLink:            {"CUDA_ERROR_NVLINK_UNCORRECTABLE", "a link between GPUs has failed", protocol.CodeInternal, "restart the process: its context is lost; see nvidia-smi nvlink -e"},
	ErrOperatingSystem:   {"CUDA_ERROR_OPERATING_SYSTEM", "a system call of the driver failed", protocol.CodeInternal, "see the kernel's log; raise the limit of open files"},
	ErrInvalidHandle:     {"CUDA_ERROR_INVALID_HANDLE", "invalid handle", protocol.CodeHandle, "use a handle or stream of this process that still lives"},
	ErrNotReady:          {"CUDA_ERROR_NOT_READY", "not ready", protocol.CodeBusy, "ask again"},
	ErrIllegalAddress:    {"CUDA_ERROR_ILLEGAL_ADDRESS", "a kernel touched memory that it may not", protocol.CodeInternal, "restart the process: its context is lost; a read-only tensor was perhaps written"},
	ErrLaunchTimeout:     {"CUDA_ERROR_LAUNCH_TIMEOUT", "a kernel ran longer than the display's watchdog allows", protocol.CodeInternal, lost},
	ErrContextDestroyed:  {"CUDA_ERROR_CONTEXT_IS_DESTROYED", "the context was destroyed", protocol.CodeInternal, "restart the process, and do not reset the device while tensors of it are there"},
	ErrAssert:            {"CUDA_ERROR_ASSERT", "an assertion in a kernel failed", protocol.CodeInternal, lost},
	ErrAlreadyRegistered: {"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "the host memory is registered already", protocol.CodeConflict, "register it once in a process"},
	ErrNotRegistered:     {"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "the host memory is not registered", protocol.CodeInvalid, "register it first"},
	ErrHardwareStack:     {"CUDA_ERROR_HARDWARE_STACK_ERROR", "a kernel's stack was damaged", protocol.CodeInternal, lost},
	ErrInstruction:       {"CUDA_ERROR_ILLEGAL_INSTRUCTION", "a kernel met an instruction that is none", protocol.CodeInternal, lost},
	ErrMisaligned:        {"CUDA_ERROR_MISALIGNED_ADDRESS", "a kernel used an address that is not aligned", protocol.CodeInternal, lost},
	ErrAddressSpace:      {"CUDA_ERROR_INVALID_ADDRESS_SPACE", "a kernel used an address of another kind of memory", protocol.CodeInternal, lost},
	ErrProgramCounter:    {"CUDA_ERROR_INVALID_PC", "a kernel jumped to no code", protocol.CodeInternal, lost},
	ErrLaunchFailed:      {"CUDA_ERROR_LAUNCH_FAILED", "a kernel failed", protocol.CodeInternal, lost},
	ErrNotPermitted:      {"CUDA_ERROR_NOT_PERMITTED", "not permitted", protocol.CodePermission, "see what NVIDIA's documents say of the call"},
	ErrNotSupported:      {"CUDA_ERROR_NOT_SUPPORTED", "not supported", protocol.CodeUnsupported, "use a newer driver or GPU (docs/cuda.md says which)"},
	ErrSystemNotReady:    {"CUDA_ERROR_SYSTEM_NOT_READY", "the system is not ready", protocol.CodeUnsupported, "start what the GPUs need (nvidia-fabricmanager)"},
	ErrDriverMismatch:    {"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "kernel driver and library differ", protocol.CodeUnsupported, "install both of one version, or reboot after an update"},
	ErrCompatibility:     {"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "the compatibility library does not know this GPU", protocol.CodeUnsupported, "use the driver's own libcuda.so.1, or a newer driver"},
	ErrCapture:           {"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "not permitted while a stream is captured", protocol.CodeConflict, "do it before the capture begins or after it has ended"},
	ErrCaptureImplicit:   {"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "the legacy stream would wait for one that is captured", protocol.CodeConflict, "do it before the capture begins or after it has ended, or by another stream"},
	ErrUnknown:           {"CUDA_ERROR_UNKNOWN", "unknown error", protocol.CodeInternal, "see the kernel's log for the driver's reason"},
}

// lost is the remedy of what ends a context: each later call fails like the first.
const lost = "restart the process: its context is lost"

// blamed says what statuses mean where what another process gave is at fault.
var blamed = []struct {
	call     string
	statuses []Result
	code     protocol.Code
	remedy   string
}{
	{"cuMemImportFromShareableHandle", []Result{ErrInvalidValue, ErrInvalidDevice, ErrOperatingSystem, ErrInvalidHandle, ErrNotPermitted, ErrUnknown},
		protocol.CodeHandle, "restart the process that made it, or make its GPU visible here (CUDA_VISIBLE_DEVICES)"},
	{"cuIpcOpenMemHandle_v2", []Result{ErrInvalidValue, ErrInvalidDevice, ErrMapFailed, ErrOperatingSystem, ErrInvalidHandle, ErrUnknown},
		protocol.CodeHandle, "have it lent anew: its owner has ended, or it is memory of another GPU"},
	{"cuIpcOpenMemHandle_v2", []Result{ErrInvalidContext},
		protocol.CodeInvalid, "open another process's memory, in this one's pid namespace"},
}

// Error gives the driver's name of the status and what it means.
func (r Result) Error() string {
	if m, ok := meanings[r]; ok {
		return fmt.Sprintf("%s (%s)", m.text, m.name)
	}
	return fmt.Sprintf("CUDA error %d", int32(r))
}

// failed makes the error of a call: typed for Baton's callers, with the status
// as its cause.
func failed(call string, r Result) error {
	if r == 0 {
		return nil
	}
	m, ok := meanings[r]
	if !ok {
		m.code, m.remedy = protocol.CodeInternal, "see NVIDIA's list of CUresult for the number"
	}
	for _, b := range blamed {
		if b.call == call && slices.Contains(b.statuses, r) {
			m.code, m.remedy = b.code, b.remedy
		}
	}
	return protocol.Errorf(m.code, m.remedy, "%s: %w", call, r)
}
