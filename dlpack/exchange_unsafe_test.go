package dlpack_test

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/dlpack"
)

func table(a *arena, major, minor uint32, prev uintptr) *dlpack.ExchangeAPI {
	return put(a, dlpack.ExchangeAPI{
		Header:                 dlpack.ExchangeAPIHeader{Version: dlpack.Version{Major: major, Minor: minor}, PrevAPI: prev},
		ManagedTensorAllocator: 0x10, ManagedTensorFromPyObjectNoSync: 0x20, ManagedTensorToPyObjectNoSync: 0x30,
		DLTensorFromPyObjectNoSync: 0x40, CurrentWorkStream: 0x50,
	})
}

func TestExchangeTableOfOurMajorVersionIsSelected(t *testing.T) {
	a := newArena(t)
	ours := table(a, 1, 3, addr(table(a, 1, 2, 0)))
	// Of newer tables only the header may be read, so that is all there is.
	newer := put(a, dlpack.ExchangeAPIHeader{Version: dlpack.Version{Major: 2}, PrevAPI: addr(ours)})
	newest := put(a, dlpack.ExchangeAPIHeader{Version: dlpack.Version{Major: 3}, PrevAPI: addr(newer)})
	got, err := dlpack.SelectExchangeAPI(unsafe.Pointer(newest))
	require.NoError(t, err)
	assert.Equal(t, addr(ours), addr(got))
	got, err = dlpack.SelectExchangeAPI(unsafe.Pointer(ours))
	require.NoError(t, err)
	assert.Equal(t, addr(ours), addr(got), "a later minor version is ours too, the newest first")
}

func TestExchangeTableWithoutOurMajorVersionIsRefused(t *testing.T) {
	a := newArena(t)
	h := put(a, dlpack.ExchangeAPIHeader{Version: dlpack.Version{Major: 2, Minor: 1}})
	_, err := dlpack.SelectExchangeAPI(unsafe.Pointer(h))
	var ve *dlpack.VersionError
	require.ErrorAs(t, err, &ve)
	assert.Equal(t, h.Version, ve.Got)
	_, err = dlpack.SelectExchangeAPI(nil)
	assert.ErrorIs(t, err, dlpack.ErrNullTensor)
	_, err = dlpack.SelectExchangeAPI(unsafe.Pointer(at[byte](0x1003)))
	assert.ErrorIs(t, err, dlpack.ErrMisaligned)
}

func TestExchangeChainThatDoesNotGetOlderIsRefused(t *testing.T) {
	a := newArena(t)
	loop := put(a, dlpack.ExchangeAPIHeader{Version: dlpack.Version{Major: 2}})
	loop.PrevAPI = addr(loop)
	_, err := dlpack.SelectExchangeAPI(unsafe.Pointer(loop))
	assert.ErrorIs(t, err, dlpack.ErrExchangeChain)

	var prev uintptr
	for i := range uint32(100) {
		prev = addr(put(a, dlpack.ExchangeAPIHeader{Version: dlpack.Version{Major: 2 + i}, PrevAPI: prev}))
	}
	_, err = dlpack.SelectExchangeAPI(unsafe.Pointer(at[byte](prev)))
	assert.ErrorIs(t, err, dlpack.ErrExchangeChain)
}

func TestExchangeEntriesThatAreNullAreReported(t *testing.T) {
	a := newArena(t)
	x := table(a, 1, 3, 0)
	assert.Empty(t, x.Missing())
	for i, e := range dlpack.ExchangeEntries {
		fn, err := x.Entry(e)
		require.NoError(t, err)
		assert.Equal(t, uintptr(0x10*(i+1)), fn, "%s", e)
	}
	x.ManagedTensorAllocator, x.CurrentWorkStream = 0, 0
	assert.Equal(t, []dlpack.ExchangeEntry{dlpack.EntryAllocator, dlpack.EntryCurrentWorkStream}, x.Missing())
	_, err := x.Entry(dlpack.EntryAllocator)
	assert.ErrorIs(t, err, dlpack.ErrExchangeEntry)
	assert.ErrorContains(t, err, "managed_tensor_allocator")
	_, err = x.Entry("nonsense")
	assert.ErrorIs(t, err, dlpack.ErrExchangeEntry)
}
