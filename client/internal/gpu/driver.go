package gpu

import (
	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// Devices are the GPUs of this process: what cudaipc.Open returns. This package
// does not load a driver itself, so that programs without GPUs stay static.
type Devices interface {
	// Accelerator finds a GPU by the name that a user gives it, such as cuda:0.
	Accelerator(name string) (Accelerator, error)
	// AcceleratorOf finds a GPU by its UUID.
	AcceleratorOf(uuid string) (Accelerator, error)
}

// Accelerator is one GPU: how memory on it is made, shared and mapped, and how
// its streams tell and wait for how far they have come. Streams are named as
// DLPack does.
type Accelerator interface {
	UUID() string
	// Device is what DLPack calls it in this process.
	Device() dlpack.Device
	// Granularity is what the bytes of memory are a multiple of.
	Granularity() (uint64, error)
	Create(bytes uint64) (DeviceMemory, error)
	// Import takes the memory of a descriptor, which stays the caller's.
	Import(fd *sys.FD, bytes uint64) (DeviceMemory, error)

	// Allocation describes the memory of cudaMalloc's that an address lies in.
	// ErrUnsupported: it is of another kind, which other processes cannot open.
	Allocation(at uint64) (Allocation, error)
	// OpenLent opens another process's allocation: where it begins here, and how
	// many bytes it has. Each open needs its CloseLent.
	OpenLent(IPCHandle) (at, bytes uint64, err error)
	CloseLent(at uint64) error

	// Values tells whether streams can write and wait for values.
	Values() bool
	// Register makes a page of host memory known and returns its device address.
	Register(page []byte, write bool) (uint64, error)
	Unregister(page []byte) error
	WriteValue(stream, at, value uint64) error
	WaitValue(stream, at, value uint64) error
	SynchronizeStream(stream uint64) error
	// Synchronize waits for all work of this process on the GPU.
	Synchronize() error
	// Fill makes a stream set bytes.
	Fill(stream, at uint64, value byte, bytes uint64) error
}

// DeviceMemory is memory on a GPU.
type DeviceMemory interface {
	Export() (*sys.FD, error)
	// Map returns the address of a new mapping.
	Map(write bool) (uint64, error)
	// Close ends the mappings, and this process's hold on the memory.
	Close() error
}

// GPU is one device that this client uses.
type GPU struct {
	Accelerator
	Name string // to the broker
}

// NoDevices is the error of memory on a device, of a client that has none.
func NoDevices(device string) error {
	return fault.AboutDevice(protocol.Errorf(protocol.CodeUnsupported, "connect with client.WithDevices(…) of cudaipc.Open",
		"memory on %s, and this client was connected without devices", device), device)
}
