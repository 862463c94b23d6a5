package integration

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// What was sent is there, and to map the memory in which it lies takes a broker: a wait ends at its own time, and
// goes on with the next broker.
func TestWaitsForDataWaitForTheBrokerThatTheyNeed(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx, theirs, mine := t.Context(), b.Connect(), b.Connect()
	of := func(c *client.Client) (*client.Queue, *client.Topic) {
		q, err := c.Queue(ctx, "q")
		require.NoError(t, err)
		topic, err := c.Topic(ctx, "t")
		require.NoError(t, err)
		return q, topic
	}
	toQueue, toTopic := of(theirs)
	queue, topic := of(mine)
	reader, err := topic.Reader(ctx)
	require.NoError(t, err)
	watch, err := mine.Watch(ctx, "n")
	require.NoError(t, err)
	m, err := queue.TryGet(ctx)
	require.NoError(t, err)
	require.Nil(t, m)
	x, err := theirs.Alloc(ctx, dlpack.Float32, []int64{1})
	require.NoError(t, err)
	require.NoError(t, toQueue.Put(ctx, x))
	require.NoError(t, toTopic.Send(ctx, x))
	_, err = theirs.Set(ctx, "n", x)
	require.NoError(t, err)
	x.Release()
	b.Kill()

	waits := map[protocol.Code][]func(context.Context) error{
		protocol.CodeEmpty: {func(ctx context.Context) error { return released(queue.Get(ctx)) }},
		protocol.CodeTimeout: {
			func(ctx context.Context) error { return released(reader.Receive(ctx)) },
			func(ctx context.Context) error { return released(watch.Next(ctx)) },
		},
	}
	var ended []chan error
	for code, all := range waits {
		for _, wait := range all {
			short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			require.Equal(t, code, protocol.CodeOf(wait(short)))
			cancel()
			end := make(chan error)
			ended = append(ended, end)
			go func() { end <- wait(ctx) }()
		}
	}
	b.Restart()
	for _, end := range ended {
		require.NoError(t, <-end)
	}
}

func released[T interface{ Release() }](of T, err error) error {
	if err == nil {
		of.Release()
	}
	return err
}
