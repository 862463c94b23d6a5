package integration

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// A compacted bundle has the same values, ties and strides in a storage that is as large as
// what it shows, and lets go of all else.
func TestCompactedBundleIsTheSameInLessMemory(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	big, err := c.Alloc(ctx, dlpack.Int32, []int64{1 << 18})
	require.NoError(t, err)
	bytes, err := big.Bytes()
	require.NoError(t, err)
	for i := range 1 << 18 {
		binary.LittleEndian.PutUint32(bytes[4*i:], uint32(i))
	}
	row, err := big.Slice(0, 1000, 1012)
	require.NoError(t, err)
	columns, err := row.AsStrided([]int64{4, 3}, []int64{1, 4}, 0)
	require.NoError(t, err)
	none, err := c.Alloc(ctx, dlpack.Float32, []int64{0, 7})
	require.NoError(t, err)
	_, err = c.Set(ctx, "w", map[string]any{"a": row, "b": []any{columns, none}, "n": int64(7)}, client.Meta(map[string]int{"epoch": 3}))
	require.NoError(t, err)
	big.Release()
	none.Release()

	old, err := c.Get(ctx, "w")
	require.NoError(t, err)
	small, err := c.Compact(ctx, old)
	require.NoError(t, err)
	revision, err := c.Set(ctx, "w", small, client.Replaces(old.Revision), client.Meta(small.RawMeta()))
	require.NoError(t, err)
	require.Equal(t, old.Revision+1, revision)
	small.Release()
	_, err = c.Set(ctx, "w", old, client.Replaces(old.Revision))
	require.ErrorIs(t, err, protocol.ErrConflict)
	_, err = c.Set(ctx, "other", old, client.Replaces(1))
	require.ErrorIs(t, err, protocol.ErrConflict)
	held, err := old.Tensor("a").Bytes()
	require.NoError(t, err)
	require.EqualValues(t, 1000, binary.LittleEndian.Uint32(held), "a holder of the old one keeps its bytes")
	old.Release()

	now, err := c.Get(ctx, "w")
	require.NoError(t, err)
	defer now.Release()
	require.Equal(t, []string{"a", "b/0", "b/1"}, now.Names())
	a, err := now.Tensor("a").Bytes()
	require.NoError(t, err)
	for i := range 12 {
		require.EqualValues(t, 1000+i, binary.LittleEndian.Uint32(a[4*i:]))
	}
	require.Equal(t, []int64{1, 4}, now.Tensor("b/0").Strides())
	first, err := now.Tensor("b/0").Slice(1, 0, 1)
	require.NoError(t, err)
	tied, err := first.AsStrided([]int64{4}, nil, 0)
	require.NoError(t, err)
	same, err := tied.Bytes()
	require.NoError(t, err)
	require.Same(t, &a[0], &same[0], "what lay in the same bytes does so")
	require.Equal(t, []int64{0, 7}, now.Tensor("b/1").Shape())
	var meta map[string]int
	require.NoError(t, now.Meta(&meta))
	require.Equal(t, 3, meta["epoch"])
	v, err := now.Value()
	require.NoError(t, err)
	require.EqualValues(t, 7, v.(map[string]any)["n"])
	testkit.Until(t, "only the copy is held", func() (bool, string) {
		h := testkit.Look(t, b)
		return len(h.Storages) == 1 && h.Storages[0].Bytes <= 4096, h.String()
	})
}
