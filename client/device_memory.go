package client

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// deviceSegment is a segment on a GPU in this process: imported and mapped once,
// for reading and, where somebody asks for it, for writing.
type deviceSegment struct {
	gpu *gpu
	id  int32 // by which the broker knows the device

	segment  *shm.Segment // keeps the descriptor
	mu       sync.Mutex   // guards the making of what follows
	memory   DeviceMemory
	readable atomic.Uint64 // addresses
	writable atomic.Uint64
	borrowed *borrowed // nil: it outlives the session that made it
}

// address returns where the segment begins. A process that has it writable reads
// through that mapping.
func (d *deviceSegment) address(write bool) (uint64, error) {
	if at := d.writable.Load(); at != 0 {
		return at, nil
	}
	if at := d.readable.Load(); at != 0 && !write {
		return at, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	to := &d.readable
	if write {
		to = &d.writable
	}
	if at := to.Load(); at != 0 {
		return at, nil
	}
	if d.borrowed != nil {
		return 0, protocol.Errorf(protocol.CodeInternal, "report this", "borrowed memory was not opened for its use")
	}
	if d.memory == nil {
		m, err := d.gpu.Import(d.segment.FD(), d.segment.Bytes)
		if err != nil {
			return 0, err
		}
		d.memory = m
	}
	at, err := d.memory.Map(write)
	if err == nil {
		to.Store(at)
	}
	return at, err
}

// is tells whether a description names this device: none is the machine's memory.
func (d *deviceSegment) is(t *protocol.Tensor) bool {
	if d == nil {
		return t.DeviceType == int32(dlpack.CPU)
	}
	return t.DeviceType == int32(dlpack.CUDA) && t.DeviceID == d.id
}

// handleName is what a handle calls the device: by the broker's number.
func (d *deviceSegment) handleName() string {
	if d == nil {
		return "cpu"
	}
	return protocol.DeviceCUDA + strconv.Itoa(int(d.id))
}

// Close unmaps and closes. Nobody may hold memory of it.
func (e *segmentEntry) Close() error {
	if d := e.device; d != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.memory != nil {
			if err := d.memory.Close(); err != nil {
				e.Segment.Close()
				return err
			}
			d.memory = nil
			d.readable.Store(0)
			d.writable.Store(0)
		}
	}
	return e.Segment.Close()
}

// deviceEntry makes the entry of another session's segment on a device.
func (c *Client) deviceEntry(r *protocol.SegmentReply, seg *shm.Segment) (*segmentEntry, error) {
	if c.devices == nil || len(r.Device) < len(protocol.DeviceCUDA) {
		return nil, errNoDevices(r.Device)
	}
	a, err := c.devices.from.AcceleratorOf(r.Device[len(protocol.DeviceCUDA):])
	if err != nil {
		return nil, aboutDevice(err, r.Device)
	}
	d := &deviceSegment{gpu: c.devices.gpuOf(a), id: r.DeviceID, segment: seg}
	if r.Borrowed {
		d.borrowed = &borrowed{}
	}
	return &segmentEntry{Segment: seg, device: d}, nil
}

// onDevice tells from the broker's page whether a segment lies on a device.
func (c *Client) onDevice(index uint32) bool {
	if index >= c.pages.segmentsEnd() {
		return false
	}
	kind := c.pages.broker.Load32(segmentRecordAt(index) + protocol.SegmentKind)
	return kind == protocol.KindCUDA || kind == protocol.KindCUDALegacy
}

// deviceSource is a device pool's way to the broker and the driver.
type deviceSource struct {
	source
	gpu *gpu
}

// Grant asks the broker, makes the memory, which only then is taken, and offers
// it, so that it outlives this process.
func (s deviceSource) Grant(ctx context.Context, bytes uint64, chunks int, fallback bool) (handles.Grant, error) {
	s.c.granting.RLock()
	defer s.c.granting.RUnlock()
	before := s.c.arriving()
	unit, err := s.gpu.Granularity()
	if err != nil {
		return handles.Grant{}, err
	}
	bytes = (bytes + unit - 1) / unit * unit
	var ok protocol.GrantReply
	fds, err := s.c.link.call(ctx, protocol.OpGrant, protocol.Grant{Bytes: bytes, Chunks: chunks, Device: s.gpu.name, Fallback: fallback}, &ok)
	wire.CloseAll(fds)
	if err != nil {
		return handles.Grant{}, err
	}
	e, err := s.make(ctx, before, &ok)
	if err != nil {
		s.c.link.call(ctx, protocol.OpReturn, protocol.Return{Segment: ok.Segment, Serial: ok.SegmentSerial}, nil)
		return handles.Grant{}, err
	}
	return handles.Grant{Segment: e.Segment, Chunks: ok.Chunks}, nil
}

func (s deviceSource) make(ctx context.Context, before arriving, g *protocol.GrantReply) (*segmentEntry, error) {
	memory, err := s.gpu.Create(g.Bytes)
	if err != nil {
		return nil, err
	}
	fd, err := memory.Export()
	if err != nil {
		memory.Close()
		return nil, err
	}
	seg := shm.NewDeviceSegment(g.Segment, g.SegmentSerial, g.Bytes, fd)
	e := &segmentEntry{Segment: seg, device: &deviceSegment{gpu: s.gpu, id: g.DeviceID, segment: seg, memory: memory}}
	if _, err = e.device.address(true); err == nil {
		_, err = s.c.link.call(ctx, protocol.OpOffer, protocol.Offer{Segment: g.Segment, Serial: g.SegmentSerial}, nil, fd)
	}
	if err == nil {
		err = s.prepareNew(before, e, g.Chunks)
	}
	if err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}
