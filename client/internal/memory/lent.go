package memory

import (
	"context"
	"errors"
	"time"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

// Open opens the borrowed memory of storage i, for as long as the holding lives.
// ErrExpired: its owner has ended.
func (h *Holding) Open(i int) error {
	s := &h.Storages[i]
	d := s.At.Segment.Device
	if !d.IsLent() {
		return nil
	}
	if err := h.checkLender(s); err != nil {
		return err
	}
	if err := h.Used().OpenFor(d); err != nil {
		return h.whyNotOpen(s, err)
	}
	return nil
}

// deathIsTold is how long a process may take to end once its driver has let go of its
// memory, and the broker to report it.
const deathIsTold = 2 * time.Second

// whyNotOpen tells why memory is not opened: its owner's death, of which the broker
// tells a moment after the driver, or the error.
func (h *Holding) whyNotOpen(s *storage, err error) error {
	if !errors.Is(err, protocol.ErrInvalidHandle) && !errors.Is(err, protocol.ErrInvalid) {
		return err // which no owner's death brings about
	}
	// An unresponsive broker sends no events: that it answers comes first.
	seg := s.At.Segment
	fds, asked := h.m.broker.Call(context.Background(), protocol.OpSegment, protocol.Segment{Segment: seg.Index, Serial: seg.Serial}, nil)
	if asked == nil {
		wire.CloseAll(fds)
	}
	ctx, cancel := context.WithTimeout(context.Background(), deathIsTold)
	defer cancel()
	// The broker rings all that have the memory after it has taken the serial away.
	_ = h.m.waits.Wait(ctx, 0, func() bool { return h.checkLender(s) != nil })
	if over := h.checkLender(s); over != nil {
		return over
	}
	return err
}

// checkLender refuses memory whose lender has ended.
//
// SYNC lender: the broker takes the serial away when the owner's process or session
// is over.
func (h *Holding) checkLender(s *storage) error {
	d := s.At.Segment.Device
	if d.IsLent() && h.m.files.Chunks.Serial(s.Ref.Index/protocol.ChunkIndices) != s.Ref.Serial {
		return fault.Expired("the process that lent it has ended")
	}
	return nil
}

// CheckLenders is checkLender of all storages.
func (h *Holding) CheckLenders() error {
	for i := range h.Storages {
		if err := h.checkLender(&h.Storages[i]); err != nil {
			return err
		}
	}
	return nil
}
