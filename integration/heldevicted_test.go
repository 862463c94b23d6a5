package integration

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// What the process of an evicted taker holds goes to no other taker while it holds it, also at the next brokers, which
// do not know whose claim it is.
func TestItemOfAnEvictedTakerStaysItsOwnAtTheNextBroker(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	k := channel{Queue: "work", Depth: 4, Redeliver: true}
	q, err := k.openQueue(ctx, c)
	require.NoError(t, err)
	require.NoError(t, sendNoted(ctx, c, queueSender{q}, 64, newNote("me", 0)))
	taker := take(b, takeConfig{channel: k, Ask: true})
	taker.Next(new(taken))
	taker.Stop()
	for _, s := range testkit.Look(t, b).Sessions {
		if s.PID == taker.PID() {
			require.NoError(t, c.Broker(ctx, protocol.OpEvict, protocol.Evict{Serial: s.Serial}, &struct{}{}))
		}
	}
	for _, end := range []func(){b.Term, b.Kill} {
		end()
		b.Restart()
		m, err := q.TryGet(ctx)
		require.NoError(t, err)
		require.Nil(t, m, "its holder may write it")
	}
	taker.Kill()
	m, err := q.Get(ctx)
	require.NoError(t, err)
	got, err := verifyMessage(m)
	require.NoError(t, err)
	require.Equal(t, "me", got.From)
	m.Release()
	require.NoError(t, q.Close())
	testkit.AuditEmpty(t, b, c)
}
