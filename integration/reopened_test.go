package integration

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// putNoted puts an item with a number, and takeNoted takes the next one's.
func putNoted(t *testing.T, c *client.Client, q *client.Queue, number int) {
	t.Helper()
	require.NoError(t, sendNoted(testkit.Context(t), c, queueSender{q}, 16, newNote("me", number)))
}

func takeNoted(t *testing.T, q *client.Queue) int {
	t.Helper()
	m, err := q.Get(testkit.Context(t))
	require.NoError(t, err)
	defer m.Release()
	k, err := verifyMessage(m)
	require.NoError(t, err)
	return k.ID
}

// lastingBroker has its memory in files, which outlive it.
func lastingBroker(t *testing.T) *testkit.Broker {
	return testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.MemoryDir = t.TempDir() })
}

// firstRun puts two items into a queue, closes it and ends.
func firstRun(t *testing.T, b *testkit.Broker, name string) {
	t.Helper()
	c := b.Connect()
	q, err := c.Queue(testkit.Context(t), name)
	require.NoError(t, err)
	putNoted(t, c, q, 1)
	putNoted(t, c, q, 2)
	require.NoError(t, q.End(testkit.Context(t)))
	require.NoError(t, c.Close())
}

func openQueue(t *testing.T, c *client.Client, name string) *client.Queue {
	t.Helper()
	q, err := c.Queue(testkit.Context(t), name)
	require.NoError(t, err)
	return q
}

func TestClosedQueueThatNobodyHasOpenIsANewOneForTheNextSender(t *testing.T) {
	for how, restarted := range map[string]bool{"with one broker": false, "after a restart": true} {
		t.Run(how, func(t *testing.T) {
			b := lastingBroker(t)
			firstRun(t, b, "work")
			if restarted {
				b.Kill()
				b.Restart()
			}
			c := b.Connect()
			q := openQueue(t, c, "work")
			putNoted(t, c, q, 3)
			require.Equal(t, 3, takeNoted(t, q), "what the former run left is freed")
			_, err := q.Get(expired(t))
			require.ErrorIs(t, err, protocol.ErrEmpty)
			require.NoError(t, q.End(testkit.Context(t)))
			_, err = q.Get(testkit.Context(t))
			require.ErrorIs(t, err, protocol.ErrClosed)
			require.NoError(t, q.Close())
			testkit.AuditEmpty(t, b, c)
		})
	}
}

func TestClosedQueueIsDrainedByAProcessThatOpensItLater(t *testing.T) {
	b := testkit.StartBroker(t)
	firstRun(t, b, "work")
	c := b.Connect()
	q := openQueue(t, c, "work")
	require.Equal(t, 1, takeNoted(t, q))
	require.Equal(t, 2, takeNoted(t, q))
	_, err := q.Get(testkit.Context(t))
	require.ErrorIs(t, err, protocol.ErrClosed)
}

// A taker that came since the queue was closed loses nothing, and goes on with the next run's items.
func TestNextSenderKeepsWhatATakerHasOpen(t *testing.T) {
	b := testkit.StartBroker(t)
	firstRun(t, b, "work")
	c, d := b.Connect(), b.Connect()
	taker := openQueue(t, d, "work")
	require.Equal(t, 1, takeNoted(t, taker))
	q := openQueue(t, c, "work")
	putNoted(t, c, q, 3)
	require.Equal(t, 2, takeNoted(t, taker))
	require.Equal(t, 3, takeNoted(t, taker))
	_, err := taker.Get(expired(t))
	require.ErrorIs(t, err, protocol.ErrEmpty, "it is open")
}

func TestNameOfAClosedQueueIsThatOfThoseThatHadItOpen(t *testing.T) {
	for how, restarted := range map[string]bool{"with one broker": false, "after a restart": true} {
		t.Run(how, func(t *testing.T) {
			b := lastingBroker(t)
			d := b.Connect()
			taker := openQueue(t, d, "work")
			firstRun(t, b, "work")
			if restarted {
				b.Kill()
				b.Restart()
			}
			c := b.Connect()
			q := openQueue(t, c, "work")
			x, err := filled(testkit.Context(t), c, 16, 3)
			require.NoError(t, err)
			defer x.Release()
			require.ErrorIs(t, q.Put(testkit.Context(t), x), protocol.ErrClosed)
			require.Equal(t, 1, takeNoted(t, taker))
			require.Equal(t, 2, takeNoted(t, taker))
			_, err = taker.Get(testkit.Context(t))
			require.ErrorIs(t, err, protocol.ErrClosed)
			require.NoError(t, taker.Close())
			testkit.Until(t, "the last that had it open has left it", func() (bool, string) {
				err := q.Put(context.Background(), x)
				return err == nil, "put fails"
			})
			m, err := q.Get(testkit.Context(t))
			require.NoError(t, err)
			m.Release()
		})
	}
}

func TestClosedTopicIsOpenForTheNextSender(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	first := b.Connect()
	topic, err := first.Topic(ctx, "steps")
	require.NoError(t, err)
	x, err := filled(ctx, first, 16, 1)
	require.NoError(t, err)
	require.NoError(t, topic.Send(ctx, x))
	x.Release()
	require.NoError(t, topic.End(ctx))
	require.NoError(t, first.Close())
	c := b.Connect()
	next, err := c.Topic(ctx, "steps")
	require.NoError(t, err)
	x, err = filled(ctx, c, 16, 2)
	require.NoError(t, err)
	require.NoError(t, next.Send(ctx, x))
	x.Release()
	r, err := next.Reader(ctx, client.StartAll)
	require.NoError(t, err)
	m, err := r.Receive(ctx)
	require.NoError(t, err)
	require.Zero(t, m.Lost)
	m.Release()
	_, err = r.Receive(expired(t))
	require.ErrorIs(t, err, protocol.ErrTimeout)
}
