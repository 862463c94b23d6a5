package client_test

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestClosedClientRefusesEverything(t *testing.T) {
	address, ctx := newBroker(t), limited(t)
	c := connect(t, address)
	topic, err := c.Topic(ctx, "t")
	require.NoError(t, err)
	reader, err := topic.Reader(ctx)
	require.NoError(t, err)
	queue, err := c.Queue(ctx, "q")
	require.NoError(t, err)
	x, err := c.Alloc(ctx, dlpack.Int64, []int64{8})
	require.NoError(t, err)
	require.NoError(t, topic.Send(ctx, x))
	require.NoError(t, queue.Put(ctx, x))
	m, err := queue.Get(ctx)
	require.NoError(t, err)
	there, err := x.Handle(ctx)
	require.NoError(t, err)
	gone := there
	gone.Serial += 1000
	_, err = c.Open(ctx, gone)
	require.ErrorIs(t, err, protocol.ErrExpired)
	require.NoError(t, c.Close())
	_, alloc := c.Alloc(ctx, dlpack.Int64, []int64{8})
	_, receive := reader.Receive(ctx)
	_, get := queue.Get(ctx)
	_, set := c.Set(ctx, "n", x)
	_, name := c.Get(ctx, "n")
	_, handle := x.Handle(ctx)
	_, open := c.Topic(ctx, "other")
	for what, err := range map[string]error{"Alloc": alloc, "Send": topic.Send(ctx, x), "Put": queue.Put(ctx, x),
		"Receive": receive, "Queue.Get": get, "Set": set, "Get": name, "Handle": handle, "Topic": open} {
		require.ErrorIs(t, err, protocol.ErrClosed, what)
	}
	_, opened := c.Open(ctx, there)
	require.ErrorIs(t, opened, protocol.ErrClosed)
	_, opened = c.Open(ctx, gone)
	require.ErrorIs(t, opened, protocol.ErrClosed)
	v, err := client.Slice[int64](x) // not released: still there, though it means nothing
	require.NoError(t, err)
	v[0] = 1
	m.Release()
	x.Release()
	require.NoError(t, c.Close())
}

// Whatever a goroutine is about when another one closes the session: a request that is made, is under way or is
// being answered is ended by that, and says so.
func TestWhateverIsUnderWayAtACloseSaysThatItIsClosed(t *testing.T) {
	address, ctx := newBroker(t), limited(t)
	for round := range 400 {
		c := connect(t, address)
		queue, err := c.Queue(ctx, "none", client.Linger(0)) // which ends with the session
		require.NoError(t, err)
		got, begun := make(chan error), make(chan struct{})
		go func() {
			close(begun)
			_, err := queue.Get(ctx)
			got <- err
		}()
		<-begun
		for range round { // the taker joins meanwhile: it is at another step each time
			runtime.Gosched()
		}
		require.NoError(t, c.Close())
		require.ErrorIs(t, <-got, protocol.ErrClosed, "round %d", round)
	}
}

// What is counted after the broker has looked at the refcounts would be for nothing.
func TestExportAfterCloseAndDropIsRefusedAsClosed(t *testing.T) {
	address, ctx := newBroker(t), limited(t)
	c := connect(t, address)
	x, err := c.Alloc(ctx, dlpack.Int64, []int64{8})
	require.NoError(t, err)
	before, err := x.ToDLPack()
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.NoError(t, dlpack.Release(before))
	_, err = x.ToDLPack()
	require.ErrorIs(t, err, protocol.ErrClosed)
	_, err = x.ToDLPackLegacy()
	require.ErrorIs(t, err, protocol.ErrClosed)
	x.Release()
}

// A Send that succeeds beside the closing of its topic is seen by a reader that reads to the end.
func TestSendBesideCloseOfTopicIsReceivedOrClosed(t *testing.T) {
	address, ctx := newBroker(t), limited(t)
	sender, other := connect(t, address), connect(t, address)
	for round := range 200 {
		name, overwrite := fmt.Sprintf("t/%d", round), round%2 == 0
		topic, err := other.Topic(ctx, name, client.Depth(64), client.Overwrite(overwrite), client.Linger(0))
		require.NoError(t, err)
		reader, err := topic.Reader(ctx)
		require.NoError(t, err)
		sending, err := sender.Topic(ctx, name)
		require.NoError(t, err)
		var senders sync.WaitGroup
		var sent atomic.Uint64
		for range 2 {
			senders.Go(func() {
				for {
					err := sending.Send(ctx, nil)
					if err != nil {
						assert.ErrorIs(t, err, protocol.ErrClosed)
						return
					}
					sent.Add(1)
				}
			})
		}
		seen := uint64(0)
		for {
			m, err := reader.Receive(ctx)
			if err != nil {
				require.ErrorIs(t, err, protocol.ErrClosed)
				break
			}
			if seen == 0 {
				senders.Go(func() { assert.NoError(t, topic.End(ctx)) })
			}
			seen += 1 + m.Lost
			m.Release()
		}
		seen += reader.Lost()
		senders.Wait()
		require.LessOrEqual(t, sent.Load(), seen, "round %d", round)
		require.NoError(t, reader.Close())
		require.NoError(t, topic.Close())
		require.NoError(t, sending.Close())
	}
}

// midst closes clients in the midst of puts, and of takes with redelivery: what a
// Put has said it sent is taken by a reader.
type midst struct {
	*testing.T
	mu         sync.Mutex
	put, taken map[int64]bool
	next       int64
}

func (t *midst) puts(c *client.Client, q *client.Queue) error {
	for {
		x, err := c.Alloc(limited(t), dlpack.Int64, []int64{1})
		if err != nil {
			return err
		}
		v, err := client.Slice[int64](x)
		require.NoError(t, err)
		v[0] = t.next
		if err := q.Put(limited(t), x); err != nil {
			return err
		}
		t.mu.Lock()
		t.put[t.next] = true
		t.mu.Unlock()
		t.next++
		x.Release()
	}
}

func (t *midst) takes(q *client.Queue, took chan<- struct{}) error {
	for {
		m, err := q.Get(limited(t))
		if err != nil {
			return err
		}
		v, err := client.Slice[int64](m.Tensor())
		require.NoError(t, err)
		t.mu.Lock()
		t.taken[v[0]] = true
		t.mu.Unlock()
		m.Release()
		select {
		case took <- struct{}{}:
		default:
		}
	}
}

func (t *midst) run(takersClose bool) {
	address, ctx := newBroker(t), limited(t)
	staying := connect(t, address)
	all, err := staying.Queue(ctx, "work", client.Redeliver(takersClose), client.Depth(4))
	require.NoError(t, err)
	took := make(chan struct{}, 64)
	drained := make(chan error, 1)
	if !takersClose {
		go func() { drained <- t.takes(all, took) }()
	}
	for range 60 {
		c := connect(t, address)
		q, err := c.Queue(ctx, "work")
		require.NoError(t, err)
		ended := make(chan error, 2)
		go func() { ended <- t.puts(c, q) }()
		if takersClose {
			go func() { ended <- t.takes(q, took) }()
		} else {
			ended <- protocol.ErrClosed
		}
		for range 5 {
			<-took
		}
		require.NoError(t, c.Close())
		for range 2 {
			require.ErrorIs(t, <-ended, protocol.ErrClosed)
		}
		t.next++ // what was refused counts for nothing
	}
	require.NoError(t, all.End(ctx))
	if takersClose {
		go func() { drained <- t.takes(all, took) }()
	}
	require.ErrorIs(t, <-drained, protocol.ErrClosed)
	require.NotEmpty(t, t.put)
	for id := range t.put {
		require.True(t, t.taken[id], "item %d", id)
	}
}

func TestCloseInTheMidstOfPutsLosesNothing(t *testing.T) {
	(&midst{T: t, put: map[int64]bool{}, taken: map[int64]bool{}}).run(false)
}

func TestCloseInTheMidstOfTakesLosesNothing(t *testing.T) {
	(&midst{T: t, put: map[int64]bool{}, taken: map[int64]bool{}}).run(true)
}

// A second Close of one use leaves the others alone.
func TestTopicClosedTwiceLeavesOtherUses(t *testing.T) {
	address, ctx := newBroker(t), limited(t)
	c := connect(t, address)
	a, err := c.Topic(ctx, "t", client.Linger(0))
	require.NoError(t, err)
	b, err := c.Topic(ctx, "t")
	require.NoError(t, err)
	q, err := c.Queue(ctx, "q", client.Linger(0))
	require.NoError(t, err)
	p, err := c.Queue(ctx, "q")
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, a.Close())
		require.NoError(t, q.Close())
	}
	require.ErrorIs(t, a.Send(ctx, map[string]any{}), protocol.ErrClosed)
	require.ErrorIs(t, q.Put(ctx, map[string]any{}), protocol.ErrClosed)
	require.NoError(t, b.Send(ctx, map[string]any{}))
	require.NoError(t, p.Put(ctx, map[string]any{}))
	m, err := p.Get(ctx)
	require.NoError(t, err)
	m.Release()
	require.NoError(t, b.Close())
	require.NoError(t, p.Close())
}

func TestQueueClosedWhileAnotherGoroutineTakesEndsThat(t *testing.T) {
	address, ctx := newBroker(t), limited(t)
	c := connect(t, address)
	for range 50 {
		q, err := c.Queue(ctx, "q")
		require.NoError(t, err)
		ended := make(chan error, 2)
		for range 2 {
			go func() {
				for {
					m, err := q.Get(ctx)
					if err != nil {
						ended <- err
						return
					}
					m.Release()
				}
			}()
		}
		require.NoError(t, q.Put(ctx, map[string]any{}))
		require.NoError(t, q.Close())
		for range 2 {
			require.ErrorIs(t, <-ended, protocol.ErrClosed)
		}
	}
}
