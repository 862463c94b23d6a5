package cudaipc

import (
	"github.com/ebitengine/purego"

	"github.com/baton-ipc/baton/protocol"
)

// LibraryName is what the driver's library is called, as the loader knows it.
const LibraryName = "libcuda.so.1"

// function is an entry of the driver's library.
type function struct {
	name string
	addr uintptr
}

// call calls a function. Addresses among the arguments are converted where they are
// written, so that the compiler keeps what they point to alive and still.
//
//go:uintptrescapes
func (f *function) call(args ...uintptr) error {
	if f.addr == 0 {
		return protocol.Errorf(protocol.CodeUnsupported, "install a newer NVIDIA driver (docs/cuda.md says which)",
			"this driver has no %s", f.name)
	}
	r, _, _ := purego.SyscallN(f.addr, args...)
	return failed(f.name, Result(int32(r)))
}

// api holds the functions that are used. One that the library lacks has no address
// and fails when it is called.
type api struct {
	init, driverVersion                                    function
	deviceCount, deviceGet, deviceName, deviceUUID         function
	deviceAttribute, primaryRetain, push, pop, synchronize function
	memInfo                                                function
	create, release, export, importFD, granularity         function
	reserve, unreserve, mapAt, unmap, setAccess            function
	pointerAttribute, addressRange, ipcGet, ipcClose       function
	alloc, free                                            function
	streamCreate, streamDestroy, streamSync, capturing     function
	writeValue, waitValue                                  function
	register, unregister, hostAddress                      function
	copyIn, copyOut, copyWithin, fill                      function

	// ipcOpen takes a structure by value, which differs between machines.
	ipcOpen func(at *uint64, handle IPCHandle, flags uint32) int32
}

func (a *api) names() map[string]*function {
	return map[string]*function{
		"cuInit": &a.init, "cuDriverGetVersion": &a.driverVersion,
		"cuDeviceGetCount": &a.deviceCount, "cuDeviceGet": &a.deviceGet, "cuDeviceGetName": &a.deviceName,
		"cuDeviceGetUuid_v2": &a.deviceUUID, "cuDeviceGetAttribute": &a.deviceAttribute,
		"cuDevicePrimaryCtxRetain": &a.primaryRetain, "cuCtxPushCurrent_v2": &a.push, "cuCtxPopCurrent_v2": &a.pop,
		"cuCtxSynchronize": &a.synchronize, "cuMemGetInfo_v2": &a.memInfo,
		"cuMemCreate": &a.create, "cuMemRelease": &a.release, "cuMemExportToShareableHandle": &a.export,
		"cuMemImportFromShareableHandle": &a.importFD, "cuMemGetAllocationGranularity": &a.granularity,
		"cuMemAddressReserve": &a.reserve, "cuMemAddressFree": &a.unreserve, "cuMemMap": &a.mapAt, "cuMemUnmap": &a.unmap,
		"cuMemSetAccess": &a.setAccess, "cuPointerGetAttribute": &a.pointerAttribute, "cuMemGetAddressRange_v2": &a.addressRange,
		"cuIpcGetMemHandle": &a.ipcGet, "cuIpcCloseMemHandle": &a.ipcClose, "cuMemAlloc_v2": &a.alloc, "cuMemFree_v2": &a.free,
		"cuStreamCreate": &a.streamCreate, "cuStreamDestroy_v2": &a.streamDestroy, "cuStreamSynchronize": &a.streamSync, "cuStreamIsCapturing": &a.capturing,
		"cuStreamWriteValue64_v2": &a.writeValue, "cuStreamWaitValue64_v2": &a.waitValue,
		"cuMemHostRegister_v2": &a.register, "cuMemHostUnregister": &a.unregister, "cuMemHostGetDevicePointer_v2": &a.hostAddress,
		"cuMemcpyHtoDAsync_v2": &a.copyIn, "cuMemcpyDtoHAsync_v2": &a.copyOut, "cuMemcpyDtoDAsync_v2": &a.copyWithin,
		"cuMemsetD8Async": &a.fill,
	}
}

// load finds the driver's library and its functions.
func load(path string) (*api, error) {
	lib, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeUnsupported,
			"install NVIDIA's driver, or give the container a GPU (--gpus); without one use tensors on the cpu",
			"no CUDA driver on this machine: %w", err)
	}
	a := &api{}
	for name, f := range a.names() {
		f.name = name
		f.addr, _ = purego.Dlsym(lib, name)
	}
	if addr, err := purego.Dlsym(lib, "cuIpcOpenMemHandle_v2"); err == nil {
		purego.RegisterFunc(&a.ipcOpen, addr)
	}
	return a, nil
}
