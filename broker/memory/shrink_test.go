package memory_test

import (
	"testing"
	"time"

	"github.com/baton-ipc/baton/broker/memory"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

func TestOrphanKeepsOnlyThePagesThatAreHeld(t *testing.T) {
	w := newWorld(t, memory.Limits{Memory: 64 << 20})
	maker, _ := w.session()
	g, ref := w.grant(maker, 64<<20)
	_, fds, err := w.m.Segment(maker, &protocol.Segment{Segment: g.Segment, Serial: g.SegmentSerial, Write: true})
	require.NoError(t, err)
	fd := fds[0]
	defer fd.Close()
	require.NoError(t, fd.Reserve(0, 64<<20))
	place := func(n uint32, offset, bytes uint64) protocol.Ref {
		r := protocol.Ref{Serial: ref.Serial, Generation: 1, Index: ref.Index + n}
		maker.Entries.SetGeneration(r.Index, 1)
		maker.Entries.Describe(r.Index, offset, bytes, 1)
		maker.Entries.Share(r.Index)
		return r
	}
	small := place(1, 5000, 16)         // of one page
	across := place(2, 20480-100, 5000) // of three
	require.NoError(t, w.m.Hold(small))
	require.NoError(t, w.m.Hold(across))
	text := []byte("what is held stays")
	mapped, err := sys.Map(fd, 64<<20, true)
	require.NoError(t, err)
	defer sys.Unmap(mapped)
	copy(mapped[20470:], text)

	w.end(maker)
	w.m.ReclaimOrphans(time.Minute)
	n, err := fd.Allocated()
	require.NoError(t, err)
	require.EqualValues(t, 4*4096, n)
	require.EqualValues(t, 4*4096, w.m.Use().Orphans)
	require.EqualValues(t, 4*4096, w.m.Use().Granted, "others may have the rest")
	got := make([]byte, len(text))
	require.NoError(t, fd.ReadAt(got, 20470))
	require.Equal(t, text, got)
	require.ErrorIs(t, w.m.Hold(ref), protocol.ErrExpired, "a handle to what lay elsewhere")

	w.m.Drop(across.Index)
	w.m.ReclaimOrphans(time.Minute)
	n, err = fd.Allocated()
	require.NoError(t, err)
	require.EqualValues(t, 4096, n)
	w.m.Drop(small.Index)
	w.m.ReclaimOrphans(time.Minute)
	require.Zero(t, w.m.Use().Granted)
	require.Zero(t, w.m.Counts().Segments)
}

func TestOrphanOfALiarIsLeftAsItIs(t *testing.T) {
	w := newWorld(t, memory.Limits{Memory: 1 << 30})
	maker, _ := w.session()
	_, ref := w.grant(maker, 1<<20)
	require.NoError(t, w.m.Hold(ref))
	maker.Entries.Describe(ref.Index, 1<<20, ^uint64(0), 1)
	w.end(maker)
	w.m.ReclaimOrphans(time.Minute)
	require.EqualValues(t, 1<<20, w.m.Use().Orphans)
}
