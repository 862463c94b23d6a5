package memory_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client/internal/memory"
	"github.com/baton-ipc/baton/client/internal/parttest"
	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/protocol"
)

// noLanes is a session that has no topic open.
type noLanes struct{ ahead int }

func (*noLanes) WithdrawDone()               {}
func (*noLanes) MarkPeers(map[uint64]bool)   {}
func (l *noLanes) AttachAhead(*memory.Ahead) { l.ahead++ }

func newMemory(w *parttest.World, slot uint32) (*parttest.Session, *memory.Memory) {
	s := w.Session(slot)
	m := memory.New(s, s.Files, s.Life, s.Waits, s, protocol.Limits{}, false)
	m.With(&noLanes{}, nil)
	return s, m
}

// fill allocates n bytes and writes a byte into all of them.
func fill(t *testing.T, m *memory.Memory, n uint64, value byte) *memory.Holding {
	t.Helper()
	h := memory.NewHolding(m)
	require.NoError(t, m.Fill(t.Context(), m.PoolOf(0), h, n, 0))
	r, err := h.Region(0, true)
	require.NoError(t, err)
	for i := range r.Bytes(0, n) {
		r.Bytes(0, n)[i] = value
	}
	return h
}

// handleOf is the handle of what h holds.
func handleOf(t *testing.T, h *memory.Holding) *protocol.Handle {
	t.Helper()
	s := &h.Storages[0]
	return &protocol.Handle{Host: parttest.Instance, Segment: s.At.SegmentSerial, Serial: s.Ref.Serial, Index: s.Ref.Index,
		Generation: s.Ref.Generation, Offset: s.Offset, Bytes: s.Bytes, Device: "cpu"}
}

func TestFillAsksOnceForManyTensors(t *testing.T) {
	s, m := newMemory(parttest.New(t), 1)
	first := fill(t, m, 100, 1)
	require.Equal(t, []string{protocol.OpGrant}, s.Asked())
	for range 100 {
		fill(t, m, 100, 2).Release()
	}
	require.Empty(t, s.Asked())
	require.EqualValues(t, 1, s.Files.Refcounts.Count(first.Storages[0].Ref.Index))
	first.Release()
	require.Zero(t, s.Files.Refcounts.Count(first.Storages[0].Ref.Index))
}

func TestOpenCountsInTheOwnRefcountsAndReadsTheBytesOfItsOwner(t *testing.T) {
	w := parttest.New(t)
	_, owner := newMemory(w, 1)
	s, m := newMemory(w, 2)
	x := fill(t, owner, 64, 7)
	x.Storages[0].Share(owner)
	index := x.Storages[0].Ref.Index
	h := memory.NewHolding(m)
	require.NoError(t, m.Open(t.Context(), handleOf(t, x), false, h))
	require.Equal(t, []string{protocol.OpAttach, protocol.OpPeer}, s.Asked())
	require.EqualValues(t, 1, s.Files.Refcounts.Count(index))
	r, err := h.Region(0, false)
	require.NoError(t, err)
	require.EqualValues(t, 7, r.Bytes(0, 64)[63])
	again := memory.NewHolding(m)
	require.NoError(t, m.Open(t.Context(), handleOf(t, x), false, again))
	require.Empty(t, s.Asked(), "it is attached")
	again.Release()
	h.Release()
	require.Zero(t, s.Files.Refcounts.Count(index))
}

func TestOpenRefusesAnotherGenerationAndLeavesNoCount(t *testing.T) {
	w := parttest.New(t)
	_, owner := newMemory(w, 1)
	s, m := newMemory(w, 2)
	x := fill(t, owner, 64, 7)
	x.Storages[0].Share(owner)
	late := handleOf(t, x)
	late.Generation += 2
	require.ErrorIs(t, m.Open(t.Context(), late, false, memory.NewHolding(m)), protocol.ErrExpired)
	beyond := handleOf(t, x)
	beyond.Bytes += protocol.Alignment
	require.ErrorIs(t, m.Open(t.Context(), beyond, false, memory.NewHolding(m)), protocol.ErrInvalidHandle)
	require.Zero(t, s.Files.Refcounts.Count(x.Storages[0].Ref.Index))
}

// What is counted after the end of a session would never be counted down.
func TestNothingIsCountedOnceTheSessionIsOver(t *testing.T) {
	s, m := newMemory(parttest.New(t), 1)
	x := fill(t, m, 64, 7)
	s.Life.Close()
	require.ErrorIs(t, m.CountUp(x.Storages[0].Ref.Index), protocol.ErrClosed)
	require.EqualValues(t, 1, s.Files.Refcounts.Count(x.Storages[0].Ref.Index))
}

func TestSegmentThatIsGoneStaysMappedWhileItIsHeld(t *testing.T) {
	w := parttest.New(t)
	s, owner := newMemory(w, 1)
	_, m := newMemory(w, 2)
	x := fill(t, owner, 64, 7)
	x.Storages[0].Share(owner)
	h := memory.NewHolding(m)
	require.NoError(t, m.Open(t.Context(), handleOf(t, x), false, h))
	x.Release()
	require.Zero(t, owner.Reclaim((*handles.Pool).Reclaim))
	require.Contains(t, s.Later(), "map peer", "refcounts that are not mapped count as those of a holder")
	require.Empty(t, m.GoneSegments())
	w.TakeBack(x.Storages[0].At.SegmentSerial)
	gone := m.GoneSegments()
	require.Len(t, gone, 1)
	m.Trim(gone)
	_, mapped := m.Stats()
	require.Equal(t, 1, mapped)
	h.Release()
	m.Trim(gone)
	_, mapped = m.Stats()
	require.Zero(t, mapped)
}

func TestPoolsEndWithTheirReason(t *testing.T) {
	s, m := newMemory(parttest.New(t), 1)
	s.GoAway()
	h := memory.NewHolding(m)
	require.ErrorIs(t, m.Fill(t.Context(), m.PoolOf(0), h, 64, 0), protocol.ErrBrokerLost)
	m.EndPools(protocol.ErrSessionLost)
	require.ErrorIs(t, m.Fill(t.Context(), m.PoolOf(0), h, 64, 0), protocol.ErrSessionLost)
}
