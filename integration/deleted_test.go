package integration

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// unfinished is a queue with redelivery of five items whose first one a process has taken and
// holds.
type unfinished struct {
	t     *testing.T
	ctx   context.Context
	b     *testkit.Broker
	c     *client.Client // the sender's
	queue *client.Queue
	taker *testkit.Process
}

func newUnfinished(t *testing.T, takes int) *unfinished {
	b := testkit.StartBroker(t)
	u := &unfinished{t: t, ctx: testkit.Context(t), b: b, c: b.Connect()}
	k := channel{Queue: "k", Depth: 8, Redeliver: true}
	var err error
	u.queue, err = k.openQueue(u.ctx, u.c)
	require.NoError(t, err)
	for i := range 5 {
		require.NoError(t, sendNoted(u.ctx, u.c, queueSender{u.queue}, 1<<17, newNote("sender", i)))
	}
	u.taker = b.Start("take", takeConfig{channel: k, Ask: true})
	for range takes + 1 { // ready, then items
		u.taker.Next(new(taken))
		if takes--; takes > 0 {
			u.taker.Tell("next")
		}
	}
	return u
}

func (u *unfinished) ask(c *client.Client, op string) (r protocol.PurgeReply) {
	u.t.Helper()
	require.NoError(u.t, c.Broker(u.ctx, op, protocol.TopicByName{Name: "k"}, &r))
	return r
}

// rows are those of the listing that go by the queue's name, or did.
func (u *unfinished) rows(c *client.Client) (rows []broker.TopicRow) {
	u.t.Helper()
	var page struct{ Rows []broker.TopicRow }
	require.NoError(u.t, c.Broker(u.ctx, protocol.OpList, protocol.List{What: protocol.ListTopics, Pattern: "k"}, &page))
	return page.Rows
}

// storages waits until so many storages are held.
func (u *unfinished) storages(c *client.Client, n int) {
	u.t.Helper()
	testkit.Until(u.t, fmt.Sprintf("%d storages are held", n), func() (bool, string) {
		var s broker.Status
		require.NoError(u.t, c.Broker(u.ctx, protocol.OpStatus, nil, &s))
		return s.Counts.Storages == n, fmt.Sprintf("%d are, of %+v", s.Counts.Storages, u.rows(c))
	})
}

func (u *unfinished) evictTaker() {
	u.t.Helper()
	for _, s := range testkit.Look(u.t, u.b).Sessions {
		if s.PID == u.taker.PID() {
			require.NoError(u.t, u.c.Broker(u.ctx, protocol.OpEvict, protocol.Evict{Serial: s.Serial}, &struct{}{}))
		}
	}
}

// However its taker ends: what a sender had put into a queue that was deleted is free, with
// nothing done by the sender, which lives and has the queue open.
func TestDeletedQueueGivesItsMemoryBackWhenTheTakerEnds(t *testing.T) {
	for name, ends := range map[string]func(*unfinished){
		"killed":  func(u *unfinished) { u.taker.Kill() },
		"evicted": func(u *unfinished) { u.evictTaker(); u.storages(u.c, 1); u.taker.Kill() },
		"releases": func(u *unfinished) {
			u.taker.Tell("let go")
			u.taker.Wait() // it finds the queue deleted
		},
		"evicted, then releases": func(u *unfinished) {
			u.evictTaker()
			u.storages(u.c, 1)
			u.taker.Tell("let go")
			u.taker.Wait() // it may have learned of the deletion or of its eviction first
		},
	} {
		t.Run(name, func(t *testing.T) {
			u := newUnfinished(t, 1)
			require.EqualValues(t, 4, u.ask(u.c, protocol.OpTopicDelete).Messages)
			u.storages(u.c, 1)
			rows := u.rows(u.c)
			require.Len(t, rows, 1)
			require.Equal(t, []any{"", "k", "deleted", 0}, []any{rows[0].Name, rows[0].Former, rows[0].State, rows[0].Waiting})
			ends(u)
			u.storages(u.c, 0)
			require.ErrorIs(t, u.queue.Put(u.ctx, nil), protocol.ErrClosed)
			require.NoError(t, u.queue.Close())
			require.Empty(t, u.rows(u.c))
		})
	}
}

// The taker was evicted before the queue is deleted, and its process holds the item.
func TestDeletedQueueKeepsNothingForATakerThatWasEvictedBefore(t *testing.T) {
	u := newUnfinished(t, 1)
	u.evictTaker()
	require.EqualValues(t, 4, u.ask(u.c, protocol.OpTopicDelete).Messages)
	u.storages(u.c, 1)
	u.taker.Kill()
	u.storages(u.c, 0)
	require.NoError(t, u.queue.Close())
}

// The sender has ended: the broker keeps what it had put. Another session has the queue open
// and waits for the item.
func TestItemOfADeletedQueueGoesToNobody(t *testing.T) {
	u := newUnfinished(t, 1)
	other := u.b.Connect()
	theirs, err := channel{Queue: "k", Redeliver: true, Depth: 8}.openQueue(u.ctx, other)
	require.NoError(t, err)
	require.NoError(t, u.queue.Close())
	require.NoError(t, u.c.Close())
	waits := make(chan error, 1)
	require.EqualValues(t, 4, u.ask(other, protocol.OpPurge).Messages)
	go func() {
		_, err := theirs.Get(u.ctx)
		waits <- err
	}()
	u.ask(other, protocol.OpTopicDelete)
	require.ErrorIs(t, <-waits, protocol.ErrClosed, "the item may not come again, so it is not waited for")
	u.taker.Kill()
	u.storages(other, 0)
	_, err = theirs.Get(u.ctx)
	require.ErrorIs(t, err, protocol.ErrClosed)
	require.Zero(t, u.rows(other)[0].Kept)
}

// The broker that comes next knows that the queue was deleted, and what it was called.
func TestNextBrokerDrainsADeletedQueue(t *testing.T) {
	u := newUnfinished(t, 1)
	u.ask(u.c, protocol.OpTopicDelete)
	u.b.Kill()
	u.taker.Kill()
	u.b.Restart()
	u.storages(u.c, 0)
	rows := u.rows(u.c)
	require.Len(t, rows, 1)
	require.Equal(t, []any{"k", "deleted"}, []any{rows[0].Former, rows[0].State})
	again, err := channel{Queue: "k"}.openQueue(u.ctx, u.c)
	require.NoError(t, err)
	require.NoError(t, again.Close())
	require.NoError(t, u.queue.Close())
}

// Of the items behind one that a taker holds the memory goes back at once, and that of the first
// when the taker has released it and the sender is asked again.
func TestPurgedMemoryGoesBackBehindAnItemThatATakerHolds(t *testing.T) {
	u := newUnfinished(t, 2)
	row := u.rows(u.c)[0]
	require.Equal(t, []int{5, 3, 1}, []int{row.Kept, row.Waiting, row.Unacknowledged}, "the first is done with")
	require.EqualValues(t, 3, u.ask(u.c, protocol.OpPurge).Messages)
	u.storages(u.c, 1)
	row = u.rows(u.c)[0]
	require.Equal(t, []int{1, 0, 1}, []int{row.Kept, row.Waiting, row.Unacknowledged})
	require.NoError(t, sendNoted(u.ctx, u.c, queueSender{u.queue}, 1, newNote("sender", 5)), "the lane goes on over the gap")
	u.taker.Kill()
	m, err := u.queue.Get(u.ctx)
	require.NoError(t, err, "what the taker held comes again")
	require.EqualValues(t, 2, m.Sequence)
	m.Release()
	m, err = u.queue.Get(u.ctx)
	require.NoError(t, err)
	require.EqualValues(t, 6, m.Sequence)
	m.Release()
	u.c.Collect()
	u.storages(u.c, 0)
	require.NoError(t, u.queue.Close())
}
