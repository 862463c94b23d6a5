package client_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/protocol"
)

// What a function waits for with its context ends with its call, whatever that is and whichever client waits.
func TestWhatAFunctionWaitsForEndsWithItsCall(t *testing.T) {
	ctx, address := limited(t), newBroker(t)
	provider := connect(t, address)
	inner, third, others := connect(t, address), connect(t, address), connect(t, address)
	running := make(chan struct{}, 10000)
	handle(t, others, "waits", func(ctx context.Context, _ struct{}) (int, error) {
		running <- struct{}{}
		<-ctx.Done()
		return 0, ctx.Err()
	}, client.Concurrency(1000))
	type calls struct{ F *client.Function }
	handle(t, others, "calls", func(ctx context.Context, in calls) (int, error) {
		return client.CallOf[int](ctx, in.F)
	}, client.Concurrency(100))
	gone, err := client.Handle(others, "gone", func(context.Context, struct{}) (int, error) { return 0, nil })
	require.NoError(t, err)
	waitsForGone, err := inner.Function(ctx, "gone", client.Wait(time.Hour))
	require.NoError(t, err)
	defer waitsForGone.Close()
	require.NoError(t, gone.Close(ctx))
	crowded := connect(t, address)
	full, err := crowded.Function(ctx, "waits")
	require.NoError(t, err)
	defer full.Close()
	crowd, disperse := context.WithCancel(ctx)
	defer disperse()
	for range protocol.DefaultQueueDepth {
		go client.CallOf[int](crowd, full)
	}
	for range protocol.DefaultQueueDepth {
		<-running
	}

	waits := map[string]func(context.Context) error{
		"call":     func(ctx context.Context) error { _, err := client.Call[int](ctx, inner, "waits"); return err },
		"room":     func(ctx context.Context) error { _, err := client.CallOf[int](ctx, full); return err },
		"provider": func(ctx context.Context) error { _, err := client.CallOf[int](ctx, waitsForGone); return err },
		"name": func(ctx context.Context) error {
			_, err := inner.Function(ctx, "none", client.Wait(time.Hour))
			return err
		},
		"lent": func(ctx context.Context) error {
			ended := make(chan error, 1)
			_, err := client.Call[int](ctx, inner, "calls", client.Arg("f", client.Func(func(ctx context.Context, _ struct{}) (int, error) {
				_, err := client.Call[int](ctx, third, "waits")
				ended <- err
				return 0, err
			})))
			select {
			case inner := <-ended:
				return inner
			default:
				return err // it was over before
			}
		},
	}
	for what, wait := range waits {
		for _, how := range []string{"cancelled", "deadline", "closed"} {
			began, ended := make(chan struct{}), make(chan error, 1)
			r := handle(t, provider, "outer", func(ctx context.Context, _ struct{}) (int, error) {
				close(began)
				err := wait(ctx)
				ended <- err
				return 0, err
			})
			outer, cancel := context.WithCancel(context.Background())
			if how == "deadline" {
				outer, cancel = context.WithTimeout(context.Background(), 300*time.Millisecond)
			}
			calls := connect(t, address)
			go client.Call[int](outer, calls, "outer")
			<-began
			switch how {
			case "cancelled":
				cancel()
			case "closed":
				require.NoError(t, calls.Close())
			}
			err := <-ended
			switch code := fmt.Sprint(what, ", ", how); {
			case how != "deadline":
				require.True(t, errors.Is(err, protocol.ErrCancelled) || errors.Is(err, context.Canceled), "%s: %v", code, err)
			case what == "name": // at the end of its time
				require.ErrorIs(t, err, protocol.ErrNotFound, code)
			case what == "room":
				require.ErrorIs(t, err, protocol.ErrFull, code)
			case what == "lent": // what calls it ends at the deadline too, and cancels it
				require.Error(t, err, code)
			default:
				require.ErrorIs(t, err, protocol.ErrTimeout, code)
			}
			cancel()
			require.NoError(t, r.Close(ctx))
		}
	}
}
