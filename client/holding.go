package client

import (
	"context"
	"sync/atomic"

	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// holding is a set of storages that this process holds together: those of an
// allocation, or of a message. The row counts each once; users of the holding
// are counted here.
type holding struct {
	m        *memory
	others   atomic.Int32 // users beside the first
	storages []storage
	one      [1]storage          // room for the common case
	done     func()              // acknowledges a queue item; may be nil
	device   atomic.Pointer[use] // nil: no stream of a GPU has to do with it
}

func newHolding(m *memory) *holding {
	h := &holding{m: m}
	h.storages = h.one[:0]
	return h
}

// renew makes a holding empty, which nothing may use.
func (h *holding) renew(m *memory) {
	h.m = m
	h.others.Store(0)
	h.storages = h.one[:0]
	h.done = nil
	h.device.Store(nil)
}

func (h *holding) retain() { h.others.Add(1) }

// release ends one use, and with the last one counts every storage down, where
// streams use them when those have passed.
func (h *holding) release() {
	n := h.others.Add(-1)
	if n >= 0 {
		return
	}
	if n < -1 {
		panic("baton: released once too often")
	}
	if u := h.device.Load(); u != nil {
		h.m.devices.Retire(h, u)
		return
	}
	h.letGo()
}

// letGo counts every storage down and acknowledges.
func (h *holding) letGo() {
	if u := h.device.Load(); u != nil {
		u.closeBorrowed()
	}
	crashpoint.At("drop-before")
	for i := range h.storages {
		h.m.drop(h.storages[i].ref.Index)
		crashpoint.At("drop-between")
	}
	if h.done != nil {
		h.done()
	}
}

// region returns the bytes of storage i.
func (h *holding) region(i int, write bool) (shm.Region, error) {
	s := &h.storages[i]
	r, err := s.region(write)
	if err != nil {
		return shm.Region{}, err
	}
	return r.Sub(s.offset, (s.bytes+7)&^7), nil
}

// used returns the notes of a holding, made at the first call.
func (h *holding) used() *use {
	if u := h.device.Load(); u != nil {
		return u
	}
	h.device.CompareAndSwap(nil, &use{})
	return h.device.Load()
}

// ordered notes when a message's bytes are written, as its sender says.
func (h *holding) ordered(from *peer, stream uint32, value uint64) error {
	if stream == 0 || stream > protocol.MaxStreams || value >= protocol.StreamPoison {
		return protocol.Errorf(protocol.CodeProtocol, "its sender is at fault", "a message is ordered by stream %d, value %d", stream, value)
	}
	h.used().written = newPoint(from.file, stream, value)
	return nil
}

// written waits until the sender's stream has written what is held, and refuses what was lent
// by a process that has ended.
func (h *holding) written(ctx context.Context) error {
	if u := h.device.Load(); u != nil {
		if err := u.written.await(ctx, h.m.life); err != nil {
			return err
		}
	}
	return h.checkLenders()
}

// holdNew has a holding count a storage of this session's that it makes at an offset of the
// segment.
func (m *memory) holdNew(ref protocol.Ref, offset, bytes uint64, into *holding) error {
	a := m.attached.Load(ref.Index / protocol.ChunkIndices)
	if a == nil { // Close has let go of everything meanwhile
		return errClosed("client")
	}
	if err := m.countUp(ref.Index); err != nil {
		return err
	}
	m.pages.entries.Describe(ref.Index, offset, bytes, sys.Monotonic())
	into.storages = append(into.storages, storage{ref: ref, at: a, offset: offset, bytes: bytes})
	return nil
}
