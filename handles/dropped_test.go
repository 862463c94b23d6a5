package handles

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// A process that gets its own name over and over allocates nothing, so the pool does not
// look at what it is told.
func TestDropsOfOneStorageAreNotedOnce(t *testing.T) {
	w := newWorld(t, 2, 1<<30)
	s, err := w.pool.Alloc(context.Background(), 1000)
	require.NoError(t, err)
	for range 1000 {
		w.pool.Dropped(s.Index)
	}
	require.Len(t, w.pool.dropped, 1)
	w.drop(s)
	_, err = w.pool.Alloc(context.Background(), 5000)
	require.NoError(t, err)
	require.Empty(t, w.pool.dropped)
	require.Equal(t, 1, w.pool.Stats().Warm, "the drop that counts was seen")
	w.pool.Dropped(s.Index)
	require.Len(t, w.pool.dropped, 1)
}
