package cudaipc

import "github.com/baton-ipc/baton/protocol"

// IPCHandle is a legacy handle: it names an allocation of cudaMalloc's in another
// living process.
type IPCHandle struct{ Bytes [64]byte }

// Borrowed is what another process can make of memory that a framework allocated
// here: the handle of the allocation, and where in it the memory begins.
type Borrowed struct {
	Handle IPCHandle
	Offset uint64
	Bytes  uint64 // of the allocation
}

const attributeLegacyIPC = 10 // CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE

// Malloc allocates as cudaMalloc does; Free ends it. ErrOutOfMemory: the GPU has too little that is
// free.
func (d *Device) Malloc(bytes uint64) (uint64, error) {
	var at uint64
	err := d.within(func() (err error) {
		at, err = d.api.memAlloc(bytes)
		return err
	})
	return at, err
}

// Free ends an allocation of Malloc's. No other process may have it open.
func (d *Device) Free(at uint64) error {
	return d.within(func() error { return d.api.free.call(uintptr(at)) })
}

// Lend makes a handle of the allocation that an address lies in. ErrUnsupported:
// it is of another kind than cudaMalloc's (a pool, expandable segments, a slab).
func (d *Device) Lend(at uint64) (b Borrowed, err error) {
	err = d.within(func() error {
		capable, err := d.api.getInt(&d.api.pointerAttribute, attributeLegacyIPC, uintptr(at))
		if err != nil {
			return err
		}
		if capable == 0 {
			return protocol.Errorf(protocol.CodeUnsupported,
				"copy it into a tensor of Baton's, or allocate it by cudaMalloc (torch: expandable_segments:False, no cudaMallocAsync)",
				"the memory at %#x cannot be lent to another process", at)
		}
		base, bytes, err := d.api.getRange(at)
		if err != nil {
			return err
		}
		b.Offset, b.Bytes = at-base, bytes
		b.Handle, err = d.api.getIPCHandle(base)
		return err
	})
	return b, err
}

// OpenBorrowed opens another process's memory and returns the address of the allocation's begin.
// Opening it again gives the same address; each open needs its CloseBorrowed. It ends with the
// process that lent it. Errors: ErrInvalidHandle where that process has ended, or lent memory of
// another GPU; ErrInvalid for memory of this process; ErrUnsupported for a driver without such
// handles.
func (d *Device) OpenBorrowed(h IPCHandle) (uint64, error) {
	var at uint64
	err := d.within(func() error {
		if d.api.ipcOpen == nil {
			return protocol.Errorf(protocol.CodeUnsupported, "install a newer NVIDIA driver", "this driver cannot open other processes' memory")
		}
		return failed("cuIpcOpenMemHandle_v2", Result(d.api.ipcOpen(&at, h, lazyPeerAccess)))
	})
	return at, err
}

// rangeFrom returns the bytes of an allocation from an address on.
func (d *Device) rangeFrom(at uint64) (bytes uint64, err error) {
	err = d.within(func() error {
		base, all, err := d.api.getRange(at)
		bytes = base + all - at
		return err
	})
	return bytes, err
}

// CloseBorrowed ends one open.
func (d *Device) CloseBorrowed(at uint64) error {
	return d.within(func() error { return d.api.ipcClose.call(uintptr(at)) })
}
