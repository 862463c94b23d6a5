package cudaipc

import (
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/sys"
)

// A Driver is what client.WithDevices takes.
var _ client.Devices = (*Driver)(nil)

// Accelerator finds a GPU for a client, by the names of Device. Errors are those of Device.
func (d *Driver) Accelerator(name string) (client.Accelerator, error) {
	device, err := d.Device(name)
	if err != nil {
		return nil, err
	}
	return accelerator{device}, nil
}

// AcceleratorOf finds a GPU for a client by its UUID. ErrNotFound: this process does not see it.
func (d *Driver) AcceleratorOf(uuid string) (client.Accelerator, error) {
	device, err := d.ByUUID(uuid)
	if err != nil {
		return nil, err
	}
	return accelerator{device}, nil
}

// accelerator is a Device as a client sees it.
type accelerator struct{ gpu *Device }

func (a accelerator) UUID() string { return a.gpu.UUID.String() }

func (a accelerator) Device() dlpack.Device { // as this process counts, for its frameworks
	return dlpack.Device{Type: dlpack.CUDA, ID: int32(a.gpu.Index)}
}

func (a accelerator) Granularity() (uint64, error) { return a.gpu.Granularity() }

func (a accelerator) Values() bool { return a.gpu.Values() }

func (a accelerator) Synchronize() error { return a.gpu.Synchronize() }

func (a accelerator) Register(page []byte, write bool) (uint64, error) {
	return a.gpu.Register(page, write)
}

func (a accelerator) Unregister(page []byte) error { return a.gpu.Unregister(page) }

func (a accelerator) Create(bytes uint64) (client.DeviceMemory, error) {
	s, err := a.gpu.NewSlab(bytes)
	if err != nil {
		return nil, err
	}
	return &memory{Slab: s}, nil
}

func (a accelerator) Import(fd *sys.FD, bytes uint64) (client.DeviceMemory, error) {
	n, err := fd.Acquire()
	if err != nil {
		return nil, err
	}
	defer fd.Release()
	s, err := a.gpu.Import(n, bytes)
	if err != nil {
		return nil, err
	}
	return &memory{Slab: s}, nil
}

func (a accelerator) Allocation(at uint64) (client.Allocation, error) {
	b, err := a.gpu.Lend(at)
	return client.Allocation{Base: at - b.Offset, Bytes: b.Bytes, Handle: b.Handle.Bytes}, err
}

func (a accelerator) OpenLent(h client.IPCHandle) (at, bytes uint64, err error) {
	if at, err = a.gpu.OpenBorrowed(IPCHandle{h}); err != nil {
		return 0, 0, err
	}
	if bytes, err = a.gpu.rangeFrom(at); err != nil {
		bytes = 1 << 62 // a driver that does not tell: what its lender says holds
	}
	return at, bytes, nil
}

func (a accelerator) CloseLent(at uint64) error { return a.gpu.CloseBorrowed(at) }

func (a accelerator) Fill(stream, at uint64, value byte, bytes uint64) error {
	return a.gpu.Fill(at, value, bytes, Stream(stream))
}

func (a accelerator) WriteValue(stream, at, value uint64) error {
	return a.gpu.WriteValue(Stream(stream), at, value)
}

func (a accelerator) WaitValue(stream, at, value uint64) error {
	return a.gpu.WaitValue(Stream(stream), at, value)
}

func (a accelerator) SynchronizeStream(stream uint64) error {
	return a.gpu.SynchronizeStream(Stream(stream))
}

// memory is a slab with its mappings. The client makes one call at a time.
type memory struct {
	*Slab
	mappings []*Mapping
}

func (m *memory) Map(write bool) (uint64, error) {
	mapping, err := m.Slab.Map(write)
	if err != nil {
		return 0, err
	}
	m.mappings = append(m.mappings, mapping)
	return mapping.Address, nil
}

func (m *memory) Close() error {
	var first error
	for _, mapping := range m.mappings {
		if err := mapping.Close(); err != nil && first == nil {
			first = err
		}
	}
	m.mappings = nil
	if err := m.Slab.Close(); err != nil && first == nil {
		first = err
	}
	return first
}
