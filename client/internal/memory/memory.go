package memory

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/baton-ipc/baton/client/internal/gpu"
	"github.com/baton-ipc/baton/client/internal/life"
	"github.com/baton-ipc/baton/client/internal/sessionfiles"
	"github.com/baton-ipc/baton/client/internal/turn"
	"github.com/baton-ipc/baton/client/internal/waits"
	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/sparse"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Broker is where a session's memory comes from, and the files of others.
type Broker interface {
	Call(ctx context.Context, op string, body, ok any, send ...*sys.FD) ([]*sys.FD, error)
	// CallUntil waits for a broker as long as ctx lasts.
	CallUntil(ctx context.Context, op string, body, ok any, send ...*sys.FD) ([]*sys.FD, error)
	IsAway() bool
}

// Later is what is to be done off the hot path.
type Later interface {
	MapPeer(slot uint32, serial uint64)
	ForgetPeers()
}

// Lanes is what the lanes of a session have to do with its memory.
type Lanes interface {
	// WithdrawDone counts down what messages name that nothing needs any more.
	WithdrawDone()
	// MarkPeers adds the sessions whose lanes are looked at, by serial.
	MarkPeers(used map[uint64]bool)
	// AttachAhead considers what is about to be taken.
	AttachAhead(*Ahead)
}

// Devices is what a session has on GPUs.
type Devices interface {
	// SegmentOf makes what a segment of another session is on its device.
	SegmentOf(r *protocol.SegmentReply, seg *shm.Segment) (*gpu.Segment, error)
	// Dropped is called when the session's own count of an index fell to zero.
	Dropped(index uint32)
	// Deleted is called when C code has deleted an export.
	Deleted(cookie uint64)
	// DeferRelease lets go of a holding when streams have passed that use it.
	DeferRelease(h *Holding, u *gpu.Use)
	// Sweep ends what is lent and that nothing holds any more.
	Sweep(ctx context.Context)
	// Between runs f while nothing lent is tested.
	Between(f func())
}

// Memory is what a session holds and has: segments, chunks that it is attached to, the counts
// in its refcounts, and the pools that it allocates from.
type Memory struct {
	broker  Broker
	files   *sessionfiles.Files
	life    *life.Life
	waits   *waits.Hub
	later   Later
	lanes   Lanes
	devices Devices // nil: no GPUs
	trace   bool

	pool    *handles.Pool // of the machine's usual pages
	pools   poolSet
	waiters memoryWaiters

	attached  sparse.Table[Attachment] // by chunk
	Attaching turn.Turn                // one goroutine attaches at a time

	mu         sync.Mutex          // guards what follows
	closed     bool                // nothing is mapped any more
	segments   map[uint64]*Segment // by serial
	forReaders map[uint32]uint64   // what the refcounts of a session that is over count for readers of its lanes

	granting sync.RWMutex  // read: a grant is asked for or made ready; see ReturnStray
	restores atomic.Uint64 // how many brokers have asked for the files that are here
	owedMu   sync.Mutex
	owed     map[protocol.RestoreItem]bool // what the broker may lack of them
}

// New makes the memory of a new session, which is used after With.
func New(b Broker, p *sessionfiles.Files, l *life.Life, waits *waits.Hub, after Later, limits protocol.Limits, trace bool) *Memory {
	m := &Memory{broker: b, files: p, life: l, waits: waits, later: after, trace: trace, Attaching: turn.New(), segments: map[uint64]*Segment{}}
	if trace {
		p.Session.Store32(protocol.SessionTraceOn, 1) // the broker shows traces then
	}
	m.pool = handles.NewPool(Source{m: m}, p.Refcounts, m.FreeTest(), limits)
	return m
}

// With has what lanes and devices a session has take part; on is nil without GPUs.
func (m *Memory) With(l Lanes, on Devices) { m.lanes, m.devices = l, on }

// CountWord is where C code counts a storage down.
func (m *Memory) CountWord(index uint32) *uint64 { return m.files.Refcounts.Word(index) }

// CountUp counts one reference up in the session's own refcounts. A client that ends its session, and a
// broker that is being stopped, look at the refcounts after that: what is counted later is undone.
//
// SYNC undecided: looked at after the count.
func (m *Memory) CountUp(index uint32) error {
	for {
		if err := m.files.Refcounts.Take(index); err != nil {
			return m.life.Refused(err)
		}
		undecided := m.life.Undecided()
		err := m.life.Ended()
		if undecided == nil && err == nil {
			return nil
		}
		m.files.Refcounts.Drop(index)
		if err == nil {
			err = undecided.Wait()
		}
		if err != nil {
			return err
		}
	}
}

// Drop counts a reference down and queues the storage for reclaim.
func (m *Memory) Drop(index uint32) {
	if m.files.Refcounts.Drop(index) {
		m.queueForReclaim(index)
		m.waiters.released(m.waits)
	}
}

// queueForReclaim lets the pool of a storage that this session does not hold any more test
// whether it is free.
func (m *Memory) queueForReclaim(index uint32) {
	m.pool.Dropped(index)
	m.pools.dropped(index)
	if m.devices != nil {
		m.devices.Dropped(index)
	}
}

// WithdrawDone does what frees storages: it withdraws queue messages that are done,
// and takes note of DLPack tensors that C code has deleted.
func (m *Memory) WithdrawDone() {
	m.lanes.WithdrawDone()
	m.Reap()
}

// Reap takes note of DLPack tensors that C code has deleted.
func (m *Memory) Reap() {
	m.files.Exports.Reap(func(cookie uint64) {
		if cookie&DeviceCookie != 0 {
			m.devices.Deleted(cookie)
			return
		}
		if m.files.Refcounts.Count(uint32(cookie)) == 0 {
			m.queueForReclaim(uint32(cookie))
		}
	})
}

// Reclaim has a way of the pools' give memory back, and returns the bytes.
func (m *Memory) Reclaim(pool func(*handles.Pool, context.Context) uint64) uint64 {
	m.WithdrawDone()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if m.devices != nil {
		m.devices.Sweep(ctx)
	}
	given := uint64(0)
	m.EachPool(func(p *handles.Pool) { given += pool(p, ctx) })
	return given
}

// Close has nothing mapped any more. What is mapped stays until UnmapFree and CloseFiles.
func (m *Memory) Close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
}

// Stats gives the figures of all pools, and how many segments are mapped.
func (m *Memory) Stats() (s handles.PoolStats, segments int) {
	s = m.pool.Stats()
	m.pools.addStats(&s)
	m.mu.Lock()
	defer m.mu.Unlock()
	return s, len(m.segments)
}

// DeviceCookie is set in the cookie of an export of memory on a device; others are
// storage indices.
const DeviceCookie = 1 << 40
