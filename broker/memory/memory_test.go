package memory_test

import (
	"errors"
	"testing"
	"time"

	"github.com/baton-ipc/baton/broker/memory"
	"github.com/baton-ipc/baton/broker/parttest"
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/broker/takeover"
	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// world is a memory over real files, without a broker.
type world struct {
	t     *testing.T
	store *sessionfiles.Store
	m     *memory.Memory
	slots uint32
}

func newWorld(t *testing.T, limits memory.Limits) *world {
	t.Helper()
	s := parttest.Store(t)
	return &world{t, s, parttest.Memory(t, s, limits), 0}
}

// told is a client that counts what it is told.
type told struct {
	trim, collect, reclaim, room int
}

func (c *told) Trim()    { c.trim++ }
func (c *told) Collect() { c.collect++ }
func (c *told) Room()    { c.room++ }

func (c *told) Reclaim() bool {
	c.reclaim++
	return true
}

func (w *world) session() (*memory.Account, *told) {
	w.t.Helper()
	w.slots++
	c := &told{}
	return w.m.Open(parttest.SessionFile(w.t, w.store, w.slots, "session"), c), c
}

func (w *world) grant(a *memory.Account, bytes uint64) (protocol.GrantReply, protocol.Ref) {
	w.t.Helper()
	return parttest.Grant(w.t, w.m, a, bytes)
}

func (w *world) end(a *memory.Account) {
	w.m.Orphan(a)
	w.m.End(a)
	w.m.Forget(a)
	a.Dead = true
	w.store.DropRemains(a.SessionFile)
}

func TestSegmentOfAnEndedSessionIsFreedWhenTheLastHolderLetsGo(t *testing.T) {
	w := newWorld(t, memory.Limits{Memory: 1 << 30})
	maker, _ := w.session()
	reader, news := w.session()
	g, ref := w.grant(maker, 1<<20)
	asIs := func(err error) error { return err }
	reply, fds, err := w.m.Attach(reader, &protocol.Attach{Chunks: []protocol.AttachChunk{{Chunk: g.Chunks[0].Chunk, Serial: ref.Serial, File: true}}},
		asIs, func(uint64) bool { return false })
	require.NoError(t, err)
	require.Len(t, fds, 1)
	require.Equal(t, g.SegmentSerial, reply.Chunks[0].SegmentSerial)
	require.Equal(t, g.Bytes, reply.Chunks[0].Bytes)
	require.NoError(t, fds[0].Close())
	require.NoError(t, reader.Refcounts.Take(ref.Index))

	w.end(maker)
	w.m.ReclaimOrphans(time.Minute)
	require.EqualValues(t, 1<<20, w.m.Use().Orphans, "the reader holds it")
	require.Zero(t, news.trim)

	reader.Refcounts.Drop(ref.Index)
	require.True(t, w.m.ReclaimOrphans(time.Minute))
	require.Zero(t, w.m.Use().Granted)
	require.Equal(t, 1, news.trim)
	require.Zero(t, w.store.Record.Segment(g.Segment).Serial())
	require.Nil(t, w.store.BySerial(maker.Serial), "nothing needs its file any more")
}

func TestSegmentIsNotTakenBackWhileARowCountsIt(t *testing.T) {
	w := newWorld(t, memory.Limits{Memory: 1 << 30})
	a, _ := w.session()
	g, ref := w.grant(a, 4096)
	require.ErrorIs(t, w.m.Return(a, &protocol.Return{Segment: g.Segment, Serial: g.SegmentSerial}), protocol.ErrBusy)
	require.NoError(t, w.m.Hold(ref), "and its storages can still be taken")
	w.m.Drop(ref.Index)
	a.Refcounts.Drop(ref.Index)
	require.NoError(t, w.m.Return(a, &protocol.Return{Segment: g.Segment, Serial: g.SegmentSerial}))
	require.ErrorIs(t, w.m.Hold(ref), protocol.ErrExpired)
	require.Zero(t, w.m.Counts().Chunks)
}

func TestRefusedGrantIsNotifiedOfRoom(t *testing.T) {
	w := newWorld(t, memory.Limits{Memory: 1 << 20})
	rich, _ := w.session()
	poor, waits := w.session()
	g, ref := w.grant(rich, 1<<20)
	_, _, err := w.m.Grant(poor, &protocol.Grant{Bytes: 4096, Chunks: 1}, true)
	require.ErrorIs(t, err, protocol.ErrQuotaExceeded)
	require.Zero(t, waits.room)
	rich.Refcounts.Drop(ref.Index)
	require.NoError(t, w.m.Return(rich, &protocol.Return{Segment: g.Segment, Serial: g.SegmentSerial}))
	require.Equal(t, 1, waits.room)
	w.grant(poor, 4096)
}

// later asks for a grant that has to wait for a round.
func (w *world) later(a *memory.Account, bytes uint64) *memory.Later {
	w.t.Helper()
	_, _, err := w.m.Grant(a, &protocol.Grant{Bytes: bytes, Chunks: 1}, false)
	require.ErrorIs(w.t, err, protocol.ErrQuotaExceeded)
	var later *memory.Later
	require.ErrorAs(w.t, err, &later)
	return later
}

func TestBeforeAGrantIsRefusedOthersAreAskedForWhatTheyDoNotHold(t *testing.T) {
	for how, answers := range map[string]func(w *world, rich *memory.Account){
		"it gives back and answers": func(w *world, rich *memory.Account) { w.m.Reclaimed(rich) },
		"it ends":                   func(w *world, rich *memory.Account) { w.end(rich) },
	} {
		t.Run(how, func(t *testing.T) {
			w := newWorld(t, memory.Limits{Memory: 1 << 20})
			rich, asked := w.session()
			none, unasked := w.session()
			poor, _ := w.session()
			g, ref := w.grant(rich, 1<<20)
			rich.Refcounts.Drop(ref.Index)
			over := 0
			w.m.AfterRound(w.later(poor, 4096), func() { over++ })
			require.Equal(t, 1, asked.reclaim)
			require.Zero(t, unasked.reclaim, "it has nothing")
			require.Zero(t, over)
			if how != "it ends" {
				require.NoError(t, w.m.Return(rich, &protocol.Return{Segment: g.Segment, Serial: g.SegmentSerial}))
			}
			w.m.Reclaimed(none) // an answer that nothing was asked for
			require.Zero(t, over)
			answers(w, rich)
			require.Equal(t, 1, over)
			w.grant(poor, 4096)
		})
	}
}

func TestOfItsOwnQuotaASessionAloneIsAsked(t *testing.T) {
	w := newWorld(t, memory.Limits{Memory: 1 << 30, SessionMemory: 1 << 20})
	a, asked := w.session()
	b, others := w.session()
	w.grant(b, 4096)
	_, ref := w.grant(a, 1<<20)
	over := false
	w.m.AfterRound(w.later(a, 4096), func() { over = true })
	require.Equal(t, 1, asked.reclaim)
	require.Zero(t, others.reclaim)
	require.False(t, over)
	w.m.Reclaimed(a)
	require.True(t, over)
	_, _, err := w.m.Grant(a, &protocol.Grant{Bytes: 4096, Chunks: 1}, true)
	require.ErrorIs(t, err, protocol.ErrQuotaExceeded, "it holds all")
	a.Refcounts.Drop(ref.Index)
}

func TestNothingIsAskedForWhereNothingIsGranted(t *testing.T) {
	w := newWorld(t, memory.Limits{Memory: 1 << 20})
	a, _ := w.session()
	_, _, err := w.m.Grant(a, &protocol.Grant{Bytes: 2 << 20, Chunks: 1}, false)
	require.ErrorIs(t, err, protocol.ErrQuotaExceeded)
	require.False(t, errors.As(err, new(*memory.Later)))
}

// A broker that is killed while it tests a whole segment leaves the chunks' serials
// marked: what a reader counted just before is not lost with them.
func TestRestoredMemoryKeepsWhatWasBeingTested(t *testing.T) {
	w := newWorld(t, memory.Limits{Memory: 1 << 30})
	a, _ := w.session()
	_, ref := w.grant(a, 1<<20)
	chunk := ref.Index / protocol.ChunkIndices
	w.store.Record.Session(a.Slot).Store(record.Session{Serial: a.Serial, State: protocol.SessionLive, Answered: true})
	w.store.Record.SetChunkSerial(chunk, ref.Serial|record.ChunkRetiring)
	next := parttest.Memory(t, w.store, memory.Limits{Memory: 1 << 30})
	next.Open(a.SessionFile, &told{})
	next.Restore(func(sessionfiles.Key) *sys.FD { return nil })
	for _, r := range takeover.Plan(withLiving(takeover.Read(w.store.Record, w.store.Own.Refcounts))) {
		require.True(t, takeover.Apply(w.store.Record, w.store.Own.Refcounts, r), "%#v", r)
	}
	require.Equal(t, ref.Serial, w.store.Record.Chunks().Serial(chunk))
	require.True(t, w.store.Record.Chunks().IsAttached(chunk, a.Slot), "its refcounts are still looked at")
	require.NoError(t, next.Hold(ref))
}

// withLiving adds that every session is back.
func withLiving(f takeover.Facts) takeover.Facts {
	f.SameBoot = true
	for i := range f.Sessions {
		f.Sessions[i].Process, f.Sessions[i].Back, f.Sessions[i].File = takeover.Alive, true, true
	}
	return f
}

func TestRestoredMemoryIsAsGranted(t *testing.T) {
	w := newWorld(t, memory.Limits{Memory: 1 << 30})
	a, _ := w.session()
	g, ref := w.grant(a, 1<<20)
	files := map[sessionfiles.Key]*sys.FD{}
	_, fds, err := w.m.Segment(a, &protocol.Segment{Segment: g.Segment, Serial: g.SegmentSerial, Write: true})
	require.NoError(t, err)
	files[sessionfiles.Key{Role: protocol.RestoreSegment, Serial: g.SegmentSerial}] = fds[0]

	next := parttest.Memory(t, w.store, memory.Limits{})
	next.Open(a.SessionFile, &told{})
	next.Restore(func(k sessionfiles.Key) *sys.FD { return files[k] })
	require.EqualValues(t, 1<<20, next.Use().Granted)
	require.NoError(t, next.Hold(ref))
	next.Lower(map[uint32]uint64{})
	require.Zero(t, w.store.Own.Refcounts.Count(ref.Index), "what no place names is not counted")
	require.EqualValues(t, 1, handles.NewRefcounts(a.File.Region).Count(ref.Index), "and refcounts of others stay")
}
