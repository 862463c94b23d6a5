package memory

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/protocol"
)

// poolSet are the pools of a session beside that of the machine's ordinary pages:
// one for each device and each size of huge pages that was asked for.
type poolSet struct {
	mu    sync.Mutex // guards adding
	pools atomic.Pointer[[]*handles.Pool]
	huge  map[uint64]*handles.Pool // by bytes of a page
}

func (s *poolSet) all() []*handles.Pool {
	if p := s.pools.Load(); p != nil {
		return *p
	}
	return nil
}

// add makes the pool of a source.
func (s *poolSet) add(m *Memory, from handles.Source) *handles.Pool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newLocked(m, from)
}

func (s *poolSet) newLocked(m *Memory, from handles.Source) *handles.Pool {
	p := handles.NewPool(from, m.files.Refcounts, m.FreeTest(), protocol.Limits{})
	all := append(slices.Clone(s.all()), p)
	s.pools.Store(&all)
	return p
}

// ofHugePages returns the pool of huge pages of a size.
func (s *poolSet) ofHugePages(m *Memory, bytes uint64) *handles.Pool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.huge[bytes]
	if p == nil {
		p = s.newLocked(m, Source{m, bytes})
		if s.huge == nil {
			s.huge = map[uint64]*handles.Pool{}
		}
		s.huge[bytes] = p
	}
	return p
}

// dropped tells the pools that the session's own count of an index fell to zero; each looks
// whether the index is its own.
func (s *poolSet) dropped(index uint32) {
	for _, p := range s.all() {
		p.Dropped(index)
	}
}

// between runs f while no pool tests what it may recycle.
func (s *poolSet) between(f func()) {
	for _, p := range s.all() {
		next := f
		f = func() { p.Between(next) }
	}
	f()
}

func (s *poolSet) addStats(to *handles.PoolStats) {
	for _, p := range s.all() {
		s := p.Stats()
		to.Granted, to.Live, to.Warm = to.Granted+s.Granted, to.Live+s.Live, to.Warm+s.Warm
		to.Recycled, to.Tests = to.Recycled+s.Recycled, to.Tests+s.Tests
	}
}

// EachPool calls f with every pool of the session.
func (m *Memory) EachPool(f func(*handles.Pool)) {
	f(m.pool)
	for _, p := range m.pools.all() {
		f(p)
	}
}

// EndPools is called before the session ends, with what every later allocation fails with.
func (m *Memory) EndPools(why error) { m.EachPool(func(p *handles.Pool) { p.End(why) }) }

// PoolOf returns the pool of the machine's memory in huge pages of a size; 0: in usual ones.
func (m *Memory) PoolOf(pageBytes uint64) *handles.Pool {
	if pageBytes == 0 {
		return m.pool
	}
	return m.pools.ofHugePages(m, pageBytes)
}

// AddPool makes another pool of the session's.
func (m *Memory) AddPool(from handles.Source) *handles.Pool { return m.pools.add(m, from) }

// Modest has the session take no more memory than its tensors need.
func (m *Memory) Modest() { m.pool.Modest() }

// RecycleOne tests one storage that this session has let go of: where it delays nothing.
func (m *Memory) RecycleOne() { m.pool.RecycleOne() }
