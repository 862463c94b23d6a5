package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// expired is a context whose deadline has passed: it polls.
func expired(t *testing.T) context.Context {
	ctx, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	t.Cleanup(cancel)
	return ctx
}

// take starts a taker of a queue and waits until it is there.
func take(b *testkit.Broker, cfg takeConfig) *testkit.Process {
	p := b.Start("take", cfg)
	p.Next(new(taken))
	return p
}

// collect takes what a taker has said so far into a count by item.
func collect(p *testkit.Process, into map[taken]int) {
	for {
		var item taken
		if !p.Poll(&item) {
			return
		}
		into[item]++
	}
}

func TestQueueGivesEachItemToExactlyOneTaker(t *testing.T) {
	for _, redeliver := range []bool{false, true} {
		t.Run(fmt.Sprintf("redeliver %v", redeliver), func(t *testing.T) {
			b := testkit.StartBroker(t)
			const count = 1500
			k := channel{Queue: "work", Depth: 16, Redeliver: redeliver}
			c := b.Connect()
			q, err := k.openQueue(testkit.Context(t), c)
			require.NoError(t, err)
			var takers, senders []*testkit.Process
			for range 4 {
				takers = append(takers, take(b, takeConfig{channel: k}))
			}
			for i := range 3 {
				senders = append(senders, ready(b, sendConfig{channel: k, From: fmt.Sprint("s", i), Count: count, Words: 64, Stay: true}))
			}
			for _, p := range senders {
				p.Tell("go")
			}
			for _, p := range senders {
				p.Next(new(int))
			}
			require.NoError(t, q.End(testkit.Context(t)))
			got := map[taken]int{}
			for _, p := range takers {
				p.Ended()
				collect(p, got)
			}
			for i := range senders {
				for id := range count {
					require.Equal(t, 1, got[taken{fmt.Sprint("s", i), id}], "item %d of sender %d", id, i)
				}
			}
			require.Len(t, got, 3*count)
			for _, p := range senders {
				p.Done()
			}
			testkit.AuditKept(t, b)
			require.NoError(t, q.Close())
			testkit.AuditEmpty(t, b, c)
		})
	}
}

func TestOneTakerGetsItemsOfASenderInOrder(t *testing.T) {
	b := testkit.StartBroker(t)
	const count = 500
	k := channel{Queue: "line", Depth: 4}
	p := take(b, takeConfig{channel: k})
	c := b.Connect()
	ctx := testkit.Context(t)
	q, err := k.openQueue(ctx, c)
	require.NoError(t, err)
	for id := range count {
		require.NoError(t, sendNoted(ctx, c, queueSender{q}, 16, newNote("me", id)))
	}
	require.NoError(t, q.End(ctx))
	for id := range count {
		var item taken
		p.Next(&item)
		require.Equal(t, taken{"me", id}, item)
	}
	p.Ended()
}

func TestFullQueueRefusesAtItsDeadlineAndLosesNothing(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect(client.WithName("putter"))
	q, err := c.Queue(ctx, "full", client.Depth(3))
	require.NoError(t, err)
	for id := range 3 {
		require.NoError(t, sendNoted(ctx, c, queueSender{q}, 16, newNote("me", id)))
	}
	n, err := q.Len(ctx)
	require.NoError(t, err)
	require.Equal(t, 3, n)
	x, err := filled(ctx, c, 16, 1)
	require.NoError(t, err)
	err = q.Put(expired(t), x)
	require.ErrorIs(t, err, protocol.ErrFull)
	require.ErrorIs(t, err, protocol.ErrTimeout)
	require.NotErrorIs(t, err, protocol.ErrEmpty)
	require.ErrorContains(t, err, "full")
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, q.Put(short, x), protocol.ErrFull)
	x.Release()

	p := take(b, takeConfig{channel: channel{Queue: "full"}, Ask: true})
	var item taken
	p.Next(&item)
	require.Equal(t, taken{"me", 0}, item)
	// The taker has one item, so there is room for one.
	require.NoError(t, sendNoted(ctx, c, queueSender{q}, 16, newNote("me", 3)))
	require.NoError(t, q.End(ctx))
	for id := 1; id < 4; id++ {
		p.Tell("next")
		p.Next(&item)
		require.Equal(t, taken{"me", id}, item)
	}
	p.Tell("next")
	p.Ended()
	require.NoError(t, q.Close())
	testkit.AuditEmpty(t, b, c)
}

func TestEmptyQueueTimesOut(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	q, err := c.Queue(ctx, "empty")
	require.NoError(t, err)
	_, err = q.Get(expired(t))
	require.ErrorIs(t, err, protocol.ErrEmpty)
	require.ErrorIs(t, err, protocol.ErrTimeout)
	require.NotErrorIs(t, err, protocol.ErrFull)
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	_, err = q.Get(short)
	require.ErrorIs(t, err, protocol.ErrEmpty)
	testkit.Until(t, "the broker lists in time the members that are there", func() (bool, string) {
		_, err := q.Get(expired(t))
		require.ErrorIs(t, err, protocol.ErrEmpty)
		var e *protocol.Error
		require.True(t, errors.As(err, &e))
		return e.Detail["writers"] != nil, e.Error()
	})
	require.NoError(t, q.Close())
}

func TestClosedQueueIsDrainedBeforeItSaysSo(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c, d := b.Connect(), b.Connect()
	q, err := c.Queue(ctx, "ending", client.Depth(8))
	require.NoError(t, err)
	for id := range 5 {
		require.NoError(t, sendNoted(ctx, c, queueSender{q}, 16, newNote("me", id)))
	}
	other, err := d.Queue(ctx, "ending")
	require.NoError(t, err)
	require.NoError(t, other.End(ctx))
	x, err := filled(ctx, c, 16, 1)
	require.NoError(t, err)
	require.ErrorIs(t, q.Put(ctx, x), protocol.ErrClosed)
	x.Release()
	for id := range 5 {
		m, err := other.Get(ctx)
		require.NoError(t, err)
		k, err := verifyMessage(m)
		require.NoError(t, err)
		require.Equal(t, id, k.ID)
		m.Release()
	}
	_, err = other.Get(ctx)
	require.ErrorIs(t, err, protocol.ErrClosed)
	require.NoError(t, q.Close())
	require.NoError(t, other.Close())
	testkit.AuditEmpty(t, b, c, d)
}

// A sender that waits for room goes on when a taker makes some, and takers that
// wait go on when the queue ends: both are woken, not only late.
func TestWaitersOfAQueueAreWokenByPeersInOtherProcesses(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	const count = 400 // as many looks of a second each would take too long
	k := channel{Queue: "narrow", Depth: 1}
	s := ready(b, sendConfig{channel: k, From: "s", Count: count, Words: 16, Stay: true})
	p := take(b, takeConfig{channel: k})
	idle := take(b, takeConfig{channel: channel{Queue: "other"}})
	s.Tell("go")
	s.Next(new(int))
	for id := range count {
		var item taken
		p.Next(&item)
		require.Equal(t, taken{"s", id}, item)
	}
	s.Done()
	c := b.Connect()
	for _, name := range []string{"narrow", "other"} {
		q, err := c.Queue(ctx, name)
		require.NoError(t, err)
		require.NoError(t, q.End(ctx))
		require.NoError(t, q.Close())
	}
	p.Ended()
	idle.Ended()
}

func TestItemOfADeadTakerGoesToAnother(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	k := channel{Queue: "again", Depth: 4, Redeliver: true}
	c := b.Connect()
	q, err := k.openQueue(ctx, c)
	require.NoError(t, err)
	victim := take(b, takeConfig{channel: k, Ask: true})
	require.NoError(t, sendNoted(ctx, c, queueSender{q}, 512, newNote("me", 0)))
	var item taken
	victim.Next(&item)
	require.Equal(t, taken{"me", 0}, item)
	// It has the item and has not let it go: no other taker gets it.
	_, err = q.Get(expired(t))
	require.ErrorIs(t, err, protocol.ErrEmpty)
	require.NoError(t, sendNoted(ctx, c, queueSender{q}, 512, newNote("me", 1)))
	victim.Kill()
	testkit.Gone(t, b, victim.PID())
	for id := range 2 {
		m, err := q.Get(ctx)
		require.NoError(t, err)
		got, err := verifyMessage(m)
		require.NoError(t, err)
		require.Equal(t, id, got.ID, "the item of the dead comes first")
		m.Release()
	}
	require.NoError(t, q.Close())
	testkit.AuditEmpty(t, b, c)
}

func TestItemOfADeadTakerIsGoneWithoutRedelivery(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	k := channel{Queue: "once", Depth: 4}
	c := b.Connect()
	q, err := k.openQueue(ctx, c)
	require.NoError(t, err)
	victim := take(b, takeConfig{channel: k, Ask: true})
	require.NoError(t, sendNoted(ctx, c, queueSender{q}, 512, newNote("me", 0)))
	victim.Next(new(taken))
	victim.Kill()
	testkit.Gone(t, b, victim.PID())
	_, err = q.Get(expired(t))
	require.ErrorIs(t, err, protocol.ErrEmpty)
	require.NoError(t, q.Close())
	testkit.AuditEmpty(t, b, c)
}

// Acknowledgement is the release of the item's last holder, in whatever
// goroutine, and nothing before it.
func TestRedeliveredItemIsDoneAtItsLastRelease(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c, d := b.Connect(), b.Connect()
	q, err := c.Queue(ctx, "held", client.Depth(1), client.Redeliver(true))
	require.NoError(t, err)
	other, err := d.Queue(ctx, "held")
	require.NoError(t, err)
	require.NoError(t, sendNoted(ctx, c, queueSender{q}, 16, newNote("me", 0)))
	m, err := other.Get(ctx)
	require.NoError(t, err)
	kept := m.Tensor().Retain()
	m.Release()
	x, err := filled(ctx, c, 16, 1)
	require.NoError(t, err)
	require.ErrorIs(t, q.Put(expired(t), x), protocol.ErrFull, "an item is held: its place is not free")
	go kept.Release()
	require.NoError(t, q.Put(ctx, x))
	x.Release()
	m, err = other.Get(ctx)
	require.NoError(t, err)
	m.Release()
	require.NoError(t, q.Close())
	require.NoError(t, other.Close())
	testkit.AuditEmpty(t, b, c, d)
}

func TestPrivateQueueIsOpenedByItsTokenOnly(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c, d := b.Connect(), b.Connect()
	q, err := c.Queue(ctx, "")
	require.NoError(t, err)
	require.NotEmpty(t, q.Token())
	other, err := d.OpenPrivateQueue(ctx, q.Token())
	require.NoError(t, err)
	require.NoError(t, sendNoted(ctx, c, queueSender{q}, 16, newNote("me", 0)))
	m, err := other.Get(ctx)
	require.NoError(t, err)
	m.Release()
	_, err = d.OpenPrivateQueue(ctx, "0123456789abcdef0123456789abcdef")
	require.ErrorIs(t, err, protocol.ErrNotFound)
	require.NoError(t, q.Close())
	require.NoError(t, other.Close())
	testkit.AuditEmpty(t, b, c, d)
}
