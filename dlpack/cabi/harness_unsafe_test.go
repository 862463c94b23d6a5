package cabi_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/dlpack"
	_ "github.com/baton-ipc/baton/dlpack/cabi"
	"github.com/baton-ipc/baton/internal/sys"
)

// harness is testdata/harness.c, compiled and loaded into this process.
type harness struct {
	layout          func(buf *byte, capacity uintptr)
	sum             func(m *dlpack.ManagedTensorVersioned, flags uint64) int64
	deleteOnThreads func(tensors *uintptr, n uintptr, threads, legacy int32) int32
	deleteAll       func(tensors *uintptr, n uintptr) int64
	callNull        func(m *dlpack.ManagedTensorVersioned)
	registers       func(m *dlpack.ManagedTensorVersioned) int32
	made            func() int64
	deleted         func() int64
	newTensor       func(rows, cols int64, flags uint64) uintptr
	newLegacy       func(rows, cols int64) uintptr
	static          func() uintptr
	newFuture       func(withDeleter int32) uintptr
	exchange        func() uintptr
}

// skipped says what is missing; BATON_REQUIRE with "cc" in it makes that a
// failure.
type skipped struct{ reason string }

func (s skipped) Error() string { return s.reason }

var load = sync.OnceValues(func() (*harness, error) {
	cc, err := compiler()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "baton-cabi-")
	if err != nil {
		return nil, err
	}
	// A loaded library needs its file no more.
	defer func() { _ = os.RemoveAll(dir) }()
	lib := filepath.Join(dir, "harness.so")
	cmd := exec.Command(cc, "-std=c11", "-O2", "-shared", "-fPIC", "-pthread",
		"-o", lib, filepath.Join("testdata", "harness.c"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
	}
	handle, err := purego.Dlopen(lib, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, err
	}
	h := new(harness)
	for name, fn := range map[string]any{
		"layout": &h.layout, "sum_float32": &h.sum, "delete_on_threads": &h.deleteOnThreads,
		"delete_all": &h.deleteAll, "call_null": &h.callNull, "registers": &h.registers, "made": &h.made,
		"deleted": &h.deleted, "new": &h.newTensor, "new_legacy": &h.newLegacy, "static": &h.static,
		"new_future": &h.newFuture, "exchange": &h.exchange,
	} {
		purego.RegisterLibFunc(fn, handle, "baton_test_"+name)
	}
	return h, nil
})

func compiler() (string, error) {
	names := []string{os.Getenv("CC"), "cc", "gcc", "clang"}
	for _, name := range names {
		if path, err := exec.LookPath(name); name != "" && err == nil {
			return path, nil
		}
	}
	return "", skipped{"cc: no C compiler found ($CC, cc, gcc, clang); install gcc or clang"}
}

func needHarness(t testing.TB) *harness {
	t.Helper()
	h, err := load()
	if s, ok := err.(skipped); ok && !slices.Contains(strings.Split(os.Getenv("BATON_REQUIRE"), ","), "cc") {
		t.Skip(s.reason)
	}
	require.NoError(t, err)
	return h
}

func newPool(t testing.TB) *dlpack.Pool {
	t.Helper()
	p, err := dlpack.NewPool(sys.MapAnonymous)
	require.NoError(t, err)
	return p
}

// floats gives memory outside the Go heap holding 0, 1, 2, …
func floats(t testing.TB, n int) (data unsafe.Pointer, sum int64) {
	t.Helper()
	mem, err := sys.MapAnonymous(4 * n)
	require.NoError(t, err)
	t.Cleanup(func() { _ = sys.Unmap(mem) })
	f := unsafe.Slice((*float32)(unsafe.Pointer(&mem[0])), n)
	for i := range f {
		f[i] = float32(i)
		sum += int64(i)
	}
	return unsafe.Pointer(&mem[0]), sum
}

// words gives n refcount words outside the Go heap.
func words(t testing.TB, n int) []uint64 {
	t.Helper()
	mem, err := sys.MapAnonymous(8 * n)
	require.NoError(t, err)
	t.Cleanup(func() { _ = sys.Unmap(mem) })
	return unsafe.Slice((*uint64)(unsafe.Pointer(&mem[0])), n)
}

func addr[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }

// at turns an address of C memory into a pointer. Not inlined, because the
// compiler of Go 1.26 crashes on copies of constant length from it.
//
//go:noinline
func at[T any](a uintptr) *T { return (*T)(unsafe.Add(unsafe.Pointer(nil), a)) }
