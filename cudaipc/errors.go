package cudaipc

import (
	"fmt"

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
	ErrNoDevice          Result = 100
	ErrInvalidDevice     Result = 101
	ErrInvalidContext    Result = 201
	ErrMapFailed         Result = 205
	ErrPeerAccess        Result = 217
	ErrOperatingSystem   Result = 304
	ErrInvalidHandle     Result = 400
	ErrNotReady          Result = 600
	ErrIllegalAddress    Result = 700
	ErrAlreadyRegistered Result = 712
	ErrNotRegistered     Result = 713
	ErrNotPermitted      Result = 800
	ErrNotSupported      Result = 801
	ErrDriverMismatch    Result = 803
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
	ErrNoDevice:          {"CUDA_ERROR_NO_DEVICE", "no GPU is there", protocol.CodeNotFound, "check CUDA_VISIBLE_DEVICES, and that the container was given a GPU"},
	ErrInvalidDevice:     {"CUDA_ERROR_INVALID_DEVICE", "no such GPU is visible", protocol.CodeNotFound, "make it visible with CUDA_VISIBLE_DEVICES"},
	ErrInvalidContext:    {"CUDA_ERROR_INVALID_CONTEXT", "invalid context", protocol.CodeInvalid, "open another process's handle, in this one's pid namespace"},
	ErrMapFailed:         {"CUDA_ERROR_MAP_FAILED", "mapping failed", protocol.CodeInternal, "see the kernel's log for the driver's reason"},
	ErrPeerAccess:        {"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "the GPUs cannot reach each other's memory", protocol.CodeUnsupported, "use it on the GPU where it lies, or copy it"},
	ErrOperatingSystem:   {"CUDA_ERROR_OPERATING_SYSTEM", "a system call of the driver failed", protocol.CodeInternal, "see the kernel's log; raise the limit of open files"},
	ErrInvalidHandle:     {"CUDA_ERROR_INVALID_HANDLE", "invalid handle", protocol.CodeHandle, "use a handle or stream of this process that still lives"},
	ErrNotReady:          {"CUDA_ERROR_NOT_READY", "not ready", protocol.CodeBusy, "ask again"},
	ErrIllegalAddress:    {"CUDA_ERROR_ILLEGAL_ADDRESS", "a kernel touched memory that it may not", protocol.CodeInternal, "restart the process: its context is lost; a read-only tensor was perhaps written"},
	ErrAlreadyRegistered: {"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "the host memory is registered already", protocol.CodeConflict, "register it once in a process"},
	ErrNotRegistered:     {"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "the host memory is not registered", protocol.CodeInvalid, "register it first"},
	ErrNotPermitted:      {"CUDA_ERROR_NOT_PERMITTED", "not permitted", protocol.CodePermission, "finish the stream's capture first"},
	ErrNotSupported:      {"CUDA_ERROR_NOT_SUPPORTED", "not supported", protocol.CodeUnsupported, "use a newer driver or GPU (docs/cuda.md says which)"},
	ErrDriverMismatch:    {"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "kernel driver and library differ", protocol.CodeUnsupported, "install both of one version, or reboot after an update"},
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
	return protocol.Errorf(m.code, m.remedy, "%s: %w", call, r)
}
