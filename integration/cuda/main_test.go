// Package cuda tests the hand-over of GPU memory between real processes, on the
// stand-in for the driver, or with BATON_TEST_GPU on a real one.
package cuda

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/cudaipc"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/integration/cuda/standin"
	"github.com/baton-ipc/baton/internal/testkit"
)

var roles = map[string]testkit.Role{}

func TestMain(m *testing.M) { testkit.Main(m, roles) }

// worker is a child with a driver, one GPU, a stream on it, and a client.
type worker struct {
	*testkit.Child
	ctx    context.Context
	driver *cudaipc.Driver
	gpu    *cudaipc.Device
	stream cudaipc.Stream
	c      *client.Client
}

func newWorker(child *testkit.Child) (w *worker, err error) {
	w = &worker{Child: child, ctx: child.Context()}
	if w.driver, err = cudaipc.Open(); err != nil {
		return nil, err
	}
	w.gpu = w.driver.Devices()[0]
	if w.stream, err = w.gpu.NewStream(); err != nil {
		return nil, err
	}
	w.c, err = child.Connect(client.WithDevices(w.driver))
	return w, err
}

// on makes a role of what a worker does.
func on(play func(*worker) error) testkit.Role {
	return func(child *testkit.Child) error {
		w, err := newWorker(child)
		if err != nil {
			return err
		}
		if err := play(w); err != nil {
			return err
		}
		return w.c.Close()
	}
}

// pause tells the test what this worker has come to, and waits for its word.
func (w *worker) pause(at any) error {
	if err := w.Say(at); err != nil {
		return err
	}
	return w.Hear(new(string))
}

// finish tells the test the last thing, and waits to be ended.
func (w *worker) finish(at any) error {
	if err := w.Say(at); err != nil {
		return err
	}
	<-w.ctx.Done()
	return nil
}

// alloc makes a tensor on the worker's GPU.
func (w *worker) alloc(bytes int64) (*client.Tensor, error) {
	return w.c.Alloc(w.ctx, dlpack.Uint8, []int64{bytes}, client.Device("cuda:0"))
}

// fill makes the worker's stream fill a tensor, after what was enqueued before.
func (w *worker) fill(t *client.Tensor, value byte) error {
	at, err := t.Pointer()
	if err != nil {
		return err
	}
	if err := t.UseOn(client.Stream(w.stream)); err != nil {
		return err
	}
	return w.gpu.Fill(at, value, uint64(t.NumBytes()), w.stream)
}

// sendFilled sends a new tensor, all of whose bytes are one value, before its stream has
// come to it.
func (w *worker) sendFilled(bytes int64, value byte, send func(*client.Tensor) error) error {
	t, err := w.alloc(bytes)
	if err != nil {
		return err
	}
	if err := w.fill(t, value); err != nil {
		return err
	}
	if err := send(t); err != nil {
		return err
	}
	t.Release()
	return nil
}

// expect reads a tensor on the worker's stream and checks every byte.
func (w *worker) expect(t *client.Tensor, value byte) error {
	at, err := t.Pointer()
	if err != nil {
		return err
	}
	if err := t.UseOn(client.Stream(w.stream)); err != nil {
		return err
	}
	got := make([]byte, t.NumBytes())
	if err := w.gpu.CopyOut(got, at, w.stream); err != nil {
		return err
	}
	for i, b := range got {
		if b != value {
			return fmt.Errorf("byte %d of %s is %d, not %d", i, t, b, value)
		}
	}
	return nil
}

// onGPU makes the tests use the real driver.
var onGPU = os.Getenv("BATON_TEST_GPU") != ""

// machine is a broker beside GPUs: the stand-in's, or the first of this machine.
type machine struct {
	*testkit.Broker
	gpus   *standin.Machine // nil: the real driver's
	before uint64           // bytes in use of the real GPU
}

func start(t *testing.T, gpus int, opts ...testkit.BrokerOption) machine {
	t.Helper()
	if !onGPU {
		found := standin.New(t, gpus)
		return machine{Broker: testkit.StartBroker(t, opts...), gpus: found}
	}
	testkit.Need(t, "cuda")
	m := machine{Broker: testkit.StartBroker(t, opts...)}
	now := m.inUse(t)
	if now.GPUs < gpus {
		testkit.Skip(t, "gpus", fmt.Sprintf("this machine has %d GPUs, and the test needs %d", now.GPUs, gpus))
	}
	m.before = now.Bytes
	return m
}

// standinOnly skips what the real driver cannot be asked for.
func standinOnly(t *testing.T) {
	t.Helper()
	if onGPU {
		t.Skip("stand-in: needs its faults, its counts, or a driver that is older")
	}
}

func (m machine) play(role string, config any, opts ...testkit.StartOption) *testkit.Process {
	if m.gpus != nil {
		opts = append([]testkit.StartOption{m.gpus.On()}, opts...)
	}
	return m.Start(role, config, opts...)
}

func init() {
	roles["in use"] = func(child *testkit.Child) error {
		d, err := cudaipc.Open()
		if err != nil {
			return err
		}
		now := inUse{GPUs: len(d.Devices())}
		for _, g := range d.Devices() {
			free, total, err := g.Memory()
			if err != nil {
				return err
			}
			now.Bytes += total - free
			now.Most = max(now.Most, total)
		}
		return child.Say(now)
	}
}

// inUse is what the driver says of the GPUs of this machine: a process of its own asks,
// and its context counts too, in each answer.
type inUse struct {
	GPUs        int
	Bytes, Most uint64 // in use of all, and all that the largest has
}

func (m machine) inUse(t *testing.T) (now inUse) {
	t.Helper()
	p := m.play("in use", nil)
	p.Next(&now)
	p.Ended()
	return now
}

// used returns the bytes in use of all GPUs, as the driver counts them, more than
// when the test began.
func (m machine) used(t *testing.T) (sum uint64) {
	t.Helper()
	if m.gpus == nil {
		sum = m.inUse(t).Bytes
		return sum - min(sum, m.before)
	}
	for g := range m.gpus.GPUs {
		n, err := m.gpus.Used(g)
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}

// empty waits until no storage is held and no memory of the GPUs is in use. Call it
// when the workers have ended: on a GPU their contexts are memory in use. There
// a little comes and goes with the driver; what leaks is a granule at least.
func (m machine) empty(t *testing.T) {
	t.Helper()
	testkit.AuditEmpty(t, m.Broker)
	allowed := uint64(0)
	if onGPU {
		allowed = granule - 1
	}
	testkit.Until(t, "the GPUs are empty", func() (bool, string) {
		used := m.used(t)
		return used <= allowed, fmt.Sprintf("%d bytes of the GPUs are in use", used)
	})
}

// granule is the least that a GPU gives.
const granule = 2 << 20
