package natsbridge

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	outboxMessages = 1 << 16 // queued at most, so that empty messages are bounded too
	outboxKeep     = 1 << 20 // bytes of buffer kept while nothing is queued
)

// outbox takes messages without waiting and hands them in batches to one goroutine,
// which may wait for the network. Two buffers take turns: one fills, one is sent.
type outbox struct {
	limit int
	wake  chan struct{} // cap 1: sent when idle becomes false
	ended chan struct{}

	mu      sync.Mutex
	filling batch
	idle    bool
	closed  bool
	queued  uint64 // messages taken so far
	handled uint64 // messages handed to send so far
	waiting []outboxWaiter
}

// batch is a run of messages, their bytes one after another.
type batch struct {
	items []outboxItem
	bytes []byte
}

type outboxItem struct {
	subject string
	end     int
}

// outboxWaiter is released when so many messages have been handled.
type outboxWaiter struct {
	target uint64
	done   chan struct{}
}

func newOutbox(limit int) *outbox {
	return &outbox{limit: limit, wake: make(chan struct{}, 1), ended: make(chan struct{})}
}

// put queues a copy. It returns false when the queue is full or closed.
func (o *outbox) put(subject string, data []byte) bool {
	o.mu.Lock()
	f := &o.filling
	if o.closed || len(f.items) >= outboxMessages || len(data) > o.limit-len(f.bytes) {
		o.mu.Unlock()
		return false
	}
	f.bytes = append(f.bytes, data...)
	f.items = append(f.items, outboxItem{subject, len(f.bytes)})
	o.queued++
	o.wakeLocked()
	o.mu.Unlock()
	return true
}

// wakeLocked wakes the goroutine. It never blocks: idle is set by the goroutine
// alone, which takes the former signal before it is idle again.
func (o *outbox) wakeLocked() {
	if o.idle {
		o.idle = false
		o.wake <- struct{}{}
	}
}

// run sends what is queued until the outbox is closed and empty.
func (o *outbox) run(send func(subject string, data []byte)) {
	defer close(o.ended)
	var out batch
	for {
		o.mu.Lock()
		o.handled += uint64(len(out.items))
		o.releaseLocked()
		if len(o.filling.items) == 0 {
			if o.closed {
				o.mu.Unlock()
				return
			}
			if cap(o.filling.bytes) > outboxKeep {
				o.filling = batch{}
			}
			o.idle = true
			o.mu.Unlock()
			if cap(out.bytes) > outboxKeep {
				out = batch{}
			}
			out.reset()
			<-o.wake
			continue
		}
		out.reset()
		o.filling, out = out, o.filling
		o.mu.Unlock()
		start := 0
		for _, m := range out.items {
			send(m.subject, out.bytes[start:m.end:m.end])
			start = m.end
		}
	}
}

func (b *batch) reset() {
	clear(b.items) // lets go of the subjects
	b.items, b.bytes = b.items[:0], b.bytes[:0]
}

func (o *outbox) releaseLocked() {
	o.waiting = slices.DeleteFunc(o.waiting, func(w outboxWaiter) bool {
		if o.handled < w.target {
			return false
		}
		close(w.done)
		return true
	})
}

// wait returns when all that was queued before has been handed to send.
func (o *outbox) wait(ctx context.Context) error {
	o.mu.Lock()
	if o.handled >= o.queued {
		o.mu.Unlock()
		return nil
	}
	w := outboxWaiter{o.queued, make(chan struct{})}
	o.waiting = append(o.waiting, w)
	o.mu.Unlock()
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
		o.mu.Lock()
		o.waiting = slices.DeleteFunc(o.waiting, func(x outboxWaiter) bool { return x.done == w.done })
		o.mu.Unlock()
		return ctx.Err()
	}
}

// close refuses further messages; the goroutine ends after the last one queued.
func (o *outbox) close() {
	o.mu.Lock()
	o.closed = true
	o.wakeLocked()
	o.mu.Unlock()
}

// Publish queues a message and returns at once. It returns false, and counts the
// message as dropped, when there is no connection, the queue is full, the message is
// larger than the server takes, the subject is not of tokens [A-Za-z0-9_-] joined by
// '.', or the bridge is closed. true promises no delivery: NATS may lose it. The
// data is copied.
func (b *Bridge) Publish(subject string, data []byte) bool {
	if b.link.connected.Load() && int64(len(data)) <= b.link.maxPayload.Load() &&
		validSubject(subject) && b.outbox.put(subject, data) {
		return true
	}
	b.dropped.Add(1)
	return false
}

// send hands one message to the connection, in the outbox's goroutine.
func (b *Bridge) send(subject string, data []byte) {
	// A message queued before the connection was lost is stale: it is not kept.
	nc := b.link.current()
	if nc == nil || nc.Publish(subject, data) != nil {
		b.dropped.Add(1)
		return
	}
	b.published.Add(1)
}

// Flush returns when the server has all that was published before. Without a
// connection the error is ErrDisconnected; messages may have been dropped.
func (b *Bridge) Flush(ctx context.Context) error {
	if err := b.outbox.wait(ctx); err != nil {
		return fmt.Errorf("flush to NATS: %w", err)
	}
	nc := b.link.current()
	if nc == nil {
		return fmt.Errorf("flush to NATS: %w", ErrDisconnected)
	}
	// nats.go insists on a deadline.
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := nc.FlushWithContext(ctx); err != nil {
		if !b.link.connected.Load() {
			return fmt.Errorf("flush to NATS (%v): %w", err, ErrDisconnected)
		}
		return fmt.Errorf("flush to NATS: %w", err)
	}
	return nil
}

// validSubject accepts tokens of [A-Za-z0-9_-] joined by '.'.
func validSubject(s string) bool {
	start := 0
	for i := 0; i < len(s); i++ {
		if s[i] == '.' {
			if i == start {
				return false
			}
			start = i + 1
		} else if !tokenByte[s[i]] {
			return false
		}
	}
	return start < len(s)
}

var tokenByte = func() (t [256]bool) {
	for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-") {
		t[c] = true
	}
	return t
}()
