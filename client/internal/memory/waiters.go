package memory

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/client/internal/waits"
	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// memoryWaiters tells allocations that wait for memory that there may be some.
type memoryWaiters struct {
	waiting  atomic.Int32  // allocations
	releases atomic.Uint64 // of this process's last references, while an allocation waits
	events   atomic.Uint64 // of the broker's
}

func (r *memoryWaiters) released(h *waits.Hub) {
	if r.waiting.Load() > 0 {
		r.releases.Add(1)
		h.WakeAll()
	}
}

func (r *memoryWaiters) told(h *waits.Hub) {
	r.events.Add(1)
	h.WakeAll()
}

// forGivenUp is for how long an allocation waits at least for memory that pickles were given up for: some longer than between two looks of its own.
const forGivenUp = shm.LookAgain + time.Second

// full tells whether memory that comes free would help.
func full(err error) bool {
	code := fault.Code(err)
	return code == protocol.CodeOutOfMemory || code == protocol.CodeQuota
}

// allocWhenFull allocates where the first attempt found no memory: after
// withdrawing what queues are done with, and then again whenever there may be
// some. A release here or a reader's ring may have made room in what this session
// has; the broker sends the event room for memory elsewhere. No event tells when the last holder
// elsewhere lets go, so a waiter also looks once a second. It returns the last
// refusal when wait is over.
func (m *Memory) allocWhenFull(ctx context.Context, pool *handles.Pool, n uint64, wait time.Duration) (*handles.Storage, error) {
	m.waiters.waiting.Add(1)
	defer m.waiters.waiting.Add(-1)
	until, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	var refusal error
	events, began := m.waiters.events.Load()-1, uint64(0)
	for {
		releases, bell := m.waiters.releases.Load(), m.files.Parking.Bell()
		m.WithdrawDone()
		s, err := pool.AllocHere(n)
		asked := false
		if e := m.waiters.events.Load(); s == nil && err == nil && (e != events || sys.Monotonic()-began >= uint64(shm.LookAgain)) {
			events, began = e, sys.Monotonic()
			s, err = pool.Alloc(ctx, n)
			refusal, asked = err, true
			if full(err) {
				err = nil
			}
		}
		if s != nil || err != nil {
			return s, err
		}
		if ctx.Err() == context.Canceled {
			return nil, fault.Context(ctx, "waiting for memory")
		}
		if asked && fault.GaveUp(refusal) { // pickles, for this allocation: one more attempt may find what they held
			// At once where it was memory of this session. It may not have the file of one that has just
			// let go yet, and others give back when they are asked: then it waits a while.
			if left, has := until.Deadline(); !has || time.Until(left) < forGivenUp {
				longer, stop := context.WithTimeout(ctx, forGivenUp)
				defer stop() // few: each of them has freed something
				until = longer
			}
			if !fault.Elsewhere(refusal) {
				events--
				continue
			}
		}
		if until.Err() != nil {
			return nil, refusal
		}
		m.waits.Wait(until, 0, func() bool {
			return m.waiters.events.Load() != events || m.waiters.releases.Load() != releases ||
				m.files.Parking.Bell() != bell || sys.Monotonic()-began >= uint64(shm.LookAgain)
		})
		if err := m.life.Ended(); err != nil {
			return nil, err
		}
	}
}

// MemoryFreed notes the event by which the broker says that there may be memory.
func (m *Memory) MemoryFreed() { m.waiters.told(m.waits) }
