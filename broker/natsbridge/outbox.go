package natsbridge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	outboxMessages = 1 << 16  // queued at most, so that empty messages are bounded too
	batchBytes     = 64 << 10 // of a batch, unless one message has more
	batchMessages  = 512      // of a batch
	spareBatches   = 16       // kept while nothing is queued
)

// outbox takes messages without waiting and hands them in batches to one goroutine,
// which may wait for the network. Batches are used again: while the goroutine keeps
// up there are two or three, which stay in the processor's cache.
type outbox struct {
	limit int
	wake  chan struct{} // cap 1: sent when idle becomes false
	ended chan struct{}

	mu       sync.Mutex
	batches  []*batch // the last one is being filled
	spare    []*batch
	messages int // queued
	bytes    int
	idle     bool
	closed   bool
	queued   uint64 // messages taken so far
	handled  uint64 // messages handed to send so far
	waiting  []outboxWaiter
	command  command
}

// batch is a run of messages as a client of NATS writes them, one after another.
type batch struct {
	items []outboxItem
	bytes []byte
}

// outboxItem is where the data of a message stand in its batch.
type outboxItem struct {
	subject  string
	from, to int
}

// frameBytes is what a message has at most beside its subject and its data.
const frameBytes = len("PUB  18446744073709551615\r\n\r\n")

// command is the line before a message's data. It is kept from one message to the
// next: those of a subject are mostly of one size.
type command struct {
	text    []byte
	subject string
	size    int
}

func (c *command) of(subject string, size int) []byte {
	if size != c.size || subject != c.subject || len(c.text) == 0 {
		c.subject, c.size = subject, size
		c.text = append(append(append(c.text[:0], "PUB "...), subject...), ' ')
		c.text = append(strconv.AppendUint(c.text, uint64(size), 10), '\r', '\n')
	}
	return c.text
}

// add writes a message after the others.
func (b *batch) add(subject string, command, data []byte) {
	w := append(b.bytes, command...)
	from := len(w)
	w = append(w, data...)
	b.items = append(b.items, outboxItem{subject, from, len(w)})
	b.bytes = append(w, '\r', '\n')
}

// outboxWaiter is released when so many messages have been handled.
type outboxWaiter struct {
	target uint64
	done   chan struct{}
}

func newOutbox(limit int) *outbox {
	return &outbox{limit: limit, wake: make(chan struct{}, 1), ended: make(chan struct{})}
}

// put queues copies of messages, message i being text[bounds[i]:bounds[i+1]], until
// the queue is full or closed or one is larger than most. It returns how many.
func (o *outbox) put(subject string, most int, text []byte, bounds []int) (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for ; n < len(bounds)-1; n++ {
		data := text[bounds[n]:bounds[n+1]]
		if o.closed || o.messages >= outboxMessages || len(data) > most || len(data) > o.limit-o.bytes {
			break
		}
		b := o.roomLocked(frameBytes + len(subject) + len(data))
		before := len(b.bytes)
		b.add(subject, o.command.of(subject, len(data)), data)
		o.messages++
		o.bytes += len(b.bytes) - before
	}
	if n > 0 {
		o.queued += uint64(n)
		o.wakeLocked()
	}
	return n
}

// roomLocked gives the batch that the next message belongs to.
func (o *outbox) roomLocked(bytes int) *batch {
	if k := len(o.batches); k > 0 {
		if b := o.batches[k-1]; len(b.items) < batchMessages && bytes <= cap(b.bytes)-len(b.bytes) {
			return b
		}
	}
	var b *batch
	if k := len(o.spare); k > 0 {
		b, o.spare = o.spare[k-1], o.spare[:k-1]
	} else {
		b = &batch{items: make([]outboxItem, 0, batchMessages), bytes: make([]byte, 0, max(batchBytes, bytes))}
	}
	o.batches = append(o.batches, b)
	return b
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
func (o *outbox) run(send func(*batch)) {
	defer close(o.ended)
	for {
		b := o.take()
		if b == nil {
			return
		}
		send(b)
		o.done(b)
	}
}

// take waits for a batch; nil when the outbox is closed and empty.
func (o *outbox) take() *batch {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.batches) == 0 {
		if o.closed {
			return nil
		}
		o.idle = true
		o.mu.Unlock()
		<-o.wake
		o.mu.Lock()
	}
	b := o.batches[0]
	o.batches = slices.Delete(o.batches, 0, 1)
	return b
}

// done counts a batch as handled and keeps it for later.
func (o *outbox) done(b *batch) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.messages -= len(b.items)
	o.bytes -= len(b.bytes)
	o.handled += uint64(len(b.items))
	o.waiting = slices.DeleteFunc(o.waiting, func(w outboxWaiter) bool {
		if o.handled < w.target {
			return false
		}
		close(w.done)
		return true
	})
	if cap(b.bytes) <= batchBytes && len(o.spare) < spareBatches {
		clear(b.items) // lets go of the subjects
		b.items, b.bytes = b.items[:0], b.bytes[:0]
		o.spare = append(o.spare, b)
	}
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

// Publish queues copies of messages up to the first that is refused, and returns
// at once how many that is. Message i is text[bounds[i]:bounds[i+1]]. The one refused
// is counted as dropped, those behind it were not looked at. A message is refused
// because there is no connection, the queue is full, it is larger than the server
// takes, the subject is not of tokens [A-Za-z0-9_-] joined by '.', or the bridge is
// closed. Being taken promises no delivery: NATS may lose it.
func (b *Bridge) Publish(subject string, text []byte, bounds []int) (taken int) {
	if b.link.connected.Load() && validSubject(subject) {
		taken = b.outbox.put(subject, int(b.link.maxPayload.Load()), text, bounds)
	}
	if taken < len(bounds)-1 {
		b.dropped.Add(1)
	}
	return taken
}

// Missed counts messages as dropped that Publish is never given: subscribers do not get them either.
func (b *Bridge) Missed(n uint64) { b.dropped.Add(n) }

// Queued tells how many bytes have been published and not yet handed to the
// connection. A caller with much to publish should wait while this is more than a batch or two, so
// that memory is not filled faster than it can be sent.
func (b *Bridge) Queued() int {
	b.outbox.mu.Lock()
	defer b.outbox.mu.Unlock()
	return b.outbox.bytes
}

// send hands messages to the connection, in the outbox's goroutine. What was queued
// before the connection was lost is stale: it is not kept.
func (b *Bridge) send(messages *batch) {
	sent := 0
	if nc, pipe := b.link.current(); pipe != nil {
		if _, err := pipe.Write(messages.bytes); err == nil {
			sent = len(messages.items)
		} else {
			pipe.Close() // in the midst of a message, perhaps; nats.go connects again
		}
	} else if nc != nil {
		for _, m := range messages.items {
			if nc.Publish(m.subject, messages.bytes[m.from:m.to:m.to]) == nil {
				sent++
				b.link.refusals.sent(m.subject)
			}
		}
	}
	b.published.Add(uint64(sent))
	b.dropped.Add(uint64(len(messages.items) - sent))
}

// Flush returns when the server has all that was published before. Without a
// connection, or where it is lost meanwhile, the error is ErrDisconnected; messages may
// have been dropped. A context that has ended is the error whatever the connection does.
func (b *Bridge) Flush(ctx context.Context) error {
	if err := b.outbox.wait(ctx); err != nil {
		return fmt.Errorf("flush to NATS: %w", err)
	}
	nc, _ := b.link.current()
	if nc == nil && ctx.Err() == nil {
		return fmt.Errorf("flush to NATS: %w", ErrDisconnected)
	}
	// nats.go insists on a deadline.
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := nc.FlushWithContext(limited)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("flush to NATS: %w", ctx.Err())
	// nats.go says so of a connection that was lost under the flush, made anew or not.
	case errors.Is(err, nats.ErrConnectionClosed), !b.link.connected.Load():
		return fmt.Errorf("flush to NATS (%v): %w", err, ErrDisconnected)
	default:
		return fmt.Errorf("flush to NATS: %w", err)
	}
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
