package client

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
func (s *poolSet) add(m *memory, from handles.Source) *handles.Pool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newLocked(m, from)
}

func (s *poolSet) newLocked(m *memory, from handles.Source) *handles.Pool {
	p := handles.NewPool(from, m.pages.row, m.freeTest(), protocol.Limits{})
	all := append(slices.Clone(s.all()), p)
	s.pools.Store(&all)
	return p
}

// ofHugePages returns the pool of huge pages of a size.
func (s *poolSet) ofHugePages(m *memory, bytes uint64) *handles.Pool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.huge[bytes]
	if p == nil {
		p = s.newLocked(m, source{m, bytes})
		if s.huge == nil {
			s.huge = map[uint64]*handles.Pool{}
		}
		s.huge[bytes] = p
	}
	return p
}

// dropped tells the pools that the own count of an index fell to zero; each looks
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

// eachPool calls f with every pool of the session.
func (m *memory) eachPool(f func(*handles.Pool)) {
	f(m.pool)
	for _, p := range m.pools.all() {
		f(p)
	}
}

// endPools is called before the session ends, with what every later allocation fails with.
func (m *memory) endPools(why error) { m.eachPool(func(p *handles.Pool) { p.End(why) }) }

// poolOf returns the pool of the machine's memory in huge pages of a size; 0: in usual ones.
func (m *memory) poolOf(pageBytes uint64) *handles.Pool {
	if pageBytes == 0 {
		return m.pool
	}
	return m.pools.ofHugePages(m, pageBytes)
}

// addPool makes another pool of the session's.
func (m *memory) addPool(from handles.Source) *handles.Pool { return m.pools.add(m, from) }

// modest has the session take no more memory than its tensors need.
func (m *memory) modest() { m.pool.Modest() }

// recycleOne tests one storage that this session has let go of: where it delays nothing.
func (m *memory) recycleOne() { m.pool.RecycleOne() }
