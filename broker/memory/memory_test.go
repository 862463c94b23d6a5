package memory_test

import (
	"log/slog"
	"sync"
	"testing"

	"github.com/baton-ipc/baton/broker/alarm"
	"github.com/baton-ipc/baton/broker/memory"
	"github.com/baton-ipc/baton/broker/pages"
	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// world is a memory over real files, without a broker.
type world struct {
	t     *testing.T
	store *pages.Store
	m     *memory.Memory
	slots uint32
}

func newWorld(t *testing.T, limits memory.Limits) *world {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	s := pages.NewStore(log)
	s.Files, s.Instance = pages.Memfds{}, [16]byte{1}
	limits.ReadMemory = func() (sys.Memory, error) { return sys.Memory{Total: 1 << 40, Available: 1 << 40}, nil }
	clock := alarm.NewClock(&sync.Mutex{})
	m := memory.New(limits, s, clock, log)
	t.Cleanup(func() {
		clock.Stop()
		m.Close()
		s.Close()
	})
	file, err := s.NewFile(protocol.RoleBroker, protocol.RestoreBroker, 0, protocol.BrokerSlot, protocol.BrokerBytes)
	require.NoError(t, err)
	s.UseBrokerFile(file)
	require.NoError(t, s.ReserveTables())
	m.UseRecord()
	s.Own, err = s.Make(protocol.BrokerSlot, s.Record.NextSerial())
	require.NoError(t, err)
	return &world{t, s, m, 0}
}

// told is a client that counts what it is told.
type told struct {
	trim, collect, room int
}

func (c *told) Trim()    { c.trim++ }
func (c *told) Collect() { c.collect++ }
func (c *told) Room()    { c.room++ }

func (w *world) session() (*memory.Account, *told) {
	w.t.Helper()
	w.slots++
	p, err := w.store.Make(w.slots, w.store.Record.NextSerial())
	require.NoError(w.t, err)
	c := &told{}
	return w.m.Open(p, c), c
}

// grant has a session allocate its whole grant as one storage, which it holds.
func (w *world) grant(a *memory.Account, bytes uint64) (protocol.GrantReply, protocol.Ref) {
	w.t.Helper()
	g, fds, err := w.m.Grant(a, &protocol.Grant{Bytes: bytes, Chunks: 1})
	require.NoError(w.t, err)
	for _, fd := range fds {
		require.NoError(w.t, fd.Close())
	}
	require.NoError(w.t, a.ReserveEntries(g.Chunks[0].Chunk))
	index := g.Chunks[0].Chunk * protocol.ChunkIndices
	a.Entries.Describe(index, 0, g.Bytes, 0)
	a.Entries.SetGeneration(index, 1)
	require.NoError(w.t, a.Row.Take(index))
	return g, protocol.Ref{Serial: g.Chunks[0].Serial, Generation: 1, Index: index}
}

func (w *world) end(a *memory.Account) {
	w.m.End(a)
	w.m.Forget(a)
	a.Dead = true
	w.store.DropRemains(a.Pages)
}

func TestSegmentOfAnEndedSessionIsFreedWhenTheLastHolderLetsGo(t *testing.T) {
	w := newWorld(t, memory.Limits{Memory: 1 << 30})
	maker, _ := w.session()
	reader, news := w.session()
	g, ref := w.grant(maker, 1<<20)
	_, err := w.m.Attach(reader, &protocol.Attach{Chunk: g.Chunks[0].Chunk, Serial: ref.Serial})
	require.NoError(t, err)
	_, fds, err := w.m.Segment(reader, &protocol.Segment{Segment: g.Segment, Serial: g.SegmentSerial})
	require.NoError(t, err)
	require.NoError(t, fds[0].Close())
	require.NoError(t, reader.Row.Take(ref.Index))

	w.end(maker)
	w.m.Collect()
	require.EqualValues(t, 1<<20, w.m.Use().Orphans, "the reader holds it")
	require.Zero(t, news.trim)

	reader.Row.Drop(ref.Index)
	require.True(t, w.m.Collect())
	require.Zero(t, w.m.Use().Granted)
	require.Equal(t, 1, news.trim)
	require.Zero(t, w.store.Record.Segment(g.Segment).Serial())
	require.Nil(t, w.store.BySerial(maker.Serial), "nothing needs its pages any more")
}

func TestSegmentIsNotTakenBackWhileARowCountsIt(t *testing.T) {
	w := newWorld(t, memory.Limits{Memory: 1 << 30})
	a, _ := w.session()
	g, ref := w.grant(a, 4096)
	require.ErrorIs(t, w.m.Return(a, &protocol.Return{Segment: g.Segment}), protocol.ErrBusy)
	require.NoError(t, w.m.Hold(ref), "and its storages can still be taken")
	w.m.Drop(ref.Index)
	a.Row.Drop(ref.Index)
	require.NoError(t, w.m.Return(a, &protocol.Return{Segment: g.Segment}))
	require.ErrorIs(t, w.m.Hold(ref), protocol.ErrExpired)
	require.Zero(t, w.m.Counts().Chunks)
}

func TestRefusedGrantAsksOthersAndIsToldOfRoom(t *testing.T) {
	w := newWorld(t, memory.Limits{Memory: 1 << 20})
	rich, asked := w.session()
	poor, waits := w.session()
	g, ref := w.grant(rich, 1<<20)
	_, _, err := w.m.Grant(poor, &protocol.Grant{Bytes: 4096, Chunks: 1})
	require.ErrorIs(t, err, protocol.ErrQuotaExceeded)
	require.Equal(t, 1, asked.collect)
	require.Zero(t, waits.room)
	rich.Row.Drop(ref.Index)
	require.NoError(t, w.m.Return(rich, &protocol.Return{Segment: g.Segment}))
	require.Equal(t, 1, waits.room)
	w.grant(poor, 4096)
}

func TestRestoredMemoryIsAsGranted(t *testing.T) {
	w := newWorld(t, memory.Limits{Memory: 1 << 30})
	a, _ := w.session()
	g, ref := w.grant(a, 1<<20)
	files := map[pages.Key]*sys.FD{}
	_, fds, err := w.m.Segment(a, &protocol.Segment{Segment: g.Segment, Serial: g.SegmentSerial, Write: true})
	require.NoError(t, err)
	files[pages.Key{Role: protocol.RestoreSegment, Serial: g.SegmentSerial}] = fds[0]

	next := memory.New(memory.Limits{Memory: 1 << 30}, w.store, alarm.NewClock(&sync.Mutex{}), slog.New(slog.DiscardHandler))
	t.Cleanup(next.Close)
	next.UseRecord()
	next.Open(a.Pages, &told{})
	next.Restore(func(k pages.Key) *sys.FD { return files[k] })
	require.EqualValues(t, 1<<20, next.Use().Granted)
	require.NoError(t, next.Hold(ref))
	next.Lower(map[uint32]uint64{})
	require.Zero(t, w.store.Own.Row.Count(ref.Index), "what no place names is not counted")
	require.EqualValues(t, 1, handles.NewRow(a.Session.Region).Count(ref.Index), "and rows of others stay")
}
