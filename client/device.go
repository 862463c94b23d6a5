package client

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// deviceSet is what a session has on GPUs: pools of their memory, what is lent of memory that
// others have allocated, and what is released while streams still use it.
type deviceSet struct {
	m     *memory
	life  *life
	from  Devices
	order *deviceOrder
	mu    sync.Mutex // guards the making of all
	all   atomic.Pointer[[]device]
	lend  lender
	retired
}

// device is a GPU that this session uses.
type device struct {
	*gpu
	pool *handles.Pool
}

func newDeviceSet(m *memory, from Devices) *deviceSet {
	d := &deviceSet{m: m, life: m.life, from: from, order: newDeviceOrder(m.pages.session, m.life)}
	d.all.Store(&[]device{})
	d.lend.init(m)
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
	of := device{g, d.m.pools.add(d.m, deviceSource{source{m: d.m}, g})}
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
