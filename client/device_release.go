package client

import (
	"sync"
	"time"
)

// retired are holdings that were released while streams of this process still use
// them: each is counted in the row until they have passed. A goroutine looks after
// them, and after tensors that C code has, whose deleters make no call.
type retired struct {
	mu      sync.Mutex // guards what follows
	waiting []*holding
	exports map[uint64]*holding // by cookie
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

func (r *retired) init() { r.exports, r.kick = map[uint64]*holding{}, make(chan struct{}, 1) }

// Retire ends a holding that streams have used: at once if they have passed, else
// when they have.
func (d *deviceSet) Retire(h *holding, u *use) {
	if !u.settle(d.order) {
		return // it stays counted until this process has ended
	}
	if u.idle() {
		h.letGo()
		return
	}
	d.retired.mu.Lock()
	d.waiting = append(d.waiting, h)
	d.look(d)
	d.retired.mu.Unlock()
}

// exported keeps a holding for C code and returns the cookie of its export.
func (d *deviceSet) exported(h *holding) (uint64, error) {
	d.retired.mu.Lock()
	defer d.retired.mu.Unlock()
	if d.closed { // nobody may look for its deletion any more
		return 0, errClosed("client")
	}
	h.retain()
	d.next++
	d.exports[d.next] = h
	d.look(d)
	return deviceCookie | d.next, nil
}

// Deleted ends an export.
func (d *deviceSet) Deleted(cookie uint64) {
	d.retired.mu.Lock()
	h := d.exports[cookie&^deviceCookie]
	delete(d.exports, cookie&^deviceCookie)
	d.retired.mu.Unlock()
	if h != nil {
		h.release()
	}
}

// hasExports tells whether C code has tensors on GPUs from this session. Nothing but this
// learns of their deletion.
func (d *deviceSet) hasExports() bool {
	d.retired.mu.Lock()
	defer d.retired.mu.Unlock()
	return len(d.exports) > 0
}

// look makes sure that the goroutine runs and looks soon. Callers hold r.mu.
func (r *retired) look(d *deviceSet) {
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
func (d *deviceSet) lookAfter() {
	defer d.ended.Done()
	timer := time.NewTimer(lookSoonest)
	defer timer.Stop()
	for pause := lookSoonest; ; {
		changed := d.sweepRetired()
		d.m.reap()
		d.sweepLent()
		latest := lookLatest
		d.retired.mu.Lock()
		if len(d.waiting) == 0 && len(d.exports) == 0 {
			latest = lookLatestAtLent
		}
		if d.closed || latest == lookLatestAtLent && !d.lend.any() {
			d.running = false
			d.retired.mu.Unlock()
			return
		}
		d.retired.mu.Unlock()
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

// sweepRetired lets go of what streams have passed.
func (d *deviceSet) sweepRetired() (changed bool) {
	d.retired.mu.Lock()
	var over, left []*holding
	for _, h := range d.waiting {
		if h.device.Load().idle() {
			over = append(over, h)
		} else {
			left = append(left, h)
		}
	}
	d.waiting = left
	d.retired.mu.Unlock()
	for _, h := range over {
		h.letGo()
	}
	return len(over) > 0
}

// close waits until nothing of this process uses memory on a device any more: the
// broker gives it to others when the session is over.
func (d *deviceSet) close() {
	for _, g := range *d.all.Load() {
		// Of a context that is lost nothing runs any more.
		_ = g.Synchronize()
	}
	d.retired.mu.Lock()
	d.closed = true
	select {
	case d.kick <- struct{}{}:
	default:
	}
	d.retired.mu.Unlock()
	d.ended.Wait()
	d.lend.end()
	d.order.end()
}
