package devices

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/client/internal/gpu"
	"github.com/baton-ipc/baton/client/internal/life"
	"github.com/baton-ipc/baton/client/internal/memory"
	"github.com/baton-ipc/baton/client/internal/sessionfiles"
	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Broker is what is asked of a broker for memory on GPUs.
type Broker interface {
	Call(ctx context.Context, op string, body, ok any, send ...*sys.FD) ([]*sys.FD, error)
	IsAway() bool
}

// Set is what a session has on GPUs: pools of their memory, what is lent of memory that
// others have allocated, and what is released while streams still use it.
type Set struct {
	broker Broker
	m      *memory.Memory
	files  *sessionfiles.Files
	life   *life.Life
	from   gpu.Devices
	order  *gpu.Order
	mu     sync.Mutex // guards the making of all
	all    atomic.Pointer[[]Device]
	lend   lender
	deferredReleases
}

// Device is a GPU that this session uses.
type Device struct {
	*gpu.GPU
	pool *handles.Pool
}

// New makes what a session has on the GPUs of a driver.
func New(b Broker, p *sessionfiles.Files, l *life.Life, m *memory.Memory, from gpu.Devices) *Set {
	d := &Set{broker: b, files: p, m: m, life: l, from: from, order: gpu.NewOrder(p.Session, l)}
	d.all.Store(&[]Device{})
	d.lend.init(d)
	d.deferredReleases.init()
	return d
}

// of returns what this session has on a device.
func (d *Set) of(a gpu.Accelerator) Device {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := *d.all.Load()
	for _, g := range all {
		if g.UUID() == a.UUID() {
			return g
		}
	}
	g := &gpu.GPU{Accelerator: a, Name: protocol.DeviceCUDA + a.UUID()}
	of := Device{g, d.m.AddPool(deviceSource{memory.NewSource(d.m), d.broker, g})}
	all = append(slices.Clone(all), of)
	d.all.Store(&all)
	return of
}

// named finds a device by the name that a user gives it.
func (d *Set) named(name string) (Device, error) {
	a, err := d.from.Accelerator(name)
	if err != nil {
		return Device{}, err
	}
	return d.of(a), nil
}

// PoolOf returns the pool of a device by the name that a user gives it.
func (d *Set) PoolOf(name string) (*handles.Pool, error) {
	of, err := d.named(name)
	return of.pool, err
}

// SegmentOf makes what a segment of another session is on its device.
func (d *Set) SegmentOf(r *protocol.SegmentReply, seg *shm.Segment) (*gpu.Segment, error) {
	if len(r.Device) < len(protocol.DeviceCUDA) {
		return nil, gpu.NoDevices(r.Device)
	}
	a, err := d.from.AcceleratorOf(r.Device[len(protocol.DeviceCUDA):])
	if err != nil {
		return nil, fault.AboutDevice(err, r.Device)
	}
	return gpu.NewGiven(d.of(a).GPU, r.DeviceID, seg, r.Borrowed), nil
}
