package broker_test

import (
	"context"
	"testing"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// joins opens a session of a child.
func (c *played) joins(ctx context.Context, name string) (cl *client.Client) {
	require.NoError(c, again(ctx, func() (err error) {
		cl, err = client.Connect(ctx, client.WithAddress(c.socket), client.WithStart(false), client.WithName(name))
		return err
	}))
	return cl
}

// provides registers a function that says when it begins, and ends with its call.
func provides(ctx context.Context, c *client.Client, name string, begins func()) (r *client.Registration, err error) {
	err = again(ctx, func() error {
		r, err = client.Handle(c, name, func(ctx context.Context, _ *client.Tensor) (int, error) {
			begins()
			<-ctx.Done()
			return 0, ctx.Err()
		})
		return err
	})
	return r, err
}

func init() {
	// provider runs a call, and waits to be killed.
	parts["provider"] = func(c *played) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, err := provides(ctx, c.joins(ctx, "provider"), "theirs", func() { c.tell("begun") })
		require.NoError(c, err)
		c.tell("ready")
		c.hear()
	}
	// caller has two calls under way, one of which waits, and waits to be killed.
	parts["caller"] = func(c *played) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		cl := c.joins(ctx, "caller")
		for i := range uint64(2) {
			x, err := filled(ctx, cl, i)
			require.NoError(c, err)
			go again(ctx, func() error { _, err := client.Call[int](ctx, cl, "ours", x); return err })
		}
		c.hear()
	}
}

// calls plays a provider and a caller that are killed in the midst of calls.
func calls(t *testing.T, ctx context.Context, socket string, c *client.Client) {
	provider := start(t, socket, "provider")
	var said string
	provider.hear(&said)
	x, err := filled(ctx, c, 78)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() {
		ended <- again(ctx, func() error { _, err := client.Call[int](ctx, c, "theirs", x); return err })
	}()
	provider.hear(&said)
	require.Equal(t, "begun", said)
	provider.kill()
	require.Equal(t, protocol.CodeProviderDied, protocol.CodeOf(<-ended))
	x.Release()

	begun := make(chan struct{}, 2)
	r, err := provides(ctx, c, "ours", func() { begun <- struct{}{} })
	require.NoError(t, err)
	caller := start(t, socket, "caller")
	<-begun
	caller.kill()
	require.NoError(t, r.Close(ctx), "its call ends with its caller")
}
