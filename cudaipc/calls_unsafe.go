package cudaipc

import "unsafe"

// The calls that take addresses. Sound throughout: an address is converted in the
// argument list of call, which is marked uintptrescapes, so its variable is on the
// heap and lives until the call returns; the driver keeps none of them, but for
// registered pages, which are no Go memory. Structures have the layout of cuda.h.

func (a *api) getInt(f *function, args ...uintptr) (n int32, err error) {
	switch len(args) {
	case 0:
		err = f.call(uintptr(unsafe.Pointer(&n)))
	case 1:
		err = f.call(uintptr(unsafe.Pointer(&n)), args[0])
	default:
		err = f.call(uintptr(unsafe.Pointer(&n)), args[0], args[1])
	}
	return n, err
}

func (a *api) getName(device int32) (string, error) {
	var text [128]byte
	err := a.deviceName.call(uintptr(unsafe.Pointer(&text)), uintptr(len(text)), uintptr(device))
	for i, c := range text {
		if c == 0 {
			return string(text[:i]), err
		}
	}
	return string(text[:]), err
}

func (a *api) getUUID(device int32) (u UUID, err error) {
	err = a.deviceUUID.call(uintptr(unsafe.Pointer(&u)), uintptr(device))
	return u, err
}

func (a *api) retain(device int32) (context uintptr, err error) {
	err = a.primaryRetain.call(uintptr(unsafe.Pointer(&context)), uintptr(device))
	return context, err
}

func (a *api) getMemInfo() (free, total uint64, err error) {
	err = a.memInfo.call(uintptr(unsafe.Pointer(&free)), uintptr(unsafe.Pointer(&total)))
	return free, total, err
}

// location is CUmemLocation.
type location struct{ kind, id int32 }

// properties is CUmemAllocationProp.
type properties struct {
	kind        int32
	handleTypes int32
	location    location
	win32       uintptr
	flags       [8]byte
}

// access is CUmemAccessDesc.
type access struct {
	location location
	flags    int32
}

const (
	pinned         = 1 // CU_MEM_ALLOCATION_TYPE_PINNED
	onDevice       = 1 // CU_MEM_LOCATION_TYPE_DEVICE
	posixFD        = 1 // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
	accessRead     = 1
	accessBoth     = 3
	hostPortable   = 1
	hostDeviceMap  = 2
	hostReadOnly   = 8
	lazyPeerAccess = 1
)

func propertiesOf(device int32) *properties {
	return &properties{kind: pinned, handleTypes: posixFD, location: location{onDevice, device}}
}

func (a *api) getGranularity(device int32) (n uint64, err error) {
	err = a.granularity.call(uintptr(unsafe.Pointer(&n)), uintptr(unsafe.Pointer(propertiesOf(device))), 0)
	return n, err
}

func (a *api) memCreate(device int32, bytes uint64) (handle uint64, err error) {
	err = a.create.call(uintptr(unsafe.Pointer(&handle)), uintptr(bytes), uintptr(unsafe.Pointer(propertiesOf(device))), 0)
	return handle, err
}

func (a *api) memExport(handle uint64) (fd int32, err error) {
	err = a.export.call(uintptr(unsafe.Pointer(&fd)), uintptr(handle), posixFD, 0)
	return fd, err
}

func (a *api) memImport(fd int) (handle uint64, err error) {
	err = a.importFD.call(uintptr(unsafe.Pointer(&handle)), uintptr(fd), posixFD)
	return handle, err
}

func (a *api) memReserve(bytes uint64) (at uint64, err error) {
	err = a.reserve.call(uintptr(unsafe.Pointer(&at)), uintptr(bytes), 0, 0, 0)
	return at, err
}

func (a *api) memAccess(device int32, at, bytes uint64, flags int32) error {
	desc := &access{location{onDevice, device}, flags}
	return a.setAccess.call(uintptr(at), uintptr(bytes), uintptr(unsafe.Pointer(desc)), 1)
}

func (a *api) memAlloc(bytes uint64) (at uint64, err error) {
	err = a.alloc.call(uintptr(unsafe.Pointer(&at)), uintptr(bytes))
	return at, err
}

func (a *api) getRange(at uint64) (base, bytes uint64, err error) {
	err = a.addressRange.call(uintptr(unsafe.Pointer(&base)), uintptr(unsafe.Pointer(&bytes)), uintptr(at))
	return base, bytes, err
}

func (a *api) getIPCHandle(at uint64) (h IPCHandle, err error) {
	err = a.ipcGet.call(uintptr(unsafe.Pointer(&h)), uintptr(at))
	return h, err
}

func (a *api) newStream(flags uintptr) (stream uint64, err error) {
	err = a.streamCreate.call(uintptr(unsafe.Pointer(&stream)), flags)
	return stream, err
}

func (a *api) isCapturing(stream uint64) (bool, error) {
	var status int32
	err := a.capturing.call(uintptr(stream), uintptr(unsafe.Pointer(&status)))
	return status != 0, err
}

func (a *api) hostRegister(b []byte, flags uintptr) error {
	return a.register.call(uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), flags)
}

func (a *api) hostUnregister(b []byte) error {
	return a.unregister.call(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}

func (a *api) getHostAddress(b []byte) (at uint64, err error) {
	err = a.hostAddress.call(uintptr(unsafe.Pointer(&at)), uintptr(unsafe.Pointer(unsafe.SliceData(b))), 0)
	return at, err
}

func (a *api) copyToDevice(to uint64, from []byte, stream uint64) error {
	return a.copyIn.call(uintptr(to), uintptr(unsafe.Pointer(unsafe.SliceData(from))), uintptr(len(from)), uintptr(stream))
}

func (a *api) copyToHost(to []byte, from uint64, stream uint64) error {
	return a.copyOut.call(uintptr(unsafe.Pointer(unsafe.SliceData(to))), uintptr(from), uintptr(len(to)), uintptr(stream))
}
