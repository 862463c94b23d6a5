package client

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// The broker has said that it evicts a session, and the session is not over here yet: an item of a queue that is released
// then is another taker's, since a request may have been refused for the eviction already.
func TestItemThatAnEvictedSessionReleasesIsAnothers(t *testing.T) {
	all, ctx := sessions(t, 2), context.Background()
	evicted, other := all[0], all[1]
	q, err := evicted.Queue(ctx, "q", Redeliver(true))
	require.NoError(t, err)
	x := alloc(t, evicted)
	require.NoError(t, q.Put(ctx, x))
	x.Release()
	m, err := q.Get(ctx)
	require.NoError(t, err)
	its, err := other.Queue(ctx, "q", Redeliver(true))
	require.NoError(t, err)
	defer its.Close()
	evicted.s.Life.Evict()
	m.Release()
	require.NoError(t, evicted.Close())
	m, err = its.Get(ctx)
	require.NoError(t, err)
	m.Release()
}
