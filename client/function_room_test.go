package client_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/protocol"
)

// endsWaiting is a context that ends as soon as something waits for its end, and not before.
type endsWaiting struct {
	context.Context
	with  error
	ended atomic.Bool
}

func (c *endsWaiting) Done() <-chan struct{} {
	c.ended.Store(true)
	over := make(chan struct{})
	close(over)
	return over
}

func (c *endsWaiting) Err() error {
	if c.ended.Load() {
		return c.with
	}
	return nil
}

// A call for which there is no room is Full where its time ends before there is some. It is never sent.
func TestCallBeyondTheRoomForCallsIsFull(t *testing.T) {
	const room = protocol.DefaultQueueDepth // calls of a function that a session has under way
	ctx, c, p := pair(t)
	began, goOn := make(chan int, 2*room), make(chan struct{})
	handle(t, p, "hold", func(_ context.Context, n int) (int, error) {
		began <- n
		<-goOn
		return n, nil
	}, client.Concurrency(2*room))
	f, err := c.Function(ctx, "hold")
	require.NoError(t, err)
	defer f.Close()
	results := make(chan error, room)
	for i := range room {
		go func() {
			n, err := client.CallOf[int](ctx, f, i)
			if err == nil && n != i {
				err = fmt.Errorf("%d in place of %d", n, i)
			}
			results <- err
		}()
	}
	for range room {
		<-began
	}
	_, err = client.CallOf[int](&endsWaiting{Context: ctx, with: context.DeadlineExceeded}, f, room)
	require.ErrorIs(t, err, protocol.ErrFull)
	require.ErrorContains(t, err, "no room for another call")
	_, err = client.CallOf[int](&endsWaiting{Context: ctx, with: context.Canceled}, f, room)
	require.ErrorIs(t, err, protocol.ErrCancelled)
	close(goOn)
	for range room {
		require.NoError(t, <-results)
	}
	n, err := client.CallOf[int](ctx, f, -1)
	require.NoError(t, err)
	require.Equal(t, -1, n)
	require.Equal(t, -1, <-began, "what had no room was not sent")
}

// A second provider takes what the first one takes: the error says what each of them has.
func TestASecondSignatureIsRefusedAndBothAreNamed(t *testing.T) {
	ctx, c, p := pair(t)
	handle(t, p, "f", func(_ context.Context, x int) (int, error) { return x, nil })
	_, err := client.Handle(c, "f", func(_ context.Context, x string) (string, error) { return x, nil })
	require.ErrorIs(t, err, protocol.ErrConflict)
	require.ErrorContains(t, err, `as {"parameters":[{"name":"x","type":"int64"}],"result":"int64"}, and here as {"parameters":[{"name":"x","type":"str"}],"result":"str"}`)
	n, err := client.Call[int](ctx, c, "f", 7)
	require.NoError(t, err)
	require.Equal(t, 7, n, "the first one goes on")
}
