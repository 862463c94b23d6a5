package sparse

import (
	"maps"
	"reflect"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTableHasWhatWasStored(t *testing.T) {
	var table Table[int]
	one, two := 1, 2
	for _, i := range []uint32{0, 127, 128, Size - 1} {
		require.Nil(t, table.Load(i))
		table.Store(i, &one)
		require.Same(t, &one, table.Load(i))
	}
	require.Nil(t, table.Load(1))
	require.False(t, table.CompareAndSwap(1, &one, &two))
	require.True(t, table.CompareAndSwap(1, nil, &two))
	require.Same(t, &two, table.Swap(1, nil))
	require.Equal(t, map[uint32]*int{0: &one, 127: &one, 128: &one, Size - 1: &one}, maps.Collect(table.All()))
	for i := range table.All() {
		require.Zero(t, i, "the first one")
		break
	}
	require.Panics(t, func() { table.Load(Size) })
}

func TestTableLosesNothingThatIsStoredAtOnce(t *testing.T) {
	var table Table[uint32]
	var all sync.WaitGroup
	for k := range uint32(8) {
		all.Go(func() {
			for i := k; i < Size; i += 8 {
				table.Store(i, &i)
			}
		})
	}
	all.Wait()
	for i := range uint32(Size) {
		require.Equal(t, i, *table.Load(i))
	}
}

func TestEmptyTableIsSmall(t *testing.T) {
	require.LessOrEqual(t, reflect.TypeFor[Table[int]]().Size(), uintptr(2048))
}
