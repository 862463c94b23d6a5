package memory

import (
	"time"

	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// device is a GPU on which sessions have memory. The broker keeps descriptors and
// figures; it never loads the driver. The number stands in shared pages, the name
// means the same to all processes.
type device struct {
	id   int32
	name string // cuda:GPU-…
	used uint64 // bytes of all its segments
}

// deviceOf finds a device by its name, or gives it the next number.
func (m *Memory) deviceOf(name string) (*device, error) {
	if err := protocol.CheckDevice(name); err != nil {
		return nil, err
	}
	for _, d := range m.devices {
		if d.name == name {
			return d, nil
		}
	}
	if len(m.devices) == record.MaxDevices {
		return nil, protocol.Errorf(protocol.CodeTooMany, "restart the broker", "it knows %d devices and has room for no more", record.MaxDevices)
	}
	d := &device{id: int32(len(m.devices)), name: name}
	m.store.Record.SetDevice(d.id, name)
	m.devices = append(m.devices, d)
	return d, nil
}

// grantDevice lets a session make memory on a device, which it offers afterwards.
// The quota is asked first, so that what is refused was never taken.
func (m *Memory) grantDevice(s *Account, r *protocol.Grant, bytes uint64, last bool) (reply protocol.GrantReply, err error) {
	d, err := m.deviceOf(r.Device)
	if err != nil {
		return reply, err
	}
	kind := uint32(protocol.KindCUDALegacy)
	if !r.Borrowed {
		kind = protocol.KindCUDA
		if err := m.checkRoom(s, lacking{r.Fallback, last}, m.unreadForDevice(s, d, r, bytes), func() error { return m.checkDeviceRoom(s, d, bytes) }); err != nil {
			return reply, err
		}
	}
	index, err := m.segmentTable.Take(s.Holder)
	if err != nil {
		return reply, err
	}
	g := &segment{index: index, serial: m.store.Record.NextSerial(), bytes: bytes, kind: kind, device: d, owner: s.SessionFile,
		given: map[*Account]struct{}{}, made: time.Now()}
	m.segments[index], m.bySerial[g.serial] = g, g
	m.putSegment(g)
	m.charge(g, s)
	granted, err := m.addChunks(g, r.Chunks)
	if err != nil {
		m.freeSegmentNow(g)
		return reply, err
	}
	return protocol.GrantReply{Segment: index, SegmentSerial: g.serial, Bytes: bytes, Chunks: granted, DeviceID: d.id}, nil
}

// isBeyondOwnOn tells whether so much more on a device is over the quota of the session there.
func (m *Memory) isBeyondOwnOn(s *Account, d *device, bytes uint64) bool {
	limit, has := m.limits.SessionDeviceMemory, s.onDevice[d]
	return limit > 0 && (has > limit || bytes > limit-has)
}

func (m *Memory) checkDeviceRoom(s *Account, d *device, bytes uint64) error {
	if limit := m.limits.SessionDeviceMemory; m.isBeyondOwnOn(s, d, bytes) {
		return m.noRoom(lack{code: protocol.CodeQuota, remedy: "release tensors, or raise --session-device-memory", limit: limit, used: s.onDevice[d], missing: s.onDevice[d] + bytes - limit, of: s},
			"%d bytes more on %s would exceed the %d that one session may have there (it has %d)", bytes, d.name, limit, s.onDevice[d])
	}
	if limit := m.limits.DeviceMemory; limit > 0 && (d.used > limit || bytes > limit-d.used) {
		return m.noRoom(lack{code: protocol.CodeQuota, remedy: "release tensors, or raise --device-memory", limit: limit, used: d.used, missing: d.used + bytes - limit},
			"%d bytes more on %s would exceed the broker's %d there (%d are granted)", bytes, d.name, limit, d.used)
	}
	return nil
}

// isBorrowed tells whether the memory is its owner's, which ends with the session.
func (g *segment) isBorrowed() bool { return g.kind == protocol.KindCUDALegacy }

// cost is what quotas count: memory that is borrowed was not taken for Baton.
func (g *segment) cost() uint64 {
	if g.isBorrowed() {
		return 0
	}
	return g.bytes - g.punched
}

// expire ends the memory that an ended session lent: no session begins to use it, and
// its holders are notified. Its indices stay taken while a holder counts one.
//
// SYNC lender: release; a user of the memory looks at the serial.
func (m *Memory) expire(g *segment) {
	for _, c := range g.chunks {
		m.store.Record.SetChunkSerial(c.index, 0)
	}
}

// charge makes a session pay for a segment.
func (m *Memory) charge(g *segment, s *Account) {
	m.chargeAll(g)
	g.holder = s
	s.segments[g] = struct{}{}
	if g.device != nil {
		s.onDevice[g.device] += g.cost()
	} else {
		s.granted += g.bytes
	}
}

// chargeAll counts a segment to what all sessions have together.
func (m *Memory) chargeAll(g *segment) {
	if g.device != nil {
		g.device.used += g.cost()
	} else {
		m.used += g.bytes
	}
}

// uncharge ends what charge began, also where the session has ended.
func (m *Memory) uncharge(g *segment) {
	if g.device == nil {
		m.used -= g.cost()
	} else {
		g.device.used -= g.cost()
	}
	switch s := g.holder; {
	case s == nil:
	case g.device == nil:
		s.granted -= g.bytes
	default:
		s.onDevice[g.device] -= g.cost()
	}
}

// Offer takes the memory of a segment on a device: one descriptor, which is nil
// afterwards if it is kept. Only its users can see whether it is memory of that
// device: otherwise their import fails.
func (m *Memory) Offer(s *Account, r *protocol.Offer, fds []*sys.FD) error {
	g, err := m.ownSegment(s, r.Segment)
	switch {
	case err != nil:
		return err
	case g.serial != r.Serial || g.device == nil || len(fds) != 1:
		return protocol.Errorf(protocol.CodeInvalid, "offer one descriptor for a segment that was granted on a device",
			"segment %d with serial %d and %d descriptors", r.Segment, r.Serial, len(fds))
	case g.view != nil:
		return protocol.Errorf(protocol.CodeConflict, "offer each segment's memory once", "segment %d has its memory", r.Segment)
	}
	g.view = shm.NewDeviceSegment(g.index, g.serial, g.bytes, fds[0])
	fds[0] = nil // kept
	return nil
}
