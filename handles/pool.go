package handles

import (
	"context"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/ranges"
	"github.com/baton-ipc/baton/internal/sparse"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Grant is memory that the broker lets a session allocate in: a segment mapped
// for writing with its pages reserved, and index chunks over it.
type Grant struct {
	Segment *shm.Segment
	Region  shm.Region // of the whole segment, writable
	Chunks  []protocol.ChunkGrant
}

// Storage is a range of a segment that its owner may hand out. The pool keeps
// the record; users of the package treat it as read-only.
type Storage struct {
	Index      uint32
	Serial     uint64 // of the chunk
	Generation uint64
	Offset     uint64 // in the segment
	Bytes      uint64 // as asked for
	Segment    *shm.Segment
	Region     shm.Region

	slab     *slab
	bin      *bin   // of its capacity
	capacity uint64 // bytes taken from the slab; 0: the index alone is free
	queued   bool   // waits in candidates
	news     bool   // stands in dropped; under dropMu
	// out: handed out and not found free since. A late taker that counts up and
	// down again may bring news of a drop when the storage is free already: then
	// it must not come into its bin, and from there to two owners, twice.
	out bool
}

// chunkStorages are the records of one chunk's indices.
type chunkStorages [protocol.ChunkIndices]Storage

// bin keeps warm storages of one capacity.
type bin struct {
	capacity uint64
	free     []*Storage
}

// Ref names the storage in a message.
func (s *Storage) Ref() protocol.Ref {
	return protocol.Ref{Serial: s.Serial, Generation: s.Generation, Index: s.Index}
}

type slab struct {
	segment *shm.Segment
	region  shm.Region
	free    ranges.Free
	indices []*Storage // without memory
	used    int        // storages with memory that are not in a bin
	binned  int
	chunks  int
}

// Slab sizes: the first is small so that a small program stays small, and a small
// quota serves many; each further one is as large as all before together.
const (
	minSlab      = 64 << 10
	firstSlab    = 4 << 20
	maxSlab      = 256 << 20
	slabsInQuota = 64
	// testsPerAlloc bounds the work that one allocation does for recycling.
	testsPerAlloc = 8
	maxChunkAsk   = 64
)

// Pool hands out and recycles the storages of one session. It recycles when it
// allocates, and when it is told to: storages whose own count fell to zero are
// tested oldest first, and stay mapped and warm for the next tensor of their size.
type Pool struct {
	asking chan struct{} // has a token while a goroutine talks with the source

	mu        sync.Mutex // guards what follows
	source    Source
	first     uint64 // bytes of the first slab
	refcounts Refcounts
	entries   Entries
	test      FreeTest
	slabs     []*slab
	bins      map[uint64]*bin // by capacity
	last      *bin            // that was used: programs ask for one size again and again
	waiting   fifo            // own count fell to zero
	granted   uint64
	grown     uint64 // how often the source gave something
	stats     PoolStats
	over      error         // why nothing is allocated any more; nil while the session goes on
	paused    chan struct{} // until it is closed nothing is handed out or recycled; nil: it is not paused
	latest    *slab         // of the last allocation
	at        uint64        // when that was, CLOCK_MONOTONIC

	dropMu  sync.Mutex
	ended   bool       // guarded by dropMu: nothing is recycled here any more
	dropped []*Storage // own count fell to zero, not yet seen by the pool

	due atomic.Bool // false: nothing was dropped or waits; stored under dropMu

	// The chunks that this pool has; written with mu held. A look tells whether an
	// index is this session's.
	own sparse.Table[chunkStorages]
}

// PoolStats counts what a pool did.
type PoolStats struct {
	Granted  uint64 // bytes of the segments it has
	Live     int    // storages handed out and not yet found free
	Warm     int    // storages ready for reuse
	Recycled uint64 // storages found free so far
	Tests    uint64 // free tests made so far
}

// NewPool makes the pool of a session. refcounts and entries are the session's own;
// test has the broker's chunks and finds refcounts; limits are the session's quotas.
func NewPool(source Source, refcounts Refcounts, test FreeTest, limits protocol.Limits) *Pool {
	return &Pool{asking: make(chan struct{}, 1), source: source, refcounts: refcounts, entries: test.Entries, test: test,
		first: firstSlabOf(limits), bins: map[uint64]*bin{}}
}

// Modest makes the pool ask for what it needs, until it has more than a page. It is
// called before the first Alloc.
func (p *Pool) Modest() { p.first = protocol.PageBytes }

// firstSlabOf leaves room for others in a quota that is small; a limit of 0 is
// none.
func firstSlabOf(limits protocol.Limits) uint64 {
	slab := uint64(firstSlab)
	for _, quota := range []uint64{limits.SessionBytes, limits.MemoryBytes} {
		if quota != 0 {
			slab = min(slab, quota/slabsInQuota&^(protocol.PageBytes-1))
		}
	}
	return max(slab, minSlab)
}

// classOf rounds a size up: to 256 bytes below 4 KiB, above to an eighth of the
// power of two below it, so that tensors of nearly one size share a bin and at
// most an eighth is wasted.
func classOf(n uint64) uint64 {
	step := uint64(protocol.Alignment)
	if n > 4096 {
		step = max(step, uint64(1)<<(bits.Len64(n-1)-1)>>3)
	}
	return (n + step - 1) &^ (step - 1)
}

// Alloc returns a storage of n > 0 bytes, counted once in the session's own refcounts. Its bytes
// are whatever was there before. ctx bounds what must be asked of the source.
func (p *Pool) Alloc(ctx context.Context, n uint64) (*Storage, error) {
	return p.alloc(ctx, n, askLast)
}

// AllocFirst is Alloc for a caller that tries again where there is no room: the source is told that
// a refusal is not the last word.
func (p *Pool) AllocFirst(ctx context.Context, n uint64) (*Storage, error) {
	return p.alloc(ctx, n, askFirst)
}

// AllocHere is Alloc from what the pool has: nil when that does not suffice.
func (p *Pool) AllocHere(n uint64) (*Storage, error) {
	return p.alloc(context.Background(), n, askNobody)
}

// asking is whether an allocation asks the source for what the pool has not.
type asking int

const (
	askNobody asking = iota
	askFirst         // another attempt follows a refusal
	askLast
)

func (p *Pool) alloc(ctx context.Context, n uint64, ask asking) (*Storage, error) {
	if n == 0 || n > 1<<52 {
		return nil, protocol.Errorf(protocol.CodeOutOfMemory, "ask for less", "%d bytes cannot be allocated", n)
	}
	class := classOf(n)
	p.mu.Lock()
	defer p.mu.Unlock()
	s, err := p.findLocked(ctx, class, ask)
	if s == nil || err != nil {
		return nil, err
	}
	s.Bytes = n
	p.latest, p.at = s.slab, sys.Monotonic()
	p.entries.Describe(s.Index, s.Offset, n, p.at)
	crashpoint.At("alloc-described")
	s.slab.used++
	s.out = true
	if err := p.refcounts.Take(s.Index); err != nil {
		p.binLocked(s)
		return nil, err
	}
	crashpoint.At("alloc-counted")
	return s, nil
}

// findLocked takes a storage of a class, or none where the broker is not to be asked.
func (p *Pool) findLocked(ctx context.Context, class uint64, ask asking) (s *Storage, err error) {
	for {
		for p.paused != nil {
			if ask == askNobody {
				return nil, nil
			}
			if err := p.awaitLocked(ctx, p.paused); err != nil {
				return nil, err
			}
		}
		if p.over != nil {
			return nil, p.over
		}
		p.drainLocked()
		p.recycleLocked(testsPerAlloc)
		if s = p.takeBinLocked(class); s == nil {
			if s, err = p.carveLocked(ctx, class, ask); err != nil {
				return nil, err
			}
		}
		if p.paused == nil {
			return s, nil
		}
		if s != nil { // paused while the broker was asked
			s.slab.used++
			p.binLocked(s)
		}
	}
}

// awaitLocked waits with the pool unlocked.
func (p *Pool) awaitLocked(ctx context.Context, until <-chan struct{}) error {
	p.mu.Unlock()
	defer p.mu.Lock()
	select {
	case <-until:
		return nil
	case <-ctx.Done():
		return protocol.Errorf(protocol.CodeTimeout, "try again", "the broker is being stopped: %w", ctx.Err())
	}
}

// Dropped tells the pool that this session's count of an index fell to zero.
// It may be called for indices of others, which it ignores. Any goroutine.
func (p *Pool) Dropped(index uint32) {
	s := p.Find(index)
	if s == nil {
		return
	}
	p.dropMu.Lock()
	if p.ended {
		p.dropMu.Unlock()
		return
	}
	if !s.news { // it may be taken and dropped often before the pool looks
		s.news = true
		p.dropped = append(p.dropped, s)
	}
	if !p.due.Load() {
		p.due.Store(true)
	}
	p.dropMu.Unlock()
}

func (p *Pool) drainLocked() {
	p.dropMu.Lock()
	for _, s := range p.dropped {
		s.news = false
		if s.out && !s.queued {
			s.queued = true
			p.waiting.push(s)
		}
	}
	clear(p.dropped)
	p.dropped = p.dropped[:0]
	if due := p.waiting.len() > 0; due != p.due.Load() {
		p.due.Store(due)
	}
	p.dropMu.Unlock()
}

// recycleLocked tests at most limit storages, each once, oldest first.
func (p *Pool) recycleLocked(limit int) (freed int) {
	for limit = min(limit, p.waiting.len()); limit > 0; limit-- {
		s := p.waiting.pop()
		s.queued = false
		if p.refcounts.Count(s.Index) != 0 {
			continue // taken back from a message: its next drop queues it
		}
		p.stats.Tests++
		if g, free := p.test.Recycle(s.Index); free {
			s.Generation = g
			p.binLocked(s)
			p.stats.Recycled++
			freed++
		} else {
			s.queued = true
			p.waiting.push(s)
		}
	}
	return freed
}

// RecycleOne tests the storage that has waited longest, which the next Alloc then
// need not do. It does not wait.
func (p *Pool) RecycleOne() {
	if !p.due.Load() || !p.mu.TryLock() {
		return
	}
	defer p.mu.Unlock()
	if p.over == nil && p.paused == nil {
		p.drainLocked()
		p.recycleLocked(1)
	}
}

func (p *Pool) binLocked(s *Storage) {
	s.out = false
	s.slab.used--
	s.slab.binned++
	s.bin.free = append(s.bin.free, s)
}

// binOfLocked returns the bin of a capacity.
func (p *Pool) binOfLocked(capacity uint64) *bin {
	if p.last != nil && p.last.capacity == capacity {
		return p.last
	}
	b := p.bins[capacity]
	if b == nil {
		b = &bin{capacity: capacity}
		p.bins[capacity] = b
	}
	p.last = b
	return b
}

func (p *Pool) takeBinLocked(class uint64) *Storage {
	b := p.binOfLocked(class)
	n := len(b.free)
	if n == 0 {
		return nil
	}
	s := b.free[n-1] // the warmest
	b.free[n-1] = nil
	b.free = b.free[:n-1]
	s.slab.binned--
	return s
}

// carveLocked cuts a storage from a slab, making room if it must, and with ask
// getting more from the source.
func (p *Pool) carveLocked(ctx context.Context, class uint64, ask asking) (*Storage, error) {
	for {
		if s := p.cutLocked(class); s != nil {
			return s, nil
		}
		// Test all that waits before asking for more memory, then give binned memory
		// of other sizes back to the slabs.
		if p.recycleLocked(p.waiting.len()) > 0 {
			if s := p.takeBinLocked(class); s != nil {
				return s, nil
			}
		}
		if p.unbinLocked() {
			if s := p.cutLocked(class); s != nil {
				return s, nil
			}
		}
		if ask == askNobody {
			return nil, nil
		}
		if err := p.growLocked(ctx, class, ask == askFirst); err != nil || p.paused != nil {
			return nil, err
		}
	}
}

func (p *Pool) cutLocked(class uint64) *Storage {
	for i := len(p.slabs) - 1; i >= 0; i-- {
		sl := p.slabs[i]
		if len(sl.indices) == 0 {
			continue
		}
		at, ok := sl.free.Take(class)
		if !ok {
			continue
		}
		s := sl.indices[len(sl.indices)-1]
		sl.indices = sl.indices[:len(sl.indices)-1]
		s.Offset, s.capacity, s.bin = at, class, p.binOfLocked(class)
		crashpoint.At("alloc-cut")
		return s
	}
	return nil
}

func (p *Pool) addChunksLocked(sl *slab, chunks []protocol.ChunkGrant) {
	p.grown++
	for _, c := range chunks {
		sl.chunks++
		records := new(chunkStorages)
		for i := protocol.ChunkIndices - 1; i >= 0; i-- {
			index := c.Chunk*protocol.ChunkIndices + uint32(i)
			// The serial tells this grant's generations from an earlier owner's.
			p.entries.SetGeneration(index, 1)
			records[i] = Storage{Index: index, Serial: c.Serial, Generation: 1,
				Segment: sl.segment, Region: sl.region, slab: sl}
			sl.indices = append(sl.indices, &records[i])
		}
		p.own.Store(c.Chunk, records)
	}
}

// unbinLocked gives warm memory back to its slabs, where runs join. The bins stay,
// empty: storages in use come back to them, and there are few capacities.
func (p *Pool) unbinLocked() bool {
	any := false
	for _, b := range p.bins {
		for _, s := range b.free {
			s.slab.free.Give(s.Offset, s.capacity)
			s.slab.indices = append(s.slab.indices, s)
			s.slab.binned--
			s.capacity, s.bin = 0, nil
			any = true
		}
		b.free = nil
	}
	return any
}

// Between runs f while no free test runs, which has refcounts in hand.
func (p *Pool) Between(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// Pause has allocations wait, and nothing recycled, until Resume or End.
func (p *Pool) Pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paused == nil && p.over == nil {
		p.paused = make(chan struct{})
	}
}

// Resume undoes Pause.
func (p *Pool) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resumeLocked()
}

func (p *Pool) resumeLocked() {
	if p.paused != nil {
		close(p.paused)
		p.paused = nil
	}
}

// End is called before the session ends: then its storages are not its own any
// more. Every later Alloc fails with why, and nothing is recycled.
func (p *Pool) End(why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resumeLocked()
	p.over, p.slabs, p.last, p.latest = why, nil, nil, nil
	clear(p.bins)
	p.dropMu.Lock()
	p.ended, p.dropped = true, nil
	p.dropMu.Unlock()
}

// Find returns the record of a storage of the session's own, nil for others'.
func (p *Pool) Find(index uint32) *Storage {
	if index >= protocol.MaxStorages {
		return nil
	}
	records := p.own.Load(index / protocol.ChunkIndices)
	if records == nil {
		return nil
	}
	return &records[index%protocol.ChunkIndices]
}

// Stats returns what the pool has and did.
func (p *Pool) Stats() PoolStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Granted = p.granted
	for _, sl := range p.slabs {
		s.Live += sl.used
		s.Warm += sl.binned
	}
	return s
}
