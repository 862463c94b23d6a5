package client_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/protocol"
)

// A command in a remedy reaches what the error is about: the broker and the namespace of the session.
func TestRemediesNameTheBrokerAndTheNamespace(t *testing.T) {
	address, ctx := newBroker(t), limited(t)
	c, err := client.Connect(ctx, client.WithAddress(address), client.WithNamespace("team-b"))
	require.NoError(t, err)
	defer c.Close()
	q, err := c.Queue(ctx, "work", client.Depth(1))
	require.NoError(t, err)
	x := tensor(t, c, 1)
	defer x.Release()
	remedyOf := func(err error) string {
		t.Helper()
		var e *protocol.Error
		require.ErrorAs(t, err, &e)
		return e.Remedy
	}
	short := func() context.Context {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	why := "`baton why --address=" + address + " --namespace=team-b "
	_, err = q.Get(short())
	require.Contains(t, remedyOf(err), why+"queue work`")
	require.NoError(t, q.Put(ctx, x))
	require.Contains(t, remedyOf(q.Put(short(), x)), why+"queue work`")

	_, err = client.Handle(c, "slow", func(ctx context.Context, _ struct{}) (int, error) {
		<-ctx.Done()
		return 0, ctx.Err()
	})
	require.NoError(t, err)
	_, err = client.Call[int](short(), c, "slow")
	require.Contains(t, remedyOf(err), why+"function slow")
}
