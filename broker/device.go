package broker

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
func (b *Broker) deviceOf(name string) (*device, error) {
	if err := protocol.CheckDevice(name); err != nil {
		return nil, err
	}
	for _, d := range b.devices {
		if d.name == name {
			return d, nil
		}
	}
	if len(b.devices) == record.MaxDevices {
		return nil, protocol.Errorf(protocol.CodeTooMany, "restart the broker", "it knows %d devices and has room for no more", record.MaxDevices)
	}
	d := &device{id: int32(len(b.devices)), name: name}
	b.file.SetDevice(d.id, name)
	b.devices = append(b.devices, d)
	return d, nil
}

// rebuildDevices reads the names that a former broker noted.
func (b *Broker) rebuildDevices() {
	for id := range int32(record.MaxDevices) {
		name := b.file.Device(id)
		if name == "" {
			return
		}
		b.devices = append(b.devices, &device{id: id, name: name})
	}
}

// rebuiltDevice finds the device of a former broker's segment.
func (b *Broker) rebuiltDevice(id int32) *device {
	if uint32(id) < uint32(len(b.devices)) {
		return b.devices[id]
	}
	return &device{id: id, name: protocol.DeviceCUDA + "unknown"}
}

// grantDevice lets a session make memory on a device, which it offers afterwards.
// The quota is asked first, so that what is refused was never taken.
func (b *Broker) grantDevice(s *session, r *protocol.Grant, bytes uint64) (any, []*sys.FD, error) {
	d, err := b.deviceOf(r.Device)
	if err != nil {
		return nil, nil, err
	}
	kind := uint32(protocol.KindCUDALegacy)
	if !r.Borrowed {
		kind = protocol.KindCUDA
		if err := b.checkRoom(s, func() error { return b.checkDeviceRoom(s, d, bytes) }); err != nil {
			return nil, nil, err
		}
	}
	index, ok := b.segmentTable.take()
	if !ok {
		return nil, nil, protocol.Errorf(protocol.CodeTooMany, "allocate larger slabs, or release tensors", "all %d segments are taken", protocol.MaxSegments)
	}
	g := &segment{index: index, serial: b.serial(), bytes: bytes, kind: kind, device: d, owner: s.pages,
		given: map[*session]struct{}{}, made: time.Now()}
	b.segments[index] = g
	b.putSegment(g)
	b.charge(g, s)
	granted, err := b.addChunks(g, r.Chunks)
	if err != nil {
		b.freeSegmentNow(g)
		return nil, nil, err
	}
	return protocol.GrantReply{Segment: index, SegmentSerial: g.serial, Bytes: bytes, Chunks: granted, DeviceID: d.id}, nil, nil
}

func (b *Broker) checkDeviceRoom(s *session, d *device, bytes uint64) error {
	if limit := b.cfg.SessionDeviceMemory; limit > 0 && (s.onDevice[d] > limit || bytes > limit-s.onDevice[d]) {
		return b.noRoom(protocol.CodeQuota, "release tensors, or raise --session-device-memory", limit, s.onDevice[d],
			"%d bytes more on %s would exceed the %d that one session may have there (it has %d)", bytes, d.name, limit, s.onDevice[d])
	}
	if limit := b.cfg.DeviceMemory; limit > 0 && (d.used > limit || bytes > limit-d.used) {
		return b.noRoom(protocol.CodeQuota, "release tensors, or raise --device-memory", limit, d.used,
			"%d bytes more on %s would exceed the broker's %d there (%d are granted)", bytes, d.name, limit, d.used)
	}
	return nil
}

// isBorrowed tells whether the memory is its owner's, which ends with his session.
func (g *segment) isBorrowed() bool { return g.kind == protocol.KindCUDALegacy }

// cost is what quotas count: memory that is borrowed was not taken for Baton.
func (g *segment) cost() uint64 {
	if g.isBorrowed() {
		return 0
	}
	return g.bytes
}

// expire ends the memory that an ended session lent: nobody begins to use it, and
// who holds it is told. Its indices stay taken while a row counts one.
//
// SYNC lender: release; who uses the memory looks at the serial.
func (b *Broker) expire(g *segment) {
	for _, c := range g.chunks {
		b.file.SetChunkSerial(c.index, 0)
	}
}

// charge makes a session pay for a segment.
func (b *Broker) charge(g *segment, s *session) {
	b.chargeAll(g)
	g.holder = s
	s.segments[g] = struct{}{}
	if g.device != nil {
		s.onDevice[g.device] += g.cost()
	} else {
		s.granted += g.bytes
	}
}

// allGranted sums the bytes of a session's segments, wherever they are.
func (s *session) allGranted() uint64 {
	n := s.granted
	for _, bytes := range s.onDevice {
		n += bytes
	}
	return n
}

// chargeAll counts a segment to what all sessions have together.
func (b *Broker) chargeAll(g *segment) {
	if g.device != nil {
		g.device.used += g.cost()
	} else {
		b.used += g.bytes
	}
}

// uncharge ends what charge began, also where the session has ended.
func (b *Broker) uncharge(g *segment) {
	if g.device == nil {
		b.used -= g.bytes
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

// opOffer takes the memory of a segment on a device. That it is memory of that
// device only its users can see: who imports what it is not gets an error there.
func (b *Broker) opOffer(s *session, data []byte, fds []*sys.FD) error {
	var r protocol.Offer
	if err := decode(data, &r); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.usable(s); err != nil {
		return err
	}
	g, err := b.ownSegment(s, r.Segment)
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

// poison releases the streams of others that wait for those of an ended session.
//
// SYNC stream-word: the process is gone, so nothing of its own follows; who waits
// sees at least what he waits for, and below the poison how far the stream came.
func (p *pages) poison() {
	for i := range uint64(protocol.MaxStreams) {
		at := protocol.SessionStreams + 8*i // 0 as well: who waits for a first value
		// A larger number than any stream's is a lie, and streams compare signed: left
		// there, it would be waited for on and on.
		came := min(p.session.region.Load64(at), protocol.StreamPoison-1)
		p.session.region.Store64(at, came|protocol.StreamPoison)
	}
}
