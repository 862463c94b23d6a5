package client

import (
	"context"
	"math/bits"
	"path/filepath"
	"testing"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/internal/shortdir"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// sessions opens several sessions of one broker of this process.
func sessions(t *testing.T, n int) (all []*Client) {
	t.Helper()
	at := startBroker(t)
	for range n {
		c, err := Connect(context.Background(), WithAddress(at))
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		all = append(all, c)
	}
	return all
}

// startBroker starts a broker in this process; where it listens.
func startBroker(t *testing.T) string {
	t.Helper()
	br, err := broker.New(context.Background(), broker.Config{Dir: filepath.Join(shortdir.New(t), "r"), Memory: 1 << 30})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- br.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	return br.Socket()
}

// asleep counts the sessions in a wait set of a topic: 0, or 1 and the group's number. They
// sleep, or are about to look for the last time before.
func asleep(c *Client, topic uint32, set uint64) (n int) {
	at := protocol.BellWaits + uint64(topic)*protocol.WaitAreaSize + protocol.WaitMembers + set*8*protocol.BitmapWords
	for w := range uint64(protocol.BitmapWords) {
		n += bits.OnesCount64(c.s.Files.BellFile.Load64(at + 8*w))
	}
	return n
}

// rung counts how often sessions were rung.
func rung(of ...*Client) (n uint32) {
	for _, c := range of {
		n += c.s.Files.Parking.Bell()
	}
	return n
}

// takers have each session but the first take from a queue of the first, until it is ended.
func takers(t *testing.T, all []*Client) (from *Queue, took <-chan struct{}) {
	t.Helper()
	from, err := all[0].Queue(t.Context(), "q")
	require.NoError(t, err)
	items, ended := make(chan struct{}), make(chan error)
	for _, c := range all[1:] {
		q, err := c.Queue(t.Context(), "q")
		require.NoError(t, err)
		go func() {
			for {
				m, err := q.Get(context.Background())
				if err != nil {
					ended <- err
					return
				}
				m.Release()
				items <- struct{}{}
			}
		}()
	}
	t.Cleanup(func() {
		require.NoError(t, from.End(context.Background()))
		for range all[1:] {
			require.ErrorIs(t, <-ended, protocol.ErrClosed)
		}
	})
	return from, items
}

func TestPutRingsOneOfSeveralTakers(t *testing.T) {
	const n = 5
	all := sessions(t, 1+n)
	q, took := takers(t, all)
	x := alloc(t, all[0])
	defer x.Release()
	topic := q.t.Info.Topic
	require.NoError(t, q.Put(t.Context(), x)) // with the first one its lane is made known
	<-took
	turns := map[*Client]bool{}
	for range 4 * n {
		eventually(t, "all sleep", func() bool { return asleep(all[0], topic, 1) == n })
		before, each := rung(all[1:]...), map[*Client]uint32{}
		for _, c := range all[1:] {
			each[c] = rung(c)
		}
		require.NoError(t, q.Put(t.Context(), x))
		<-took
		for c, n := range each {
			turns[c] = turns[c] || rung(c) > n
		}
		require.Equal(t, before+1, rung(all[1:]...))
	}
	for _, c := range all[1:] {
		require.True(t, turns[c], "they take turns")
	}
	require.Zero(t, asleep(all[0], topic, 0))
}

// Items that come at once wake as many as there are of them.
func TestPutsRingSeveralTakers(t *testing.T) {
	const n = 4
	all := sessions(t, 1+n)
	q, took := takers(t, all)
	x := alloc(t, all[0])
	defer x.Release()
	for range 50 {
		for range n {
			require.NoError(t, q.Put(t.Context(), x))
		}
		for range n {
			<-took
		}
	}
}

// A taker that was rung for an item, and then cannot have it, rings another.
func TestTakerThatGivesUpPassesTheItemOn(t *testing.T) {
	all := sessions(t, 3)
	from, gives, other := all[0], all[1], all[2]
	put, err := from.Queue(t.Context(), "q")
	require.NoError(t, err)
	x := alloc(t, from)
	defer x.Release()
	a, err := gives.Queue(t.Context(), "q")
	require.NoError(t, err)
	b, err := other.Queue(t.Context(), "q")
	require.NoError(t, err)
	gives.s.Memory.Attaching.Must() // what it takes of a new segment waits for this
	defer gives.s.Memory.Attaching.End()
	for {
		taken := make(chan error, 1)
		go func() {
			m, err := b.Get(context.Background())
			if m != nil {
				m.Release()
			}
			taken <- err
		}()
		eventually(t, "the other one sleeps", func() bool { return asleep(from, put.t.Info.Topic, 1) == 1 })
		ctx, cancel := context.WithCancel(t.Context())
		gaveUp := make(chan error, 1)
		go func() {
			_, err := a.Get(ctx)
			gaveUp <- err
		}()
		eventually(t, "both sleep", func() bool { return asleep(from, put.t.Info.Topic, 1) == 2 })
		before, givesBefore := rung(other), rung(gives)
		require.NoError(t, put.Put(t.Context(), x))
		eventually(t, "it tries", func() bool { return gives.s.Memory.Attaching.Awaited() || len(taken) > 0 })
		cancel()
		require.ErrorIs(t, <-gaveUp, context.Canceled)
		passedOn := rung(other) > before && rung(gives) > givesBefore
		require.NoError(t, <-taken)
		if passedOn {
			return
		} // else it was the other one's turn, or that took it when it looked by itself
	}
}

// A wait that ends leaves its sets, and not while another wait of its session is in them.
func TestSessionIsInASetWhileAnyOfItsWaitsIs(t *testing.T) {
	c, _ := pair(t)
	q, err := c.Queue(t.Context(), "q")
	require.NoError(t, err)
	p, err := c.Queue(t.Context(), "q")
	require.NoError(t, err)
	topic := q.t.Info.Topic
	group := c.s.Files.Bells.Waits(topic).Group(0)
	var ended [2]chan error
	var cancel [2]context.CancelFunc
	for k, q := range []*Queue{q, p} {
		var ctx context.Context
		ctx, cancel[k] = context.WithCancel(t.Context())
		ended[k] = make(chan error, 1)
		go func() {
			_, err := q.Get(ctx)
			ended[k] <- err
		}()
	}
	eventually(t, "both wait", func() bool {
		return c.s.Waits.CountIn(group) == 2
	})
	cancel[0]()
	require.ErrorIs(t, <-ended[0], context.Canceled)
	require.Equal(t, 1, asleep(c, topic, 1))
	cancel[1]()
	require.ErrorIs(t, <-ended[1], context.Canceled)
	require.Zero(t, asleep(c, topic, 1))
	require.Zero(t, c.s.Waits.CountIn(group))
}

func TestReaderThatSleepsIsRungForEachMessage(t *testing.T) {
	all := sessions(t, 4)
	out, err := all[0].Topic(t.Context(), "t")
	require.NoError(t, err)
	x := alloc(t, all[0])
	defer x.Release()
	received, ended := make(chan uint64), make(chan error)
	readers := all[1:]
	for _, c := range readers {
		in, err := c.Topic(t.Context(), "t")
		require.NoError(t, err)
		r, err := in.Reader(t.Context())
		require.NoError(t, err)
		go func() {
			for {
				m, err := r.Receive(context.Background())
				if err != nil {
					ended <- err
					return
				}
				received <- m.Sequence
				m.Release()
			}
		}()
	}
	for k := range uint64(20) {
		eventually(t, "all sleep", func() bool { return asleep(all[0], out.t.Info.Topic, 0) == len(readers) })
		before := rung(readers...)
		require.NoError(t, out.Send(t.Context(), x))
		for range readers {
			require.Equal(t, k+1, <-received)
		}
		if k > 0 { // with the first one the lane was made known
			require.Equal(t, before+uint32(len(readers)), rung(readers...))
		}
	}
	require.NoError(t, out.End(t.Context()))
	for range readers {
		require.ErrorIs(t, <-ended, protocol.ErrClosed)
	}
}

// A sender makes no call while no reader sleeps, and allocates nothing for it.
func TestRingingNobodyCostsNothing(t *testing.T) {
	c, o := pair(t)
	out, err := c.Topic(t.Context(), "t")
	require.NoError(t, err)
	in, err := o.Topic(t.Context(), "t")
	require.NoError(t, err)
	r, err := in.Reader(t.Context())
	require.NoError(t, err)
	defer r.Close()
	x := alloc(t, c)
	defer x.Release()
	require.NoError(t, out.Send(t.Context(), x))
	before := rung(c, o)
	require.Zero(t, testing.AllocsPerRun(100, func() { require.NoError(t, out.Send(t.Context(), x)) }))
	require.Equal(t, before, rung(c, o))
}

func TestWatcherIsRungForEachRevision(t *testing.T) {
	c, o := pair(t)
	x := alloc(t, c)
	defer x.Release()
	_, err := c.Set(t.Context(), "n", x)
	require.NoError(t, err)
	w, err := o.Watch(t.Context(), "n")
	require.NoError(t, err)
	defer w.Close()
	seen := make(chan uint64)
	go func() {
		for range 10 {
			b, err := w.Next(context.Background())
			if err != nil {
				close(seen)
				return
			}
			b.Release()
			seen <- b.Revision
		}
	}()
	require.EqualValues(t, 1, <-seen)
	for k := range uint64(9) {
		eventually(t, "the watcher sleeps", func() bool { return asleep(c, w.r.t.Info.Topic, 0) == 1 })
		before := rung(o)
		_, err := c.Set(t.Context(), "n", x)
		require.NoError(t, err)
		require.Equal(t, k+2, <-seen)
		require.Greater(t, rung(o), before)
	}
}

func TestSenderThatWaitsForRoomIsRung(t *testing.T) {
	c, o := pair(t)
	q, err := c.Queue(t.Context(), "q", Depth(1))
	require.NoError(t, err)
	p, err := o.Queue(t.Context(), "q")
	require.NoError(t, err)
	x := alloc(t, c)
	defer x.Release()
	require.NoError(t, q.Put(t.Context(), x))
	parked := func() bool {
		at := protocol.BellRecords + uint64(c.s.Files.Slot)*protocol.BellRecordSize + protocol.BellParked
		return c.s.Files.BellFile.Load64(at)&1 == 1
	}
	m, err := p.TryGet(t.Context()) // with it the group has a member before any session waits
	require.NoError(t, err)
	m.Release()
	require.NoError(t, q.Put(t.Context(), x))
	before := rung(c)
	for range 20 {
		sent := make(chan error, 1)
		go func() { sent <- q.Put(context.Background(), x) }()
		eventually(t, "the sender sleeps", parked)
		m, err := p.Get(t.Context())
		require.NoError(t, err)
		m.Release()
		require.NoError(t, <-sent)
	}
	require.Greater(t, rung(c), before)
}
