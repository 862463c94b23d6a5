package cabi_test

import (
	"sync"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/dlpack"
)

// expectAllDeleted fails the test unless every tensor that C made was deleted once (a
// second call would touch freed memory).
func expectAllDeleted(t *testing.T, h *harness) {
	t.Helper()
	before := h.made() - h.deleted()
	t.Cleanup(func() { assert.Equal(t, before, h.made()-h.deleted(), "tensors of C that were not deleted") })
}

func TestTensorOfCIsConsumedAndDeletedOnce(t *testing.T) {
	h := needHarness(t)
	expectAllDeleted(t, h)
	x, err := dlpack.Consume(at[dlpack.ManagedTensorVersioned](h.newTensor(3, 4, 0)))
	require.NoError(t, err)
	assert.Equal(t, []int64{3, 4}, x.Shape)
	assert.Equal(t, []int64{4, 1}, x.Strides)
	assert.Equal(t, dlpack.Float32, x.DType)
	assert.False(t, x.ReadOnly())
	b, err := x.Bytes()
	require.NoError(t, err)
	f := unsafe.Slice((*float32)(unsafe.Pointer(&b[0])), len(b)/4)
	assert.Equal(t, []float32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, append([]float32(nil), f...))
	before := h.deleted()
	require.NoError(t, x.Release())
	assert.Equal(t, before+1, h.deleted())
	require.NoError(t, x.Release())
	assert.Equal(t, before+1, h.deleted())
}

func TestReadOnlyTensorOfCSaysSo(t *testing.T) {
	h := needHarness(t)
	expectAllDeleted(t, h)
	m := at[dlpack.ManagedTensorVersioned](h.newTensor(2, 2, dlpack.FlagReadOnly))
	v, err := dlpack.Check(m)
	require.NoError(t, err)
	assert.True(t, v.ReadOnly())
	require.NoError(t, dlpack.Release(m))
}

func TestLegacyTensorOfCIsConsumed(t *testing.T) {
	h := needHarness(t)
	expectAllDeleted(t, h)
	x, err := dlpack.ConsumeLegacy(at[dlpack.ManagedTensor](h.newLegacy(2, 5)))
	require.NoError(t, err)
	assert.Equal(t, int64(40), x.Span)
	require.NoError(t, x.Release())
	require.NoError(t, dlpack.ReleaseLegacy(at[dlpack.ManagedTensor](h.newLegacy(1, 1))))
}

func TestEmptyTensorOfCIsConsumed(t *testing.T) {
	h := needHarness(t)
	expectAllDeleted(t, h)
	x, err := dlpack.Consume(at[dlpack.ManagedTensorVersioned](h.newTensor(0, 4, 0)))
	require.NoError(t, err)
	assert.Zero(t, x.Span)
	require.NoError(t, x.Release())
}

func TestTensorOfCWithoutDeleterIsConsumed(t *testing.T) {
	h := needHarness(t)
	expectAllDeleted(t, h)
	x, err := dlpack.Consume(at[dlpack.ManagedTensorVersioned](h.static()))
	require.NoError(t, err)
	assert.Equal(t, int64(24), x.Span)
	require.NoError(t, x.Release())
}

func TestBadTensorOfCIsDeletedByConsume(t *testing.T) {
	h := needHarness(t)
	expectAllDeleted(t, h)
	m := at[dlpack.ManagedTensorVersioned](h.newTensor(3, 4, 0))
	m.Tensor.NDim = -1
	_, err := dlpack.Consume(m)
	assert.ErrorIs(t, err, dlpack.ErrNDim)
	old := at[dlpack.ManagedTensor](h.newLegacy(3, 4))
	*at[int64](old.Tensor.Shape) = 1 << 62
	_, err = dlpack.ConsumeLegacy(old)
	assert.ErrorIs(t, err, dlpack.ErrOverflow)
}

// Everything of this tensor but version, context and deleter lies on a page
// that cannot be read.
func TestTensorOfANewerMajorVersionIsOnlyDeleted(t *testing.T) {
	h := needHarness(t)
	expectAllDeleted(t, h)
	for name, use := range map[string]func(*dlpack.ManagedTensorVersioned) error{
		"check":   func(m *dlpack.ManagedTensorVersioned) error { _, err := dlpack.Check(m); return err },
		"consume": func(m *dlpack.ManagedTensorVersioned) error { _, err := dlpack.Consume(m); return err },
	} {
		t.Run(name, func(t *testing.T) {
			before := h.deleted()
			err := use(at[dlpack.ManagedTensorVersioned](h.newFuture(1)))
			var ve *dlpack.VersionError
			require.ErrorAs(t, err, &ve)
			assert.Equal(t, dlpack.Version{Major: 2, Minor: 9}, ve.Got)
			assert.Equal(t, before+1, h.deleted())
		})
	}
	require.NoError(t, dlpack.Release(at[dlpack.ManagedTensorVersioned](h.newFuture(1))), "release needs no version")
}

func TestTensorOfANewerMajorVersionWithoutDeleterIsRefused(t *testing.T) {
	h := needHarness(t)
	_, err := dlpack.Consume(at[dlpack.ManagedTensorVersioned](h.newFuture(0)))
	assert.ErrorIs(t, err, dlpack.ErrVersion)
}

func TestConcurrentReleasesCallCOnce(t *testing.T) {
	h := needHarness(t)
	expectAllDeleted(t, h)
	for range 200 {
		before := h.deleted()
		x, err := dlpack.Consume(at[dlpack.ManagedTensorVersioned](h.newTensor(1, 1, 0)))
		require.NoError(t, err)
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() { assert.NoError(t, x.Release()) })
		}
		group.Wait()
		require.Equal(t, before+1, h.deleted())
	}
}

func TestExchangeTableOfCIsSelectedAndUsed(t *testing.T) {
	h := needHarness(t)
	expectAllDeleted(t, h)
	table, err := dlpack.SelectExchangeAPI(unsafe.Pointer(at[byte](h.exchange())))
	require.NoError(t, err)
	assert.Equal(t, dlpack.CurrentVersion, table.Header.Version)
	assert.Equal(t, []dlpack.ExchangeEntry{dlpack.EntryFromPyObject, dlpack.EntryToPyObject,
		dlpack.EntryDLTensorFromPyObject}, table.Missing())

	allocate, err := table.Entry(dlpack.EntryAllocator)
	require.NoError(t, err)
	p := newPool(t)
	data, _ := floats(t, 10)
	like, err := p.Export(&dlpack.Spec{Data: data, Device: dlpack.CPUDevice, DType: dlpack.Float32, Shape: []int64{2, 5}})
	require.NoError(t, err)
	out := &words(t, 1)[0]
	rc, _, _ := purego.SyscallN(allocate, addr(&like.Tensor), addr(out), 0, 0)
	require.Zero(t, rc)
	require.NoError(t, dlpack.Release(like))
	x, err := dlpack.Consume(at[dlpack.ManagedTensorVersioned](uintptr(*out)))
	require.NoError(t, err)
	assert.Equal(t, []int64{2, 5}, x.Shape)
	require.NoError(t, x.Release())
}
