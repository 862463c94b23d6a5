package client

import (
	"context"
	"sync/atomic"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/client/internal/lanes"
	"github.com/baton-ipc/baton/protocol"
)

// Queue gives each item to one taker.
type Queue struct {
	c      *Client
	t      *lanes.Topic
	out    outgoing      // for the use of whichever has the turn to put
	turn   chan struct{} // one taker at a time uses the reader
	reader *Reader
	closed atomic.Bool
}

// Queue opens or makes a queue. An empty name makes a private one. Errors are those of
// Client.Topic.
func (c *Client) Queue(ctx context.Context, name string, opts ...QueueOption) (*Queue, error) {
	r := opening{TopicOpenRequest: protocol.TopicOpenRequest{Name: name, Kind: protocol.KindQueue, Create: true}}
	for _, o := range opts {
		o.queue(&r)
	}
	t, err := c.openNamed(ctx, &r)
	if err != nil {
		return nil, err
	}
	return &Queue{c: c, t: t, turn: make(chan struct{}, 1)}, nil
}

// OpenPrivateQueue opens another process's private queue by its token. Errors are those of
// OpenPrivate.
func (c *Client) OpenPrivateQueue(ctx context.Context, token string) (*Queue, error) {
	t, err := c.openNumbered(ctx, protocol.TopicOpenRequest{Token: token, Kind: protocol.KindQueue})
	if err != nil {
		return nil, err
	}
	return &Queue{c: c, t: t, turn: make(chan struct{}, 1)}, nil
}

// Info tells what the queue is.
func (q *Queue) Info() protocol.TopicInfo { return q.t.Info }

// Token opens a private queue in another process.
func (q *Queue) Token() string { return q.t.Info.Token }

// shut is the error of a use of a queue that was closed, or never opened; nil of another one.
func (q *Queue) shut() error {
	switch {
	case q.t == nil:
		return protocol.Errorf(protocol.CodeClosed, "open it by Client.Queue", "the queue was not opened")
	case q.closed.Load():
		return fault.Closed(q.t.Title())
	}
	return nil
}

// Put adds an item, as Topic.Send does, waiting while the queue is full (ErrFull
// at the deadline of ctx, ErrClosed once it was closed). The taker may write it.
func (q *Queue) Put(ctx context.Context, v any, opts ...SendOption) error {
	if err := q.shut(); err != nil {
		return err
	}
	return q.c.send(ctx, q.t, &q.out, v, protocol.SlotWritable, opts)
}

// Get takes an item, waiting for one (ErrEmpty at the deadline of ctx, ErrClosed
// when the queue was closed and is empty). The caller releases it. Goroutines
// that share the Queue take turns.
func (q *Queue) Get(ctx context.Context) (*Message, error) {
	if err := q.shut(); err != nil {
		return nil, err
	}
	select {
	case q.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, q.t.Timeout(ctx, protocol.CodeEmpty, "no item")
	}
	defer func() { <-q.turn }()
	m, err := q.get(ctx)
	if err != nil && q.reader != nil {
		q.reader.r.PassOn()
	}
	return m, err
}

// get is Get for a caller that has the turn.
func (q *Queue) get(ctx context.Context) (*Message, error) {
	for {
		m, err := q.take(ctx)
		if m != nil {
			return m, nil
		}
		if err != nil {
			if q.t.LooksAgain(ctx, err) {
				continue
			}
			return nil, q.t.DeadlineError(ctx, err, protocol.CodeEmpty)
		}
		ready := func() bool { return q.closed.Load() || q.reader.r.Ready() }
		if q.reader.r.Await(ctx, ready) != nil {
			return nil, q.t.Timeout(ctx, protocol.CodeEmpty, "no item")
		}
	}
}

// TryGet takes an item if one is there, else it returns nil. It does not wait for items; ctx bounds
// what must be asked of the broker, at the first call for one. Other goroutines that are in Get
// come first. Errors are those of Get, but for ErrEmpty; the caller releases the item.
func (q *Queue) TryGet(ctx context.Context) (*Message, error) {
	if err := q.shut(); err != nil {
		return nil, err
	}
	select {
	case q.turn <- struct{}{}:
	default:
		return nil, nil
	}
	defer func() { <-q.turn }()
	return q.take(ctx)
}

// take joins the queue's takers at the first call and takes an item if there is
// one. Callers have the turn.
func (q *Queue) take(ctx context.Context) (*Message, error) {
	if err := q.shut(); err != nil {
		return nil, err
	}
	if q.reader == nil {
		group := "queue"
		r, err := q.t.Read(ctx, lanes.StartAll, &group)
		if err != nil {
			return nil, err
		}
		q.reader = &Reader{c: q.c, t: q.t, r: r}
	}
	return q.reader.poll(ctx)
}

// Len returns how many items wait to be taken. ErrNotFound: the queue is no more.
func (q *Queue) Len(ctx context.Context) (int, error) { return q.t.CountItems(ctx) }

// Close ends this use of the queue, and a Get that waits in another goroutine. Other uses, of this
// process and of others, stay open, and items put stay for takers; End closes the queue for all. A
// second Close does nothing. Errors are those of Topic.Close.
func (q *Queue) Close() error {
	if q.t == nil || q.closed.Swap(true) {
		return nil
	}
	q.c.s.Waits.WakeAll()
	q.turn <- struct{}{} // of a Get that sees that it is closed, or ends by its context
	if q.reader != nil {
		q.reader.Close()
	}
	<-q.turn
	return q.t.Close()
}

// End closes the queue for all sessions, which Close does not: puts fail with ErrClosed, and takers get it
// once the queue is empty.
func (q *Queue) End(ctx context.Context) error { return q.t.CloseForAll(ctx) }
