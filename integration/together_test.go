package integration

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
)

// The claims of a queue's first taker are lost with the broker's answer, and sessions that come back together ask for
// new ones: none is refused because another one's turn has not come.
func TestSessionsThatComeBackTogether(t *testing.T) {
	b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.CrashPoint = "broker-reader-listed" })
	ctx := testkit.Context(t)
	const sessions = 16
	var queues []*client.Queue
	for range sessions {
		q, err := b.Connect().Queue(ctx, "q")
		require.NoError(t, err)
		queues = append(queues, q)
	}
	got := make(chan error)
	for _, q := range queues {
		go func() {
			_, err := q.Get(ctx)
			got <- err
		}()
	}
	b.Crashed()
	b.Restart()
	for range sessions {
		require.NoError(t, queues[0].Put(ctx, []any{"one each"}))
	}
	for range sessions {
		require.NoError(t, <-got)
	}
}
