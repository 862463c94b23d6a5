package handles

import (
	"context"
	"math/rand"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
	"github.com/stretchr/testify/require"
)

// world is a broker file and some session files in ordinary memory, so that the
// race detector sees what is done to them.
type world struct {
	t         testing.TB
	chunks    Chunks
	refcounts []Refcounts
	own       Entries
	pool      *Pool
	source    *fakeSource
}

// someChunks are as many as a test needs.
const someChunks = 1024

func memory(bytes uint64) shm.Region { return shm.NewRegion(shm.BytesOf(make([]uint64, bytes/8))) }

func newWorld(t testing.TB, sessions int, limit uint64) *world {
	w := &world{t: t}
	w.chunks = Chunks{memory(someChunks * protocol.ChunkRecordSize)}
	for range sessions {
		w.refcounts = append(w.refcounts, Refcounts{memory(someChunks * protocol.ChunkIndices * protocol.RefcountWordSize)})
	}
	w.own = Entries{memory(someChunks * protocol.ChunkIndices * protocol.EntrySize)}
	w.source = &fakeSource{w: w, limit: limit}
	w.pool = NewPool(w.source, w.refcounts[1], FreeTest{Chunks: w.chunks, Entries: w.own,
		Refcounts: func(slot uint32) (Refcounts, bool) { return w.refcounts[slot], true }}, protocol.Limits{})
	return w
}

// fakeSource grants real memfds, up to a limit, as session 1.
type fakeSource struct {
	w             *world
	limit, given  uint64
	serial        uint64
	chunk         uint32
	returned      int
	refuseReturns bool
	asked         []ask
}

// ask is one request for memory.
type ask struct {
	bytes    uint64
	fallback bool
}

func (f *fakeSource) Grant(ctx context.Context, bytes uint64, chunks int, fallback bool) (Grant, error) {
	f.asked = append(f.asked, ask{bytes, fallback})
	if f.given+bytes > f.limit {
		return Grant{}, protocol.Errorf(protocol.CodeQuota, "", "limit of %d bytes reached", f.limit)
	}
	fd, err := sys.CreateMemfd("baton-test", int64(bytes))
	require.NoError(f.w.t, err)
	f.serial++
	seg, err := shm.NewSegment(uint32(f.serial), f.serial, bytes, fd, true)
	require.NoError(f.w.t, err)
	f.w.t.Cleanup(func() { seg.Close() })
	r, err := seg.Writable()
	require.NoError(f.w.t, err)
	f.given += bytes
	g, err := f.MoreChunks(ctx, seg, chunks)
	return Grant{Segment: seg, Region: r, Chunks: g}, err
}

func (f *fakeSource) MoreChunks(_ context.Context, seg *shm.Segment, n int) (got []protocol.ChunkGrant, err error) {
	for ; n > 0; n-- {
		f.serial++
		f.w.chunks.Store(f.chunk, Chunk{Serial: f.serial, Owner: 1, Segment: seg.Index, SegmentSerial: seg.Serial, Bytes: seg.Bytes})
		for slot := range f.w.refcounts {
			f.w.chunks.Attach(f.chunk, uint32(slot))
		}
		got = append(got, protocol.ChunkGrant{Chunk: f.chunk, Serial: f.serial})
		f.chunk++
	}
	return got, nil
}

func (f *fakeSource) Return(_ context.Context, seg *shm.Segment) bool {
	if f.refuseReturns {
		return false
	}
	f.given -= seg.Bytes
	f.returned++
	return true
}

func (w *world) drop(s *Storage) {
	if w.refcounts[1].Drop(s.Index) {
		w.pool.Dropped(s.Index)
	}
}

func TestPoolRecyclesAStorageWithANewGeneration(t *testing.T) {
	w := newWorld(t, 3, 1<<30)
	a, err := w.pool.Alloc(context.Background(), 1000)
	require.NoError(t, err)
	ref := a.Ref()
	w.drop(a)
	b, err := w.pool.Alloc(context.Background(), 1000)
	require.NoError(t, err)
	require.Equal(t, ref.Index, b.Index, "the warm storage is used again")
	require.Equal(t, ref.Generation+1, b.Generation)
	require.Equal(t, b.Generation, w.own.Load(b.Index).Generation)
}

func TestPoolRecyclesOneWhenToldTo(t *testing.T) {
	w := newWorld(t, 3, 1<<30)
	a, err := w.pool.Alloc(context.Background(), 1000)
	require.NoError(t, err)
	require.NoError(t, w.refcounts[2].Take(a.Index))
	w.drop(a)
	w.pool.RecycleOne()
	require.Zero(t, w.pool.Stats().Warm, "another session holds it")
	w.refcounts[2].Drop(a.Index)
	w.pool.RecycleOne()
	require.Equal(t, 1, w.pool.Stats().Warm)
	require.Equal(t, 2|protocol.Private, w.own.Word(a.Index), "never given away")
}

func TestPoolKeepsWhatAnotherSessionHolds(t *testing.T) {
	w := newWorld(t, 3, 1<<30)
	a, err := w.pool.Alloc(context.Background(), 1000)
	require.NoError(t, err)
	require.NoError(t, w.refcounts[2].Take(a.Index))
	w.drop(a)
	for i := 0; i < 100; i++ {
		b, err := w.pool.Alloc(context.Background(), 1000)
		require.NoError(t, err)
		require.NotEqual(t, a.Index, b.Index)
		w.drop(b)
	}
	require.Equal(t, 1|protocol.Private, w.own.Word(a.Index), "its generation stays, without RETIRING")
	w.refcounts[2].Drop(a.Index)
	w.pool.Reclaim(context.Background())
	require.Zero(t, w.pool.Stats().Live)
}

func TestPoolGivesEmptySegmentsBackAndReusesMemoryOfOtherSizes(t *testing.T) {
	w := newWorld(t, 2, 8<<20)
	var held []*Storage
	for i := 0; i < 6; i++ {
		s, err := w.pool.Alloc(context.Background(), 1<<20)
		require.NoError(t, err)
		held = append(held, s)
	}
	for _, s := range held {
		w.drop(s)
	}
	// Two segments of 4 MiB: 3 MiB fits only where runs have joined again.
	a, err := w.pool.Alloc(context.Background(), 3<<20)
	require.NoError(t, err)
	b, err := w.pool.Alloc(context.Background(), 3<<20)
	require.NoError(t, err)
	_, err = w.pool.Alloc(context.Background(), 3<<20)
	require.ErrorIs(t, err, protocol.ErrQuotaExceeded)
	w.drop(a)
	w.drop(b)
	require.EqualValues(t, 8<<20, w.pool.Reclaim(context.Background()))
	require.Equal(t, 2, w.source.returned)
	require.Zero(t, w.pool.Stats().Granted)
}

func TestPoolStoragesNeverOverlap(t *testing.T) {
	w := newWorld(t, 2, 256<<20)
	r := rand.New(rand.NewSource(1))
	type owner struct{ from, to uint64 }
	live := map[*Storage]owner{}
	for i := 0; i < 5000; i++ {
		if len(live) > 0 && r.Intn(2) == 0 {
			for s := range live {
				delete(live, s)
				w.drop(s)
				break
			}
			continue
		}
		n := uint64(1 + r.Intn(1<<uint(4+r.Intn(16))))
		s, err := w.pool.Alloc(context.Background(), n)
		require.NoError(t, err)
		require.Zero(t, s.Offset%protocol.Alignment)
		require.LessOrEqual(t, s.Offset+n, s.Segment.Bytes)
		for o, x := range live {
			if o.Segment == s.Segment && s.Offset < x.to && x.from < s.Offset+n {
				t.Fatalf("storage %d [%d,%d) overlaps %d [%d,%d)", s.Index, s.Offset, s.Offset+n, o.Index, x.from, x.to)
			}
		}
		live[s] = owner{s.Offset, s.Offset + n}
	}
	for s := range live {
		w.drop(s)
	}
	w.pool.Reclaim(context.Background())
	require.Zero(t, w.pool.Stats().Live)
	require.Zero(t, w.pool.Stats().Granted)
}

// Sessions stand in any word of the attached bits; each that is attached is looked at, and
// so is one that comes while the test is under way.
func TestRecycleLooksAtEveryAttachedHolder(t *testing.T) {
	const first, last = 7, protocol.MaxSessions - 1
	for _, holder := range []uint32{first, 64, 2048, last} {
		w := newWorld(t, 2, 1<<30)
		a, err := w.pool.Alloc(t.Context(), 1000)
		require.NoError(t, err)
		chunk := a.Index / protocol.ChunkIndices
		refcounts, looked := Refcounts{memory(someChunks * protocol.ChunkIndices * protocol.RefcountWordSize)}, map[uint32]bool{}
		w.pool.test.Refcounts = func(slot uint32) (Refcounts, bool) {
			looked[slot] = true
			if slot == holder {
				return refcounts, true
			}
			return w.refcounts[slot%2], true
		}
		for _, slot := range []uint32{first, 64, 2048, last} {
			w.chunks.Attach(chunk, slot)
		}
		require.NoError(t, refcounts.Take(a.Index))
		w.drop(a)
		w.pool.RecycleOne()
		require.Zero(t, w.pool.Stats().Warm, "slot %d holds it", holder)
		refcounts.Drop(a.Index)
		clear(looked)
		w.pool.RecycleOne()
		require.Equal(t, 1, w.pool.Stats().Warm)
		require.Equal(t, map[uint32]bool{0: true, 1: true, first: true, 64: true, 2048: true, last: true}, looked)
		var all []uint32
		w.chunks.EachAttached(chunk, func(slot uint32) bool { all = append(all, slot); return true })
		require.Equal(t, []uint32{0, 1, first, 64, 2048, last}, all)
		for _, slot := range all {
			require.True(t, w.chunks.IsAttached(chunk, slot))
			w.chunks.Detach(chunk, slot)
		}
		require.Zero(t, w.chunks.AttachedWords(chunk), "no word has a bit")
	}
}

func TestRecycleGivesUpWhereASessionComesMeanwhile(t *testing.T) {
	w := newWorld(t, 3, 1<<30)
	a, err := w.pool.Alloc(t.Context(), 1000)
	require.NoError(t, err)
	come := func() { w.chunks.Attach(a.Index/protocol.ChunkIndices, protocol.MaxSessions-1) }
	w.pool.test.Refcounts = func(slot uint32) (Refcounts, bool) {
		if come != nil {
			come()
		}
		return w.refcounts[slot%3], true
	}
	w.drop(a)
	w.pool.RecycleOne()
	require.Zero(t, w.pool.Stats().Warm)
	come = nil
	w.pool.RecycleOne()
	require.Equal(t, 1, w.pool.Stats().Warm)
}

// The owner recycles while others take by a place that names the storage, as in
// the model lanes: no holder may count a storage of another generation than named.
func TestRecycleNeverTakesAStorageFromAHolder(t *testing.T) {
	const takers, rounds = 2, 20_000
	w := newWorld(t, 2+takers, 1<<20+4<<20)
	slot := shm.NewRegion(shm.BytesOf(make([]uint64, 3))) // seq, index, generation
	var stop atomic.Bool
	var wg sync.WaitGroup
	var taken atomic.Uint64
	for k := 0; k < takers; k++ {
		refcounts := w.refcounts[2+k]
		wg.Add(1)
		go func() {
			defer wg.Done()
			for !stop.Load() {
				seq := slot.Load64(0)
				if seq == 0 {
					continue
				}
				index, generation := uint32(slot.Load64(8)), slot.Load64(16)
				if refcounts.Take(index) != nil {
					continue
				}
				if slot.Load64(0) == seq {
					taken.Add(1)
					if w.own.Word(index)&protocol.GenerationMask != generation {
						t.Error("a held storage was recycled")
					}
				}
				refcounts.Drop(index)
			}
		}()
	}
	for i := uint64(1); i <= rounds; i++ {
		s, err := w.pool.Alloc(context.Background(), 64)
		require.NoError(t, err)
		require.NoError(t, w.refcounts[1].Take(s.Index)) // the slot's count
		slot.Store64(8, uint64(s.Index))
		slot.Store64(16, s.Generation)
		slot.Store64(0, i)
		w.drop(s)
		slot.Store64(0, 0)
		w.drop(s)
	}
	stop.Store(true)
	wg.Wait()
	w.pool.Reclaim(context.Background())
	require.Zero(t, w.pool.Stats().Live)
	t.Logf("%d references were taken", taken.Load())
}

func TestRefcountsRefuseMoreReferencesThanTheyCanCount(t *testing.T) {
	r := Refcounts{memory(64)}
	r.r.Store64(0, protocol.CountLimit)
	require.ErrorIs(t, r.Take(0), protocol.ErrTooMany)
	require.Equal(t, protocol.CountLimit, r.Count(0), "and undoes the attempt")
}

func TestClearKeepsTheSequenceMoving(t *testing.T) {
	r := Refcounts{memory(64)}
	for i := 0; i < 3; i++ {
		require.NoError(t, r.Take(1))
	}
	before := r.Load(1)
	r.Clear(1)
	require.Zero(t, r.Count(1))
	require.Greater(t, r.Load(1), before)
}

func BenchmarkTakeDrop(b *testing.B) {
	r := Refcounts{memory(64)}
	for i := 0; i < b.N; i++ {
		r.Take(3)
		r.Drop(3)
	}
}

func BenchmarkAllocRecycle(b *testing.B) {
	for _, attached := range []int{2, 8, 64, 256} {
		b.Run("holders="+itoa(attached), func(b *testing.B) {
			w := newWorld(b, attached, 1<<30)
			b.ResetTimer()
			for i := 0; i < b.N; i++ {
				s, err := w.pool.Alloc(context.Background(), 4096)
				if err != nil {
					b.Fatal(err)
				}
				w.drop(s)
			}
		})
	}
}

func itoa(n int) string {
	if n < 10 {
		return string(rune('0' + n))
	}
	return itoa(n/10) + itoa(n%10)
}

// A process that only receives never allocates, and so never looks at what it
// has dropped.
func TestPoolKeepsNoNoteOfDropsOfOthersStorages(t *testing.T) {
	w := newWorld(t, 2, 1<<30)
	a, err := w.pool.Alloc(context.Background(), 1000)
	require.NoError(t, err)
	for range 1000 {
		w.pool.Dropped(a.Index + protocol.ChunkIndices)
		w.pool.Dropped(protocol.MaxStorages)
	}
	require.Empty(t, w.pool.dropped)
	w.pool.Dropped(a.Index)
	require.Len(t, w.pool.dropped, 1)
}

// The operator sees the refusal that the program gets, and no attempt before.
func TestPoolSaysWhichRequestsHaveAFallback(t *testing.T) {
	const wanted = 5 << 20
	for _, c := range []struct {
		alloc func(*Pool) (*Storage, error)
		last  bool
	}{
		{func(p *Pool) (*Storage, error) { return p.AllocFirst(t.Context(), wanted) }, true},
		{func(p *Pool) (*Storage, error) { return p.Alloc(t.Context(), wanted) }, false},
	} {
		w := newWorld(t, 3, 8<<20)
		_, err := w.pool.Alloc(t.Context(), 3<<20)
		require.NoError(t, err)
		w.source.asked = nil
		_, err = c.alloc(w.pool)
		require.ErrorIs(t, err, protocol.ErrQuotaExceeded)
		last := len(w.source.asked) - 1
		require.Positive(t, last)
		for i, a := range w.source.asked {
			require.Equal(t, i < last || c.last, a.fallback, "%d of %v", i, w.source.asked)
		}
	}
}

func TestFirstSlabLeavesRoomForOthersInASmallQuota(t *testing.T) {
	for _, c := range []struct {
		limits protocol.Limits
		bytes  uint64
	}{
		{protocol.Limits{}, 4 << 20},
		{protocol.Limits{MemoryBytes: 1 << 40}, 4 << 20},
		{protocol.Limits{MemoryBytes: 8 << 20}, 128 << 10},
		{protocol.Limits{SessionBytes: 1 << 20, MemoryBytes: 8 << 20}, 64 << 10},
		{protocol.Limits{SessionBytes: 100 << 20, MemoryBytes: 1}, 64 << 10},
	} {
		require.Equal(t, c.bytes, firstSlabOf(c.limits), "%+v", c.limits)
	}
}
