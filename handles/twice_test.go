package handles

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// A reader in the owner's own process that is too late counts a storage up and
// down again: the pool then gets its drop when it has found it free already.
// It must not be given to two.
func TestStorageDroppedTwiceIsGivenToOne(t *testing.T) {
	w := newWorld(t, 2, 1<<30)
	ctx := context.Background()
	a, err := w.pool.Alloc(ctx, 1000)
	require.NoError(t, err)
	w.drop(a)
	_, err = w.pool.Alloc(ctx, 5000) // finds the first one free
	require.NoError(t, err)
	require.Equal(t, 1, w.pool.Stats().Warm)
	w.pool.Dropped(a.Index)
	_, err = w.pool.Alloc(ctx, 5000)
	require.NoError(t, err)
	b, err := w.pool.Alloc(ctx, 1000)
	require.NoError(t, err)
	c, err := w.pool.Alloc(ctx, 1000)
	require.NoError(t, err)
	require.NotEqual(t, b.Index, c.Index)
	require.NotEqual(t, b.Offset, c.Offset)
}
