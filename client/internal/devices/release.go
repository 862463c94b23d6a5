package devices

import (
	"sync"
	"time"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/client/internal/gpu"
	"github.com/baton-ipc/baton/client/internal/memory"
)

// deferredReleases are holdings that were released while streams of this process still use
// them: each is counted in the refcounts until they have passed. A goroutine looks after
// them, and after tensors that C code has, whose deleters make no call.
type deferredReleases struct {
	mu      sync.Mutex // guards what follows
	waiting []*memory.Holding
	exports map[uint64]*memory.Holding // by cookie
	next    uint64
	running bool
	closed  bool
	ended   sync.WaitGroup
	kick    chan struct{}
}

const (
	lookSoonest      = 50 * time.Microsecond
	lookLatest       = 50 * time.Millisecond
	lookLatestAtLent = time.Second // others let go of it without a word
)

func (r *deferredReleases) init() {
	r.exports, r.kick = map[uint64]*memory.Holding{}, make(chan struct{}, 1)
}

// DeferRelease ends a holding that streams have used: at once if they have passed, else
// when they have.
func (d *Set) DeferRelease(h *memory.Holding, u *gpu.Use) {
	if !u.MarkAll(d.order) {
		return // it stays counted until this process has ended
	}
	if u.Idle() {
		h.LetGo()
		return
	}
	d.deferredReleases.mu.Lock()
	d.waiting = append(d.waiting, h)
	d.look(d)
	d.deferredReleases.mu.Unlock()
}

// Exported keeps a holding for C code and returns the cookie of its export.
func (d *Set) Exported(h *memory.Holding) (uint64, error) {
	d.deferredReleases.mu.Lock()
	defer d.deferredReleases.mu.Unlock()
	if d.closed { // nothing may look for its deletion any more
		return 0, fault.Closed("client")
	}
	h.Retain()
	d.next++
	d.exports[d.next] = h
	d.look(d)
	return memory.DeviceCookie | d.next, nil
}

// Deleted ends an export.
func (d *Set) Deleted(cookie uint64) {
	d.deferredReleases.mu.Lock()
	h := d.exports[cookie&^memory.DeviceCookie]
	delete(d.exports, cookie&^memory.DeviceCookie)
	d.deferredReleases.mu.Unlock()
	if h != nil {
		h.Release()
	}
}

// HasExports tells whether C code has tensors on GPUs from this session. Nothing but this
// learns of their deletion.
func (d *Set) HasExports() bool {
	d.deferredReleases.mu.Lock()
	defer d.deferredReleases.mu.Unlock()
	return len(d.exports) > 0
}

// look makes sure that the goroutine runs and looks soon. Callers hold r.mu.
func (r *deferredReleases) look(d *Set) {
	if !r.running && !r.closed {
		r.running = true
		r.ended.Add(1)
		go d.lookAfter()
	}
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// lookAfter runs while anything waits, C code has tensors, or something is lent, less
// often while nothing changes.
func (d *Set) lookAfter() {
	defer d.ended.Done()
	timer := time.NewTimer(lookSoonest)
	defer timer.Stop()
	for pause := lookSoonest; ; {
		changed := d.sweepDeferred()
		d.m.Reap()
		d.sweepLent()
		latest := lookLatest
		d.deferredReleases.mu.Lock()
		if len(d.waiting) == 0 && len(d.exports) == 0 {
			latest = lookLatestAtLent
		}
		if d.closed || latest == lookLatestAtLent && !d.lend.any() {
			d.running = false
			d.deferredReleases.mu.Unlock()
			return
		}
		d.deferredReleases.mu.Unlock()
		if pause = min(2*pause, latest); changed {
			pause = lookSoonest
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-d.kick:
			pause = lookSoonest
		}
	}
}

// sweepDeferred lets go of what streams have passed.
func (d *Set) sweepDeferred() (changed bool) {
	d.deferredReleases.mu.Lock()
	var over, left []*memory.Holding
	for _, h := range d.waiting {
		if h.Device.Load().Idle() {
			over = append(over, h)
		} else {
			left = append(left, h)
		}
	}
	d.waiting = left
	d.deferredReleases.mu.Unlock()
	for _, h := range over {
		h.LetGo()
	}
	return len(over) > 0
}

// Close waits until nothing of this process uses memory on a device any more: the
// broker gives it to others when the session is over.
func (d *Set) Close() {
	for _, g := range *d.all.Load() {
		// Of a context that is lost nothing runs any more.
		_ = g.Synchronize()
	}
	d.deferredReleases.mu.Lock()
	d.closed = true
	select {
	case d.kick <- struct{}{}:
	default:
	}
	d.deferredReleases.mu.Unlock()
	d.ended.Wait()
	d.lend.end()
	d.order.End()
}
