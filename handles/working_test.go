package handles

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestActiveSenderKeepsTheSlabItAllocatesIn(t *testing.T) {
	w := newWorld(t, 2, 1<<30)
	ctx := context.Background()
	s, err := w.pool.Alloc(ctx, 1000)
	require.NoError(t, err)
	w.drop(s)
	w.pool.at = uint64(1) << 62 // a moment ago, whatever the clock says meanwhile
	require.Zero(t, w.pool.ReclaimIdle(ctx), "a moment ago")
	w.pool.at = 0
	require.NotZero(t, w.pool.ReclaimIdle(ctx), "long ago")
	s, err = w.pool.Alloc(ctx, 1000)
	require.NoError(t, err)
	w.drop(s)
	require.NotZero(t, w.pool.Reclaim(ctx), "a Reclaim of the owner's own gives all back")
}
