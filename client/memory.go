package client

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/sparse"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// toBroker is where a session's memory comes from, and the files of others.
type toBroker interface {
	Call(ctx context.Context, op string, body, ok any, send ...*sys.FD) ([]*sys.FD, error)
	// CallUntil waits for a broker as long as ctx lasts.
	CallUntil(ctx context.Context, op string, body, ok any, send ...*sys.FD) ([]*sys.FD, error)
	IsAway() bool
}

// later is what is to be done off the hot path.
type later interface {
	MapPeer(slot uint32, serial uint64)
	ForgetPeers()
}

// laneUse is what the lanes of a session have to do with its memory.
type laneUse interface {
	// WithdrawDone counts down what messages name that nothing needs any more.
	WithdrawDone()
	// MarkPeers adds the sessions whose lanes are looked at, by serial.
	MarkPeers(used map[uint64]bool)
	// AttachAhead considers what is about to be taken.
	AttachAhead(*ahead)
}

// deviceUse is what a session has on GPUs.
type deviceUse interface {
	// SegmentOf makes what a segment of another session is on its device.
	SegmentOf(r *protocol.SegmentReply, seg *shm.Segment) (*deviceSegment, error)
	// Dropped hears that the own count of an index fell to zero.
	Dropped(index uint32)
	// Deleted hears that C code has deleted an export.
	Deleted(cookie uint64)
	// Retire lets go of a holding when streams have passed that use it.
	Retire(h *holding, u *use)
	// Sweep ends what is lent and that nothing holds any more.
	Sweep(ctx context.Context)
	// Between runs f while nothing lent is tested.
	Between(f func())
}

// memory is what a session holds and has: segments, chunks that it is attached to, the counts
// in its row, and the pools that it allocates from.
type memory struct {
	broker  toBroker
	pages   *pages
	life    *life
	waits   *hub
	later   later
	lanes   laneUse
	devices deviceUse // nil: no GPUs
	trace   bool

	pool  *handles.Pool // of the machine's usual pages
	pools poolSet
	room  room

	attached  sparse.Table[attachment] // by chunk
	attaching turn                     // one goroutine attaches at a time

	mu         sync.Mutex               // guards what follows
	closed     bool                     // nothing is mapped any more
	segments   map[uint64]*segmentEntry // by serial
	forReaders map[uint32]uint64        // what the row of a session that is over counts for readers of its lanes

	granting sync.RWMutex  // read: a grant is asked for or made ready; see returnStray
	restores atomic.Uint64 // how many brokers have asked for the files that are here
	owedMu   sync.Mutex
	owed     map[fileKey]bool // what the broker may lack of them
}

// newMemory makes the memory of a new session, which is used behind with.
func newMemory(b toBroker, p *pages, l *life, waits *hub, after later, limits protocol.Limits, trace bool) *memory {
	m := &memory{broker: b, pages: p, life: l, waits: waits, later: after, trace: trace, attaching: newTurn(), segments: map[uint64]*segmentEntry{}}
	if trace {
		p.session.Store32(protocol.SessionTraceOn, 1) // the broker shows traces then
	}
	m.pool = handles.NewPool(source{m: m}, p.row, m.freeTest(), limits)
	return m
}

// with has what lanes and devices a session has take part; on is nil without GPUs.
func (m *memory) with(l laneUse, on deviceUse) { m.lanes, m.devices = l, on }

// countWord is where C code counts a storage down.
func (m *memory) countWord(index uint32) *uint64 { return m.pages.row.Word(index) }

// countUp counts one reference up in the own row. A client that ends its session, and a
// broker that is being stopped, look at the row behind that: what is counted later is undone.
//
// SYNC limbo: looked at behind the count.
func (m *memory) countUp(index uint32) error {
	for {
		if err := m.pages.row.Take(index); err != nil {
			return m.life.refused(err)
		}
		limbo := m.life.inLimbo()
		err := m.life.ended()
		if limbo == nil && err == nil {
			return nil
		}
		m.pages.row.Drop(index)
		if err == nil {
			err = limbo.wait()
		}
		if err != nil {
			return err
		}
	}
}

// drop counts a reference down and offers the storage for recycling.
func (m *memory) drop(index uint32) {
	if m.pages.row.Drop(index) {
		m.offer(index)
		m.room.released(m.waits)
	}
}

// offer lets the pool of a storage that this session does not hold any more test
// whether it is free.
func (m *memory) offer(index uint32) {
	m.pool.Dropped(index)
	m.pools.dropped(index)
	if m.devices != nil {
		m.devices.Dropped(index)
	}
}

// settle does what frees storages: it withdraws queue messages that are done,
// and takes note of DLPack tensors that C code has deleted.
func (m *memory) settle() {
	m.lanes.WithdrawDone()
	m.reap()
}

// reap takes note of DLPack tensors that C code has deleted.
func (m *memory) reap() {
	m.pages.dl.reap(func(cookie uint64) {
		if cookie&deviceCookie != 0 {
			m.devices.Deleted(cookie)
			return
		}
		if m.pages.row.Count(uint32(cookie)) == 0 {
			m.offer(uint32(cookie))
		}
	})
}

// collect has a way of the pools' give memory back, and returns the bytes.
func (m *memory) collect(pool func(*handles.Pool, context.Context) uint64) uint64 {
	m.settle()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if m.devices != nil {
		m.devices.Sweep(ctx)
	}
	given := uint64(0)
	m.eachPool(func(p *handles.Pool) { given += pool(p, ctx) })
	return given
}

// close has nothing mapped any more. What is mapped stays until unmapFree and closeFiles.
func (m *memory) close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
}

// stats gives the figures of all pools, and how many segments are mapped.
func (m *memory) stats() (s handles.PoolStats, segments int) {
	s = m.pool.Stats()
	m.pools.addStats(&s)
	m.mu.Lock()
	defer m.mu.Unlock()
	return s, len(m.segments)
}

// deviceCookie is set in the cookie of an export of memory on a device; others are
// storage indices.
const deviceCookie = 1 << 40
