package dlpack_test

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/sys"
)

func newPool(t testing.TB) *dlpack.Pool {
	t.Helper()
	p, err := dlpack.NewPool(sys.MapAnonymous)
	require.NoError(t, err)
	return p
}

// arena hands out memory outside the Go heap, as C code would.
type arena struct {
	mem  []byte
	used int
}

func newArena(t testing.TB) *arena {
	t.Helper()
	mem, err := sys.MapAnonymous(1 << 20)
	require.NoError(t, err)
	t.Cleanup(func() { _ = sys.Unmap(mem) })
	return &arena{mem: mem}
}

func put[T any](a *arena, v T) *T {
	a.used = (a.used + 63) &^ 63
	p := (*T)(unsafe.Pointer(&a.mem[a.used]))
	a.used += int(unsafe.Sizeof(v))
	*p = v
	return p
}

func addr[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }

// at turns an address of an arena or of a pool into a pointer. Not inlined: see
// addrPointer.
//
//go:noinline
func at[T any](a uintptr) *T { return (*T)(unsafe.Add(unsafe.Pointer(nil), a)) }

// int64sAt reads the shape or the strides of a tensor.
func int64sAt(a uintptr, n int) []int64 {
	if n == 0 {
		return nil
	}
	return append([]int64(nil), unsafe.Slice(at[int64](a), n)...)
}

// foreignDeleter is an address that no function has: only the test's CallDeleter
// ever sees it.
const foreignDeleter uintptr = 0xdead0000

// foreign builds a tensor as a good C producer would: float32, 3×4, compact.
func foreign(a *arena) *dlpack.ManagedTensorVersioned {
	data := put(a, [64]float32{1, 2, 3})
	shape := put(a, [2]int64{3, 4})
	strides := put(a, [2]int64{4, 1})
	return put(a, dlpack.ManagedTensorVersioned{
		Version: dlpack.CurrentVersion,
		Deleter: foreignDeleter,
		Tensor: dlpack.Tensor{Data: addr(data), Device: dlpack.CPUDevice, NDim: 2, DType: dlpack.Float32,
			Shape: addr(shape), Strides: addr(strides)},
	})
}

type deleterCall struct{ fn, self uintptr }

// recordDeleters stands in for the package cabi and gives the calls it got.
func recordDeleters(t *testing.T) *[]deleterCall {
	t.Helper()
	var calls []deleterCall
	before := dlpack.CallDeleter
	dlpack.CallDeleter = func(fn uintptr, self unsafe.Pointer) {
		calls = append(calls, deleterCall{fn, uintptr(self)})
	}
	t.Cleanup(func() { dlpack.CallDeleter = before })
	return &calls
}
