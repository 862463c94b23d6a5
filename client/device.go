package client

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/handles"
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

	// Allocation tells of the memory of cudaMalloc's that an address lies in.
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

// WithDevices lets a client have tensors on GPUs: client.WithDevices(d) with d
// from cudaipc.Open.
func WithDevices(d Devices) Option {
	return func(o *options) error { o.devices = d; return nil }
}

// deviceSet is what a client with devices has on them.
type deviceSet struct {
	c    *Client
	from Devices
	mu   sync.Mutex // guards the making of gpus
	gpus atomic.Pointer[[]*gpu]
	lend lender
	deviceOrder
}

// gpu is one device that this client uses.
type gpu struct {
	Accelerator
	name string // to the broker
	pool *handles.Pool
}

func newDeviceSet(c *Client, from Devices) *deviceSet {
	d := &deviceSet{c: c, from: from}
	d.gpus.Store(&[]*gpu{})
	d.lend.init(c)
	d.deviceOrder.init(c)
	return d
}

// gpuOf returns what this client has on a device.
func (d *deviceSet) gpuOf(a Accelerator) *gpu {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := *d.gpus.Load()
	for _, g := range all {
		if g.UUID() == a.UUID() {
			return g
		}
	}
	g := &gpu{Accelerator: a, name: protocol.DeviceCUDA + a.UUID()}
	g.pool = d.c.pools.add(d.c, deviceSource{source{c: d.c}, g})
	all = append(slices.Clone(all), g)
	d.gpus.Store(&all)
	return g
}

// aboutDevice marks an error that says that this process cannot reach a device:
// another reader may.
func aboutDevice(err error, device string) error {
	if e, ok := err.(*protocol.Error); ok {
		return e.With("device", device)
	}
	return err
}

// unreachable tells of such an error.
func unreachable(err error) bool {
	e, ok := err.(*protocol.Error)
	return ok && e.Detail["device"] != nil
}

func errNoDevices(device string) error {
	return aboutDevice(protocol.Errorf(protocol.CodeUnsupported, "connect with client.WithDevices(…) of cudaipc.Open",
		"memory on %s, and this client was connected without devices", device), device)
}

// named finds a device that a user names.
func (c *Client) named(device string) (*gpu, error) {
	if c.devices == nil {
		return nil, errNoDevices(device)
	}
	a, err := c.devices.from.Accelerator(device)
	if err != nil {
		return nil, err
	}
	return c.devices.gpuOf(a), nil
}

// Device puts a tensor on a GPU: "cuda:0" as this process counts them, or
// "cuda:GPU-…" by UUID. Its bytes are reached by Pointer or ToDLPack.
func Device(name string) AllocOption { return func(o *allocOptions) { o.device = name } }

// poolFor returns the pool of what an allocation asks for.
func (c *Client) poolFor(o allocOptions) (*handles.Pool, error) {
	if o.device == "" || o.device == "cpu" {
		if o.pages != 0 {
			return c.pools.ofHugePages(c, o.pages), nil
		}
		return c.pool, nil
	}
	if o.pages != 0 {
		return nil, protocol.Errorf(protocol.CodeInvalid, "leave the huge pages out", "memory on %s has no huge pages", o.device)
	}
	g, err := c.named(o.device)
	if err != nil {
		return nil, err
	}
	return g.pool, nil
}

// Device tells where the tensor's elements are: the device as this process
// numbers it.
func (t *Tensor) Device() dlpack.Device {
	if t.device == nil {
		return dlpack.CPUDevice
	}
	return t.device.gpu.Device()
}

// OrderedByStreams tells whether streams wait for each other where this tensor is handed
// over. False: it is memory of the machine, or the driver of its GPU is too old, and
// the processor waits in their stead, which is as right and takes longer.
func (t *Tensor) OrderedByStreams() bool { return t.device != nil && t.device.gpu.Values() }

// Pointer returns the device address of the first element of a tensor on a GPU;
// 0 where there is none. It may be used by work that follows UseOn, until Release.
func (t *Tensor) Pointer() (uint64, error) {
	if t.over.Load() {
		return 0, errReleased(t.String())
	}
	if t.device == nil {
		return 0, protocol.Errorf(protocol.CodeInvalid, "use Bytes or ToDLPack", "%s is memory of the machine", t)
	}
	if err := t.held.open(t.storage); err != nil {
		return 0, err
	}
	base, err := t.device.address(!t.readonly)
	return base + t.held.storages[t.storage].offset + t.offset, err
}

// deviceSpec describes the export of a tensor on a GPU. Its deleter makes no call
// and counts nothing down, since the stream may still use it then.
func (t *Tensor) deviceSpec(s *dlpack.Spec, opts []ExportOption) error {
	o := exportOptions{stream: LegacyStream}
	for _, f := range opts {
		f.export(&o)
	}
	at, err := t.Pointer()
	if err == nil {
		err = t.UseOn(o.stream)
	}
	if err != nil {
		return err
	}
	s.Device, s.Address = t.Device(), uintptr(at)
	s.Cookie, err = t.held.c.devices.exported(t.held)
	return err
}

// onHost refuses to look into memory of a device.
func (t *Tensor) onHost() error {
	if t.device == nil {
		return nil
	}
	return protocol.Errorf(protocol.CodeUnsupported, "copy it to the host with cudaipc, or hand it on by ToDLPack", "%s lies on %s", t, t.Device())
}
