package client

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// devicesBroker is what is asked of a broker for memory on GPUs.
type devicesBroker interface {
	Call(ctx context.Context, op string, body, ok any, send ...*sys.FD) ([]*sys.FD, error)
	IsAway() bool
}

// deviceSet is what a session has on GPUs: pools of their memory, what is lent of memory that
// others have allocated, and what is released while streams still use it.
type deviceSet struct {
	broker devicesBroker
	m      *memory
	pages  *pages
	life   *life
	from   Devices
	order  *deviceOrder
	mu     sync.Mutex // guards the making of all
	all    atomic.Pointer[[]device]
	lend   lender
	retired
}

// device is a GPU that this session uses.
type device struct {
	*gpu
	pool *handles.Pool
}

func newDeviceSet(b devicesBroker, p *pages, l *life, m *memory, from Devices) *deviceSet {
	d := &deviceSet{broker: b, pages: p, m: m, life: l, from: from, order: newDeviceOrder(p.session, l)}
	d.all.Store(&[]device{})
	d.lend.init(d)
	d.retired.init()
	return d
}

// of returns what this session has on a device.
func (d *deviceSet) of(a Accelerator) device {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := *d.all.Load()
	for _, g := range all {
		if g.UUID() == a.UUID() {
			return g
		}
	}
	g := &gpu{Accelerator: a, name: protocol.DeviceCUDA + a.UUID()}
	of := device{g, d.m.addPool(deviceSource{newSource(d.m), d.broker, g})}
	all = append(slices.Clone(all), of)
	d.all.Store(&all)
	return of
}

// named finds a device by the name that a user gives it.
func (d *deviceSet) named(name string) (device, error) {
	a, err := d.from.Accelerator(name)
	if err != nil {
		return device{}, err
	}
	return d.of(a), nil
}

// poolOf returns the pool of a device by the name that a user gives it.
func (d *deviceSet) poolOf(name string) (*handles.Pool, error) {
	of, err := d.named(name)
	return of.pool, err
}

// SegmentOf makes what a segment of another session is on its device.
func (d *deviceSet) SegmentOf(r *protocol.SegmentReply, seg *shm.Segment) (*deviceSegment, error) {
	if len(r.Device) < len(protocol.DeviceCUDA) {
		return nil, errNoDevices(r.Device)
	}
	a, err := d.from.AcceleratorOf(r.Device[len(protocol.DeviceCUDA):])
	if err != nil {
		return nil, aboutDevice(err, r.Device)
	}
	return newGivenSegment(d.of(a).gpu, r.DeviceID, seg, r.Borrowed), nil
}
