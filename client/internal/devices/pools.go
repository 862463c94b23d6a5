package devices

import (
	"context"

	"github.com/baton-ipc/baton/client/internal/gpu"
	"github.com/baton-ipc/baton/client/internal/memory"
	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// deviceSource is a device pool's way to the broker and the driver.
type deviceSource struct {
	memory.Source
	broker Broker
	gpu    *gpu.GPU
}

// Grant asks the broker, makes the made, which only then is taken, and offers
// it, so that it outlives this process.
func (s deviceSource) Grant(ctx context.Context, bytes uint64, chunks int, fallback bool) (handles.Grant, error) {
	before, end := s.Begin()
	defer end()
	unit, err := s.gpu.Granularity()
	if err != nil {
		return handles.Grant{}, err
	}
	bytes = (bytes + unit - 1) / unit * unit
	var ok protocol.GrantReply
	fds, err := s.broker.Call(ctx, protocol.OpGrant, protocol.Grant{Bytes: bytes, Chunks: chunks, Device: s.gpu.Name, Fallback: fallback}, &ok)
	wire.CloseAll(fds)
	if err != nil {
		return handles.Grant{}, err
	}
	e, err := s.make(ctx, before, &ok)
	if err != nil {
		s.broker.Call(ctx, protocol.OpReturn, protocol.Return{Segment: ok.Segment, Serial: ok.SegmentSerial}, nil)
		return handles.Grant{}, err
	}
	return handles.Grant{Segment: e.Segment, Chunks: ok.Chunks}, nil
}

func (s deviceSource) make(ctx context.Context, before memory.Arriving, g *protocol.GrantReply) (*memory.Segment, error) {
	made, err := s.gpu.Create(g.Bytes)
	if err != nil {
		return nil, err
	}
	fd, err := made.Export()
	if err != nil {
		made.Close()
		return nil, err
	}
	seg := shm.NewDeviceSegment(g.Segment, g.SegmentSerial, g.Bytes, fd)
	e := &memory.Segment{Segment: seg, Device: gpu.NewMade(s.gpu, g.DeviceID, seg, made)}
	if _, err = e.Device.Address(true); err == nil {
		_, err = s.broker.Call(ctx, protocol.OpOffer, protocol.Offer{Segment: g.Segment, Serial: g.SegmentSerial}, nil, fd)
	}
	if err == nil {
		err = s.PrepareNew(before, e, g.Chunks)
	}
	if err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}
