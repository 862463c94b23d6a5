package client_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/protocol"
)

// A provider that gets no memory for the place of its reply ends the call without one: its caller is notified of the memory,
// and not that the provider breaks the protocol.
func TestACallWhoseReplyHasNoRoomIsOutOfMemory(t *testing.T) {
	const memory = 64 << 20
	at, ctx := newBrokerWith(t, memory), limited(t)
	c, first, p := connect(t, at), connect(t, at), connect(t, at)
	began, goOn := make(chan int, 4), make(chan struct{})
	holds := func(_ context.Context, n int) (int, error) {
		if n > 0 {
			began <- n
			<-goOn
		}
		return n, nil
	}
	handle(t, first, "first", holds, client.Concurrency(4))
	handle(t, p, "second", holds, client.Concurrency(4))
	results := make(chan error, 4)
	call := func(name string, n int) {
		_, err := client.Call[int](ctx, c, name, n)
		results <- err
	}
	// The caller has two places for replies.
	go call("first", 1)
	go call("first", 2)
	<-began
	<-began
	goOn <- struct{}{}
	goOn <- struct{}{}
	require.NoError(t, <-results)
	require.NoError(t, <-results)
	// Its provider has a lane in one of them, and then there is no memory for another one.
	_, err := client.Call[int](ctx, c, "second", 0)
	require.NoError(t, err)
	for n := int64(1 << 20); n >= 4096; {
		x, err := c.Alloc(ctx, dlpack.Uint8, []int64{n})
		if err != nil {
			n /= 2
			continue
		}
		defer x.Release()
	}
	go call("second", 1)
	<-began
	_, err = client.Call[int](ctx, c, "second", 2)
	require.ErrorIs(t, err, protocol.ErrOutOfMemory)
	require.ErrorContains(t, err, "got no memory")
	goOn <- struct{}{}
	require.NoError(t, <-results)
}
