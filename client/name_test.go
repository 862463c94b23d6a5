package client

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/baton-ipc/baton/dlpack"
	"github.com/stretchr/testify/require"
)

// A reader may find that the memory of a revision has been given back, since the next one is set and the session of
// the previous one has ended. The name was set all the time.
func TestANameIsFoundWhoseSettersEnd(t *testing.T) {
	at, ctx, stop := startBroker(t), t.Context(), make(chan struct{})
	set := func() error {
		c, err := Connect(context.Background(), WithAddress(at))
		if err != nil {
			return err
		}
		x, err := c.Alloc(context.Background(), dlpack.Uint8, []int64{64})
		if err != nil {
			return errors.Join(err, c.Close())
		}
		_, err = c.Set(context.Background(), "one", x)
		x.Release()
		return errors.Join(err, c.Close())
	}
	require.NoError(t, set())
	var group sync.WaitGroup
	failed := make(chan error, 2)
	for range cap(failed) {
		group.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := set(); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	c, err := Connect(ctx, WithAddress(at))
	require.NoError(t, err)
	defer c.Close()
	for revision := uint64(0); revision < 300; {
		m, err := c.Get(ctx, "one")
		require.NoError(t, err)
		revision = m.Revision
		m.Release()
	}
	close(stop)
	group.Wait()
	require.Empty(t, failed)
}
