package memory

import (
	"context"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Open holds the storage of a handle. It takes the reference: refcount up first, then the generation.
func (m *Memory) Open(ctx context.Context, h *protocol.Handle, write bool, into *Holding) error {
	ref := protocol.Ref{Serial: h.Serial, Generation: h.Generation, Index: h.Index}
	a, err := m.hold(ctx, ref) // MODEL lanes:open-up
	if err != nil {
		return err
	}
	crashpoint.At("open-counted")
	// SYNC generation: the refcounts were raised first; either the owner's second
	// collect sees that, or RETIRING or a later generation is seen here.
	shm.Fence()                                            // MODEL tso:fence-taker
	if a.owner.Entries.Word(ref.Index) != ref.Generation { // MODEL lanes:open-recheck
		m.Drop(ref.Index)
		return fault.Expired("its lease is over, its topic has overwritten it, or it was never given away")
	}
	s := storage{Ref: ref, At: a}
	err = s.locate()
	if err == nil && (s.Offset != h.Offset || s.Bytes != h.Bytes || a.SegmentSerial != h.Segment) {
		err = protocol.Errorf(protocol.CodeHandle, "use the handle as it was made",
			"it names %d bytes at %d of segment %d, its storage is %d bytes at %d of segment %d", h.Bytes, h.Offset, h.Segment, s.Bytes, s.Offset, a.SegmentSerial)
	}
	if device := a.Segment.Device.HandleName(); err == nil && device != h.Device {
		err = protocol.Errorf(protocol.CodeHandle, "use the handle as it was made", "it is for device %s, its storage lies on %s", h.Device, device)
	}
	if err == nil && write {
		err = m.writable(ctx, a.Segment)
	}
	if err != nil {
		m.Drop(ref.Index)
		return err
	}
	into.Storages = append(into.Storages, s)
	return nil
}
