package shm

import (
	"sync"
	"testing"

	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// memory is ordinary memory, so that the race detector sees what is done to it.
func memory(bytes uint64) Region { return NewRegion(BytesOf(make([]uint64, (bytes+7)/8))) }

func newTestLane(t *testing.T, depth, description uint32) Lane {
	t.Helper()
	slots, stride := protocol.Slots(depth), protocol.Stride(description)
	lane, err := NewLane(memory(protocol.LaneBytes(slots, stride)), 0, slots, stride)
	require.NoError(t, err)
	lane.Init(7)
	return lane
}

// fill makes a body from which a reader can tell that it is whole.
func fillBody(i uint64, words []uint64) []uint64 {
	words = AppendRef(words[:0], protocol.Ref{Serial: i, Generation: i * 3, Index: uint32(i)})
	for k := uint64(0); k < 6; k++ {
		words = append(words, i+k)
	}
	return words
}

func TestLaneReadersSeeWholeMessagesWhileWriterOverwrites(t *testing.T) {
	const depth, messages = 4, 20_000
	lane := newTestLane(t, depth, 256)
	var wg sync.WaitGroup
	for r := 0; r < 2; r++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			buf := make([]uint64, 0, 32)
			seen := 0
			for last := uint64(0); last < messages; {
				i := lane.Head()
				if i == last {
					continue
				}
				last = i
				h, words, ok := lane.Read(i, buf)
				if !ok || !lane.Has(i) {
					continue // overwritten meanwhile
				}
				seen++
				refs := h.ParseRefs(nil, words)
				if len(refs) != 1 || refs[0].Serial != i || refs[0].Generation != 3*i {
					t.Errorf("message %d came with the ref %v", i, refs)
					return
				}
				for k, w := range WordsOf(h.BodyOf(words)) {
					if w != i+uint64(k) {
						t.Errorf("word %d of message %d is %d", k, i, w)
						return
					}
				}
			}
			if seen == 0 {
				t.Error("no message was read whole")
			}
		}()
	}
	var words []uint64
	for i := uint64(1); i <= messages; i++ {
		words = fillBody(i, words)
		lane.Write(i, &SlotHead{Stamp: i, Nref: 1, Tensors: 1, Body: 48}, words)
		lane.Publish(i)
		if i > depth {
			lane.Unname(i - depth)
		}
	}
	wg.Wait()
}

func TestLaneReadRefusesLengthsBeyondTheSlot(t *testing.T) {
	lane := newTestLane(t, 2, 256)
	for _, h := range []SlotHead{{Nref: 0xffff}, {Body: 1 << 31}, {Nref: 10, Body: 256}} {
		lane.Write(1, &h, nil)
		lane.Publish(1)
		_, _, ok := lane.Read(1, nil)
		require.False(t, ok, "%+v", h)
		lane.Unname(1)
	}
}

func TestLaneHeadLeavesRoomForTheNextNumber(t *testing.T) {
	lane := newTestLane(t, 2, 256)
	for written, read := range map[uint64]uint64{0: 0, 7: 7, 1<<48 - 2: 1<<48 - 2, 1<<48 - 1: 1<<48 - 2, 1 << 63: 1<<48 - 2, 1<<64 - 1: 1<<48 - 2} {
		lane.r.Store64(protocol.LaneHead, written)
		require.Equal(t, read, lane.Head(), "written as %d", written)
	}
}

func TestNewLaneRefusesWhatDoesNotFit(t *testing.T) {
	file := memory(64 << 10)
	for name, bad := range map[string]struct {
		offset        uint64
		slots, stride uint32
	}{
		"past the end":     {60 << 10, 4, 1088},
		"overflowing":      {1<<64 - 4096, 4, 1088},
		"misaligned":       {8, 4, 1088},
		"odd slots":        {0, 3, 1088},
		"no slots":         {0, 0, 1088},
		"stride too small": {0, 4, 32},
		"odd stride":       {0, 4, 1090},
	} {
		_, err := NewLane(file, bad.offset, bad.slots, bad.stride)
		require.ErrorIs(t, err, protocol.ErrProtocol, name)
	}
}

func TestRegionRefusesOffsetsOutside(t *testing.T) {
	r := memory(64)
	for name, f := range map[string]func(){
		"word behind":   func() { r.Load64(64) },
		"word across":   func() { r.Load64(60) },
		"misaligned":    func() { r.Load64(4) },
		"overflow":      func() { r.Load64(1<<64 - 8) },
		"bytes behind":  func() { r.Bytes(60, 8) },
		"sub overflow":  func() { r.Sub(8, 1<<64-1) },
		"empty region":  func() { Region{}.Load64(0) },
		"32 bit across": func() { r.Load32(62) },
	} {
		require.Panics(t, f, name)
	}
	require.Equal(t, uint64(0), r.Load64(56))
}

func TestLaneRefOfAnIndexTooLargeNamesNoStorage(t *testing.T) {
	h := SlotHead{Nref: 2}
	words := []uint64{1, 2, 3 | 1<<32, 4, 5, 6}
	require.Equal(t, uint32(1<<32-1), h.Ref(words, 0).Index)
	require.Equal(t, []protocol.Ref{{Serial: 1, Generation: 2, Index: 1<<32 - 1}, {Serial: 4, Generation: 5, Index: 6}}, h.ParseRefs(nil, words))
}
