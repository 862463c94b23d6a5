package dlpack_test

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/sys"
)

const drop = 1<<20 - 1

func spec(a *arena, shape ...int64) *dlpack.Spec {
	return &dlpack.Spec{Data: unsafe.Pointer(put(a, [1024]byte{})), Device: dlpack.CPUDevice,
		DType: dlpack.Float32, Shape: shape}
}

func reap(p *dlpack.Pool) []uint64 {
	var got []uint64
	p.Reap(func(c uint64) { got = append(got, c) })
	return got
}

func TestExportFillsTheStructure(t *testing.T) {
	a, p := newArena(t), newPool(t)
	s := spec(a, 3, 4)
	s.Flags = dlpack.FlagReadOnly
	m, err := p.Export(s)
	require.NoError(t, err)
	assert.Equal(t, dlpack.Version{Major: 1, Minor: 3}, m.Version)
	assert.Equal(t, dlpack.FlagReadOnly, m.Flags)
	assert.NotZero(t, m.Deleter)
	assert.Equal(t, uintptr(s.Data), m.Tensor.Data)
	assert.Equal(t, dlpack.CPUDevice, m.Tensor.Device)
	assert.Equal(t, dlpack.Float32, m.Tensor.DType)
	assert.Zero(t, m.Tensor.ByteOffset)
	assert.Equal(t, int32(2), m.Tensor.NDim)
	assert.Equal(t, []int64{3, 4}, int64sAt(m.Tensor.Shape, 2))
	assert.Equal(t, []int64{4, 1}, int64sAt(m.Tensor.Strides, 2))
	assert.Zero(t, addr(m)%64)
	require.NoError(t, dlpack.Release(m))
}

func TestExportKeepsStridesAndCopiesThem(t *testing.T) {
	a, p := newArena(t), newPool(t)
	s := spec(a, 4, 3)
	s.Strides = []int64{1, 4}
	m, err := p.Export(s)
	require.NoError(t, err)
	s.Shape[0], s.Strides[0] = 99, 99
	assert.Equal(t, []int64{4, 3}, int64sAt(m.Tensor.Shape, 2))
	assert.Equal(t, []int64{1, 4}, int64sAt(m.Tensor.Strides, 2))
	require.NoError(t, dlpack.Release(m))
}

func TestExportOfNoElementsHasNullData(t *testing.T) {
	a, p := newArena(t), newPool(t)
	for _, data := range []unsafe.Pointer{nil, unsafe.Pointer(put(a, int64(0)))} {
		s := spec(a, 3, 0)
		s.Data = data
		m, err := p.Export(s)
		require.NoError(t, err)
		assert.Zero(t, m.Tensor.Data)
		assert.NotZero(t, m.Tensor.Strides)
		require.NoError(t, dlpack.Release(m))
	}
}

func TestExportOfAScalarHasNoDimensions(t *testing.T) {
	p := newPool(t)
	m, err := p.Export(spec(newArena(t)))
	require.NoError(t, err)
	assert.Zero(t, m.Tensor.NDim)
	assert.Zero(t, m.Tensor.Shape)
	assert.NotZero(t, m.Tensor.Data)
	require.NoError(t, dlpack.Release(m))
}

func TestExportTakesUpTo64Dimensions(t *testing.T) {
	a, p := newArena(t), newPool(t)
	var held []*dlpack.ManagedTensorVersioned
	for n := range dlpack.MaxDims + 1 {
		shape := slices.Repeat([]int64{1}, n)
		if n > 0 {
			shape[n-1] = 5
		}
		m, err := p.Export(spec(a, shape...))
		require.NoError(t, err)
		held = append(held, m)
	}
	for n, m := range held {
		require.Equal(t, int32(n), m.Tensor.NDim)
		shape := int64sAt(m.Tensor.Shape, n)
		if n > 0 {
			require.Equal(t, append(slices.Repeat([]int64{1}, n-1), 5), shape)
		}
		require.NoError(t, dlpack.Release(m))
	}
	assert.Equal(t, len(held), p.Reap(nil))
	_, err := p.Export(spec(a, slices.Repeat([]int64{1}, 65)...))
	assert.ErrorIs(t, err, dlpack.ErrNDim)
}

func TestReleaseDropsTheReferenceOnce(t *testing.T) {
	a, p := newArena(t), newPool(t)
	word := put(a, uint64(7<<20+2))
	s := spec(a, 2)
	s.Word, s.Delta, s.Cookie = word, drop, 42
	m, err := p.Export(s)
	require.NoError(t, err)
	assert.Equal(t, uint64(7<<20+2), *word, "export takes nothing")
	assert.Empty(t, reap(p))
	require.NoError(t, dlpack.Release(m))
	assert.Equal(t, uint64(8<<20+1), atomic.LoadUint64(word), "sequence one up, count one down")
	require.NoError(t, dlpack.Release(m))
	assert.Equal(t, uint64(8<<20+1), atomic.LoadUint64(word), "a second call does nothing")
	assert.Equal(t, []uint64{42}, reap(p))
	assert.Empty(t, reap(p))
	require.NoError(t, dlpack.Release(m))
	assert.Empty(t, reap(p), "nor one after the block went back")
}

func TestReleaseWithoutAWordOnlyReturnsTheBlock(t *testing.T) {
	p := newPool(t)
	s := spec(newArena(t), 2)
	s.Delta, s.Cookie = drop, 5
	m, err := p.Export(s)
	require.NoError(t, err)
	require.NoError(t, dlpack.Release(m))
	assert.Equal(t, []uint64{5}, reap(p))
}

func TestReleaseOfNilIsFine(t *testing.T) {
	require.NoError(t, dlpack.Release(nil))
	require.NoError(t, dlpack.ReleaseLegacy(nil))
}

func TestLegacyExportReleases(t *testing.T) {
	a, p := newArena(t), newPool(t)
	word := put(a, uint64(1))
	s := spec(a, 3, 4)
	s.Word, s.Delta, s.Cookie, s.Flags = word, drop, 9, dlpack.FlagIsCopied
	m, err := p.ExportLegacy(s)
	require.NoError(t, err)
	assert.Equal(t, uintptr(s.Data), m.Tensor.Data)
	assert.Equal(t, []int64{3, 4}, int64sAt(m.Tensor.Shape, 2))
	v, err := dlpack.CheckLegacy(m)
	require.NoError(t, err)
	assert.Equal(t, int64(48), v.Span)
	require.NoError(t, dlpack.ReleaseLegacy(m))
	assert.Equal(t, uint64(1<<20), atomic.LoadUint64(word))
	require.NoError(t, dlpack.ReleaseLegacy(m))
	assert.Equal(t, uint64(1<<20), atomic.LoadUint64(word))
	assert.Equal(t, []uint64{9}, reap(p))
}

func TestLegacyExportCannotSayReadOnlyOrPadded(t *testing.T) {
	a, p := newArena(t), newPool(t)
	for _, f := range []uint64{dlpack.FlagReadOnly, dlpack.FlagSubbyteTypePadded} {
		s := spec(a, 2)
		s.Flags = f
		_, err := p.ExportLegacy(s)
		assert.ErrorIs(t, err, dlpack.ErrFlags)
	}
}

func TestExportRefusesBadSpecs(t *testing.T) {
	a, p := newArena(t), newPool(t)
	for name, c := range map[string]struct {
		change func(*dlpack.Spec)
		want   error
	}{
		"dtype":         {func(s *dlpack.Spec) { s.DType.Code = 77 }, dlpack.ErrUnknownDType},
		"negative":      {func(s *dlpack.Spec) { s.Shape[1] = -4 }, dlpack.ErrNegativeDim},
		"overflow":      {func(s *dlpack.Spec) { s.Shape[1] = 1 << 62 }, dlpack.ErrOverflow},
		"strides":       {func(s *dlpack.Spec) { s.Strides = []int64{-4, 1} }, dlpack.ErrNegativeStride},
		"stride count":  {func(s *dlpack.Spec) { s.Strides = []int64{1} }, dlpack.ErrStrideCount},
		"null":          {func(s *dlpack.Spec) { s.Data = nil }, dlpack.ErrNullData},
		"data aligned":  {func(s *dlpack.Spec) { s.Data = unsafe.Add(s.Data, 2) }, dlpack.ErrMisaligned},
		"word aligned":  {func(s *dlpack.Spec) { s.Word = (*uint64)(unsafe.Add(s.Data, 4)) }, dlpack.ErrMisaligned},
		"device":        {func(s *dlpack.Spec) { s.Device = dlpack.Device{} }, dlpack.ErrDevice},
		"flags":         {func(s *dlpack.Spec) { s.Flags = 1 << 40 }, dlpack.ErrFlags},
		"padded lanes":  {func(s *dlpack.Spec) { s.Flags = 4; s.DType = dlpack.DType{Code: 17, Bits: 4, Lanes: 2} }, dlpack.ErrFlags},
		"past the end":  {func(s *dlpack.Spec) { s.Data = unsafe.Pointer(at[byte](^uintptr(0) - 7)) }, dlpack.ErrOverflow},
		"empty is also": {func(s *dlpack.Spec) { s.Shape = []int64{0, 1 << 62, 1 << 62} }, dlpack.ErrOverflow},
	} {
		t.Run(name, func(t *testing.T) {
			s := spec(a, 3, 4)
			c.change(s)
			before := p.Stats()
			m, err := p.Export(s)
			assert.Nil(t, m)
			assert.ErrorIs(t, err, c.want)
			_, err = p.ExportLegacy(s)
			assert.ErrorIs(t, err, c.want)
			assert.Equal(t, before, p.Stats(), "no block is lost")
		})
	}
}

func TestExportOfADeviceHandleNeedsNoAlignment(t *testing.T) {
	a, p := newArena(t), newPool(t)
	s := spec(a, 2)
	s.Device, s.Data = dlpack.Device{Type: dlpack.Vulkan}, unsafe.Add(s.Data, 1)
	m, err := p.Export(s)
	require.NoError(t, err)
	require.NoError(t, dlpack.Release(m))
}

func TestPoolRecyclesBlocks(t *testing.T) {
	a, p := newArena(t), newPool(t)
	small, large := spec(a, 2), spec(a, slices.Repeat([]int64{1}, 40)...)
	cycle := func(n int) {
		for i := range n {
			for _, s := range []*dlpack.Spec{small, large} {
				s.Cookie = uint64(i)
				m, err := p.Export(s)
				require.NoError(t, err)
				require.NoError(t, dlpack.Release(m))
			}
			require.Equal(t, []uint64{uint64(i), uint64(i)}, reap(p))
		}
	}
	cycle(1)
	mapped := p.Stats().MappedBytes
	cycle(10_000)
	assert.Equal(t, mapped, p.Stats().MappedBytes)
	assert.Zero(t, p.Stats().Live)
}

func TestPoolGrowsAndKeepsEveryBlockApart(t *testing.T) {
	a, p := newArena(t), newPool(t)
	const n = 20_000
	seen := map[uintptr]bool{}
	var held []*dlpack.ManagedTensorVersioned
	s := spec(a, 1, 1, 1, 1, 1, 1, 1, 8)
	for i := range n {
		s.Cookie, s.Shape[7] = uint64(i), int64(i%8)
		m, err := p.Export(s)
		require.NoError(t, err)
		require.False(t, seen[addr(m)])
		seen[addr(m)] = true
		held = append(held, m)
	}
	assert.Equal(t, n, p.Stats().Live)
	for i, m := range held {
		require.Equal(t, int64(i%8), int64sAt(m.Tensor.Shape, 8)[7])
		require.NoError(t, dlpack.Release(m))
	}
	got := reap(p)
	slices.Sort(got)
	require.Len(t, got, n)
	for i, c := range got {
		require.Equal(t, uint64(i), c)
	}
	st := p.Stats()
	assert.Zero(t, st.Live)
	assert.GreaterOrEqual(t, st.Free, n)
}

func TestPoolFindsEveryFreeBlockAgain(t *testing.T) {
	a, p := newArena(t), newPool(t)
	s := spec(a, 2)
	n := p.Stats().Free // all blocks of the first size
	mapped := p.Stats().MappedBytes
	held := make([]*dlpack.ManagedTensorVersioned, n)
	for range 3 {
		for i := range held {
			var err error
			held[i], err = p.Export(s)
			require.NoError(t, err)
		}
		for _, m := range held {
			require.NoError(t, dlpack.Release(m))
			require.Equal(t, 1, p.Reap(nil))
		}
	}
	assert.Equal(t, dlpack.PoolStats{Free: n, MappedBytes: mapped}, p.Stats())
}

func TestReapFunctionMayUseThePool(t *testing.T) {
	a, p := newArena(t), newPool(t)
	m, err := p.Export(spec(a, 2))
	require.NoError(t, err)
	require.NoError(t, dlpack.Release(m))
	var again *dlpack.ManagedTensorVersioned
	assert.Equal(t, 1, p.Reap(func(uint64) {
		again, err = p.Export(spec(a, 3))
		assert.Zero(t, p.Reap(nil))
	}))
	require.NoError(t, err)
	assert.Equal(t, 1, p.Stats().Live)
	require.NoError(t, dlpack.Release(again))
}

func TestPoolReportsItsAllocator(t *testing.T) {
	full := errors.New("full")
	_, err := dlpack.NewPool(func(int) ([]byte, error) { return nil, full })
	assert.ErrorIs(t, err, full)
	_, err = dlpack.NewPool(func(int) ([]byte, error) { return make([]byte, 100), nil })
	assert.ErrorIs(t, err, dlpack.ErrAllocator)
	_, err = dlpack.NewPool(func(n int) ([]byte, error) {
		b, err := sys.MapAnonymous(2 * n)
		return b[8:], err
	})
	assert.ErrorIs(t, err, dlpack.ErrAllocator)

	calls := 0
	p, err := dlpack.NewPool(func(n int) ([]byte, error) {
		if calls++; calls > 1 {
			return nil, full
		}
		return sys.MapAnonymous(n)
	})
	require.NoError(t, err)
	a := newArena(t)
	for {
		before := p.Stats()
		if _, err = p.Export(spec(a, 1)); err != nil {
			assert.Equal(t, before, p.Stats())
			break
		}
		a.used = 0
	}
	assert.ErrorIs(t, err, full)
	assert.Zero(t, p.Stats().Free)
}

// Goroutines export and release, one reaps: each cookie comes back once, the
// word ends where it began, and what a releasing goroutine wrote is visible to
// the reaping one (which the race detector checks).
func TestConcurrentReleasesAreReapedOnce(t *testing.T) {
	a, p := newArena(t), newPool(t)
	const workers, each = 8, 5_000
	word := put(a, uint64(0))
	wrote := make([]int, workers*each)
	seen := make([]int, workers*each)
	data := unsafe.Pointer(put(a, [64]byte{}))
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			for i := range each {
				id := w*each + i
				atomic.AddUint64(word, 1<<20+1)
				m, err := p.Export(&dlpack.Spec{Data: data, Device: dlpack.CPUDevice, DType: dlpack.Uint8,
					Shape: []int64{64}, Word: word, Delta: drop, Cookie: uint64(id)})
				if !assert.NoError(t, err) {
					return
				}
				wrote[id] = id + 1
				assert.NoError(t, dlpack.Release(m))
			}
		})
	}
	for total := 0; total < workers*each; {
		n := p.Reap(func(c uint64) {
			seen[c]++
			if wrote[c] != int(c)+1 {
				t.Errorf("cookie %d: what was written before the release is not visible", c)
			}
		})
		if n == 0 {
			runtime.Gosched()
		}
		total += n
	}
	group.Wait()
	for id, n := range seen {
		require.Equal(t, 1, n, "cookie %d", id)
	}
	assert.Equal(t, uint64(workers*each)<<21, atomic.LoadUint64(word), "two changes each, count 0")
	assert.Zero(t, p.Stats().Live)
	assert.Zero(t, p.Reap(nil))
}

func TestExportDoesNotAllocateOnTheGoHeap(t *testing.T) {
	a, p := newArena(t), newPool(t)
	s := spec(a, 3, 4)
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		m, err := p.Export(s)
		if err != nil || dlpack.Release(m) != nil || p.Reap(nil) != 1 {
			t.Error("cycle failed")
		}
	}))
}
