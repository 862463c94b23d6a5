package devices_test

import (
	"encoding/binary"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client/internal/devices"
	"github.com/baton-ipc/baton/client/internal/gpu"
	"github.com/baton-ipc/baton/client/internal/memory"
	"github.com/baton-ipc/baton/client/internal/parttest"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

type accelerator = gpu.Accelerator

// standIn is a GPU whose streams do what they are told when a test lets them.
type standIn struct {
	accelerator
	mu     sync.Mutex
	page   []byte
	queued []func()
}

const (
	pageAt  = 1 << 44
	rawAt   = 1 << 41 // an allocation that a framework has made
	rawSize = 1 << 20
)

// oneGPU is a driver with that.
type oneGPU struct{ *standIn }

func (g oneGPU) Accelerator(string) (gpu.Accelerator, error)   { return g, nil }
func (g oneGPU) AcceleratorOf(string) (gpu.Accelerator, error) { return g, nil }
func (oneGPU) UUID() string                                    { return "GPU-0" }
func (oneGPU) Device() dlpack.Device                           { return dlpack.Device{Type: dlpack.CUDA} }
func (oneGPU) Granularity() (uint64, error)                    { return protocol.PageBytes, nil }
func (oneGPU) Values() bool                                    { return true }
func (oneGPU) Synchronize() error                              { return nil }
func (oneGPU) Create(uint64) (gpu.DeviceMemory, error)         { return made{}, nil }
func (oneGPU) Unregister([]byte) error                         { return nil }
func (oneGPU) Allocation(uint64) (gpu.Allocation, error) {
	return gpu.Allocation{Base: rawAt, Bytes: rawSize, Handle: gpu.IPCHandle{1}}, nil
}

func (g oneGPU) Register(page []byte, _ bool) (uint64, error) {
	g.page = page
	return pageAt, nil
}

func (g oneGPU) WriteValue(_, at, value uint64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.queued = append(g.queued, func() { binary.NativeEndian.PutUint64(g.page[at-pageAt:], value) })
	return nil
}

// goOn lets the streams do what they were told.
func (g oneGPU) goOn() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, f := range g.queued {
		f()
	}
	g.queued = nil
}

type made struct{}

func (made) Export() (*sys.FD, error) { return sys.OpenAlive() }
func (made) Map(bool) (uint64, error) { return 1 << 40, nil }
func (made) Close() error             { return nil }

// noLanes is a session that has no topic open.
type noLanes struct{}

func (noLanes) WithdrawDone()             {}
func (noLanes) MarkPeers(map[uint64]bool) {}
func (noLanes) AttachAhead(*memory.Ahead) {}

func newSet(t *testing.T) (oneGPU, *parttest.Session, *memory.Memory, *devices.Set) {
	t.Helper()
	s := parttest.New(t).Session(1)
	m := memory.New(s, s.Files, s.Life, s.Waits, s, protocol.Limits{}, false)
	g := oneGPU{&standIn{}}
	d := devices.New(s, s.Files, s.Life, m, g)
	m.With(noLanes{}, d)
	t.Cleanup(d.Close)
	return g, s, m, d
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	require.Eventually(t, f, 90*time.Second, time.Millisecond, what)
}

func TestHoldingThatAStreamUsesIsCountedUntilItHasPassed(t *testing.T) {
	g, s, m, d := newSet(t)
	pool, err := d.PoolOf("cuda:0")
	require.NoError(t, err)
	h := memory.NewHolding(m)
	require.NoError(t, m.Fill(t.Context(), pool, h, 100, 0))
	index, on := h.Storages[0].Ref.Index, h.Storages[0].At.Segment.Device
	require.NotNil(t, on)
	require.NoError(t, d.UseOn(t.Context(), devices.Part{Held: h, On: on}, gpu.LegacyStream))
	h.Release()
	require.EqualValues(t, 1, s.Files.Refcounts.Count(index))
	g.goOn()
	eventually(t, "its count stays", func() bool { return s.Files.Refcounts.Count(index) == 0 })
}

func TestStreamOfASendWaitsForNothingThatIsItsOwn(t *testing.T) {
	g, _, m, d := newSet(t)
	pool, err := d.PoolOf("cuda:0")
	require.NoError(t, err)
	h := memory.NewHolding(m)
	require.NoError(t, m.Fill(t.Context(), pool, h, 100, 0))
	part := devices.Part{Held: h, On: h.Storages[0].At.Segment.Device}
	require.NoError(t, d.WrittenBy(part, gpu.LegacyStream))
	point, err := d.OrderSend(t.Context(), []devices.Part{part}, gpu.LegacyStream)
	require.NoError(t, err)
	number, value := point.At()
	require.EqualValues(t, 1, number)
	require.EqualValues(t, 2, value, "after what has written it")
	_, err = d.OrderSend(t.Context(), []devices.Part{part}, 2)
	require.ErrorIs(t, err, protocol.ErrInvalid)
	g.goOn()
	h.Release()
}

func TestLentMemoryIsGivenBackWhenNothingHoldsIt(t *testing.T) {
	_, s, m, d := newSet(t)
	h := memory.NewHolding(m)
	over := make(chan struct{})
	offset, err := d.Lend(t.Context(), "cuda:0", rawAt+300, 64, func() { close(over) }, h)
	require.NoError(t, err)
	require.EqualValues(t, 300%protocol.Alignment, offset)
	_, err = d.Lend(t.Context(), "cuda:0", rawAt+rawSize-1, 64, nil, memory.NewHolding(m))
	require.ErrorIs(t, err, protocol.ErrInvalid)
	s.Asked()
	h.Release()
	<-over
	eventually(t, "the broker has it back", func() bool { return len(s.Asked()) > 0 })
}
