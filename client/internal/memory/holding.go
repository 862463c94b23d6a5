package memory

import (
	"context"
	"sync/atomic"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/client/internal/gpu"
	"github.com/baton-ipc/baton/client/internal/sessionfiles"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Holding is a set of storages that this process holds together: those of an
// allocation, or of a message. The refcounts count each once; users of the holding
// are counted here.
type Holding struct {
	m        *Memory
	others   atomic.Int32 // users beside the first
	Storages []storage
	one      [1]storage              // room for the common case
	Done     func()                  // acknowledges a queue item; may be nil
	Device   atomic.Pointer[gpu.Use] // nil: no stream of a GPU has to do with it
}

// NewHolding makes an empty holding.
func NewHolding(m *Memory) *Holding {
	h := &Holding{m: m}
	h.Storages = h.one[:0]
	return h
}

// Renew makes a holding empty, which nothing may use.
func (h *Holding) Renew(m *Memory) {
	h.m = m
	h.others.Store(0)
	h.Storages = h.one[:0]
	h.Done = nil
	h.Device.Store(nil)
}

// Retain adds a use. It panics after the last one has ended: the storages may be another's by then.
func (h *Holding) Retain() {
	for {
		n := h.others.Load()
		if n < 0 {
			panic("baton: retained after its last release")
		}
		if h.others.CompareAndSwap(n, n+1) {
			return
		}
	}
}

// IsOver tells whether the last use has ended.
func (h *Holding) IsOver() bool { return h.others.Load() < 0 }

// Release ends one use, and with the last one counts every storage down, where
// streams use them when those have passed.
func (h *Holding) Release() {
	n := h.others.Add(-1)
	if n >= 0 {
		return
	}
	if n < -1 {
		panic("baton: released once too often")
	}
	u := h.Device.Load()
	if u == nil || h.m.devices == nil { // a sender may say of anything that a stream writes it
		h.LetGo()
		return
	}
	h.m.devices.DeferRelease(h, u)
}

// LetGo counts every storage down and acknowledges.
func (h *Holding) LetGo() {
	if u := h.Device.Load(); u != nil {
		u.CloseBorrowed()
	}
	crashpoint.At("drop-before")
	for i := range h.Storages {
		h.m.Drop(h.Storages[i].Ref.Index)
		crashpoint.At("drop-between")
	}
	if h.Done != nil {
		h.Done()
	}
}

// Region returns the bytes of storage i.
func (h *Holding) Region(i int, write bool) (shm.Region, error) {
	s := &h.Storages[i]
	r, err := s.region(write)
	if err != nil {
		return shm.Region{}, err
	}
	return r.Sub(s.Offset, (s.Bytes+7)&^7), nil
}

// Used returns the notes of a holding, made at the first call.
func (h *Holding) Used() *gpu.Use {
	if u := h.Device.Load(); u != nil {
		return u
	}
	h.Device.CompareAndSwap(nil, &gpu.Use{})
	return h.Device.Load()
}

// ordered notes when a message's bytes are written, as its sender says.
func (h *Holding) ordered(from *sessionfiles.Peer, stream uint32, value uint64) error {
	if stream == 0 || stream > protocol.MaxStreams || value >= protocol.StreamPoison {
		return protocol.Errorf(protocol.CodeProtocol, "update or restart its sender", "invalid stream %d or value %d in a message's order", stream, value)
	}
	h.Used().Written = gpu.NewPoint(from.File, stream, value)
	return nil
}

// Written waits until the sender's stream has written what is held, and refuses what was lent
// by a process that has ended.
func (h *Holding) Written(ctx context.Context) error {
	if u := h.Device.Load(); u != nil {
		if err := u.Written.Await(ctx, h.m.life); err != nil {
			return err
		}
	}
	return h.CheckLenders()
}

// HoldNew has a holding count a storage of this session's that it makes at an offset of the
// segment.
func (m *Memory) HoldNew(ref protocol.Ref, offset, bytes uint64, into *Holding) error {
	a := m.attached.Load(ref.Index / protocol.ChunkIndices)
	if a == nil { // Close has let go of everything meanwhile
		return fault.Closed("client")
	}
	if err := m.CountUp(ref.Index); err != nil {
		return err
	}
	m.files.Entries.Describe(ref.Index, offset, bytes, sys.Monotonic())
	into.Storages = append(into.Storages, storage{Ref: ref, At: a, Offset: offset, Bytes: bytes})
	return nil
}
