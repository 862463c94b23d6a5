package client

import (
	"context"

	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// deviceSource is a device pool's way to the broker and the driver.
type deviceSource struct {
	source
	broker devicesBroker
	gpu    *gpu
}

// Grant asks the broker, makes the made, which only then is taken, and offers
// it, so that it outlives this process.
func (s deviceSource) Grant(ctx context.Context, bytes uint64, chunks int, fallback bool) (handles.Grant, error) {
	before, end := s.begin()
	defer end()
	unit, err := s.gpu.Granularity()
	if err != nil {
		return handles.Grant{}, err
	}
	bytes = (bytes + unit - 1) / unit * unit
	var ok protocol.GrantReply
	fds, err := s.broker.Call(ctx, protocol.OpGrant, protocol.Grant{Bytes: bytes, Chunks: chunks, Device: s.gpu.name, Fallback: fallback}, &ok)
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

func (s deviceSource) make(ctx context.Context, before arriving, g *protocol.GrantReply) (*segmentEntry, error) {
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
	e := &segmentEntry{Segment: seg, device: newMadeSegment(s.gpu, g.DeviceID, seg, made)}
	if _, err = e.device.address(true); err == nil {
		_, err = s.broker.Call(ctx, protocol.OpOffer, protocol.Offer{Segment: g.Segment, Serial: g.SegmentSerial}, nil, fd)
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
