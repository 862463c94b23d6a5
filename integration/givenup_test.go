package integration

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// givenUp stops the broker and gives up the first send into a topic.
func givenUp(t *testing.T, opts ...client.TopicOption) (*testkit.Broker, *client.Client, *client.Topic, *client.Tensor) {
	t.Helper()
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	topic, err := c.Topic(ctx, "t", opts...)
	require.NoError(t, err)
	x, err := c.Alloc(ctx, dlpack.Float32, []int64{3})
	require.NoError(t, err)
	t.Cleanup(x.Release)

	b.Process().Stop()
	soon, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, topic.Send(soon, x), protocol.ErrTimeout)
	return b, c, topic, x
}

// The broker lists a sender whose request it reads when the sender has given up
// waiting for the answer. No session sends then, and the topic must end all the same.
func TestTopicEndsAlthoughItsFirstSendWasGivenUp(t *testing.T) {
	b, _, topic, _ := givenUp(t, client.Linger(0))
	b.Process().Cont()

	require.NoError(t, topic.Close())
	testkit.Until(t, "the topic has ended", func() (bool, string) {
		rows := testkit.List[broker.TopicRow](t, b, "topics")
		return len(rows) == 0, "it is listed"
	})
}

// A request that was given up may never be read: its broker is killed, or it was still
// waiting for its turn on the socket. Nothing is to be taken back then.
func TestTopicIsClosedAlthoughItsFirstSendCameToNoBroker(t *testing.T) {
	b, c, topic, x := givenUp(t)
	b.Kill()
	b.Restart()

	require.NoError(t, topic.Close())
	ctx := testkit.Context(t)
	again, err := c.Topic(ctx, "t")
	require.NoError(t, err)
	require.NoError(t, again.Send(ctx, x))
	require.NoError(t, again.Close())
}

// A send without a deadline waits for a broker that is suspended. A program that closes the topic
// meanwhile waits no longer than a Close does.
func TestTopicIsClosedBesideASendThatWaitsForTheBroker(t *testing.T) {
	b, _, topic, x := givenUp(t)
	sent := make(chan error, 1)
	long, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	go func() { sent <- topic.Send(long, x) }()
	testkit.Until(t, "the send waits", func() (bool, string) {
		soon, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		err := topic.Send(soon, x)
		require.ErrorIs(t, err, protocol.ErrTimeout)
		return strings.Contains(err.Error(), "waiting for another call"), err.Error()
	})

	closed := make(chan error, 1)
	go func() { closed <- topic.Close() }()
	select {
	case err := <-closed:
		require.ErrorIs(t, err, protocol.ErrTimeout)
	case err := <-sent:
		require.NoError(t, err)
		require.Fail(t, "the Close waited for the send")
	}
	b.Process().Cont()
	require.NoError(t, <-sent)
}
