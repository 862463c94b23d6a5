package cuda

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/cudaipc"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

func init() {
	roles["send both"] = on(sendBoth)
	roles["look"] = look
	roles["allocate"] = on(allocate)
	roles["bequeath"] = on(bequeath)
	roles["inherit"] = on(inherit)
}

// sendBoth sends a tensor on the GPU, then one in the machine's memory.
func sendBoth(w *worker) error {
	topic, err := w.c.Topic(w.ctx, "both", soon)
	if err != nil {
		return err
	}
	if err := w.pause(w.gpu.UUID.String()); err != nil {
		return err
	}
	t, err := w.alloc(4096)
	if err != nil {
		return err
	}
	if err := w.fill(t, 1); err != nil {
		return err
	}
	if err := topic.Send(w.ctx, t, client.Stream(w.stream)); err != nil {
		return err
	}
	x, err := w.c.Alloc(w.ctx, dlpack.Uint8, []int64{16})
	if err != nil {
		return err
	}
	if err := topic.Send(w.ctx, x); err != nil {
		return err
	}
	x.Release()
	t.Release()
	return w.finish("sent")
}

// look receives what sendBoth sends, with or without a driver, and tells what
// came of the first.
func look(child *testkit.Child) error {
	var withDriver bool
	if err := child.Config(&withDriver); err != nil {
		return err
	}
	var opts []client.Option
	var driver *cudaipc.Driver
	if withDriver {
		var err error
		if driver, err = cudaipc.Open(); err != nil {
			return err
		}
		opts = append(opts, client.WithDevices(driver))
	}
	ctx := child.Context()
	c, err := child.Connect(opts...)
	if err != nil {
		return err
	}
	if _, err := c.Alloc(ctx, dlpack.Uint8, []int64{1}, client.Device("cuda:99")); !errors.Is(err, protocol.ErrUnsupported) && !errors.Is(err, protocol.ErrNotFound) {
		return fmt.Errorf("a GPU that is not there: %w", err)
	}
	topic, err := c.Topic(ctx, "both", soon)
	if err != nil {
		return err
	}
	r, err := topic.Reader(ctx)
	if err != nil {
		return err
	}
	if err := child.Say("ready"); err != nil {
		return err
	}
	m, err := r.Receive(ctx)
	said := fmt.Sprint(err)
	if err == nil {
		said = m.Tensor().Device().String()
		m.Release()
	}
	if err := child.Say(said); err != nil {
		return err
	}
	if m, err = r.Receive(ctx); err != nil {
		return err
	}
	if b, err := m.Tensor().Bytes(); err != nil || len(b) != 16 {
		return fmt.Errorf("the machine's memory: %d bytes: %w", len(b), err)
	}
	m.Release()
	if err := child.Say("received"); err != nil {
		return err
	}
	return c.Close()
}

// meet lets look receive from sendBoth and returns what it said of the first.
func meet(t *testing.T, m machine, withDriver bool, sender, reader []testkit.StartOption) string {
	t.Helper()
	out := m.play("send both", nil, sender...)
	out.Next(new(string))
	in := m.play("look", withDriver, reader...)
	in.Next(new(string))
	out.Tell("go")
	var said string
	in.Next(&said)
	in.Next(new(string))
	in.Ended()
	out.Next(new(string))
	out.Done()
	m.empty(t)
	return said
}

func TestGPUsAreTheSameUnderOtherNumbers(t *testing.T) {
	m := start(t, 2)
	said := meet(t, m, true, []testkit.StartOption{testkit.Env("CUDA_VISIBLE_DEVICES", "1")}, nil)
	assert.Equal(t, "cuda:1", said)
	said = meet(t, m, true, nil, []testkit.StartOption{testkit.Env("CUDA_VISIBLE_DEVICES", "1,0")})
	assert.Equal(t, "cuda:1", said)
}

// Also where one process sees a GPU by its UUID, and another by its number.
func TestGPUThatIsVisibleByItsUUID(t *testing.T) {
	m := start(t, 1)
	p := m.play("send both", nil)
	var uuid string
	p.Next(&uuid)
	p.Tell("go")
	p.Next(new(string))
	p.Done()
	named := []testkit.StartOption{testkit.Env("CUDA_VISIBLE_DEVICES", uuid)}
	assert.Equal(t, "cuda:0", meet(t, m, true, named, nil))
	assert.Equal(t, "cuda:0", meet(t, m, true, nil, named))
}

// A receiver that cannot have a tensor gets one error, and goes on with the next.
func TestTensorOfAGPUThatIsNotThereIsRefused(t *testing.T) {
	m := start(t, 2)
	said := meet(t, m, true, nil, []testkit.StartOption{testkit.Env("CUDA_VISIBLE_DEVICES", "1")})
	assert.Contains(t, said, "does not see the GPU GPU-")
	assert.Contains(t, said, "CUDA_VISIBLE_DEVICES")
	said = meet(t, m, false, nil, nil)
	assert.Contains(t, said, "client.WithDevices")
}

// The command has no driver: it goes on with what it can show.
func TestTailPassesOverWhatLiesOnAGPU(t *testing.T) {
	m := start(t, 1)
	out := m.play("send both", nil)
	out.Next(new(string))
	out.Tell("go")
	out.Next(new(string))
	cmd := exec.Command(testkit.Binary(t), "tail", "both", "--from", "all", "--count", "1", "--json")
	cmd.Env = append(os.Environ(), "BATON_ADDRESS=unix:"+m.Socket, "BATON_NAMESPACE="+m.Namespace)
	var said, complained strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &complained
	require.NoError(t, cmd.Run(), "%s", &complained)
	assert.Equal(t, 1, strings.Count(said.String(), "\n"), "%s", &said)
	assert.Contains(t, complained.String(), "passed over")
	out.Done()
	m.empty(t)
}

// allocate tells what comes of allocating on the GPU.
func allocate(w *worker) error {
	var bytes []int64
	if err := w.Config(&bytes); err != nil {
		return err
	}
	var held []*client.Tensor
	for _, n := range bytes {
		t, err := w.alloc(n)
		if err == nil {
			held = append(held, t)
		}
		if err := w.Say(fmt.Sprint(err)); err != nil {
			return err
		}
	}
	for _, t := range held {
		t.Release()
	}
	return nil
}

func TestQuotaOfTheGPUNamesItsSetting(t *testing.T) {
	m := start(t, 1, func(c *testkit.BrokerConfig) { c.DeviceMemory = 64 << 20 })
	p := m.play("allocate", []int64{100 << 20, 40 << 20, 40 << 20, 1 << 20})
	var said [4]string
	for i := range said {
		p.Next(&said[i])
	}
	assert.Contains(t, said[0], "--device-memory")
	assert.Equal(t, "<nil>", said[1])
	assert.Contains(t, said[2], "--device-memory")
	assert.Equal(t, "<nil>", said[3])
	p.Ended()
	m.empty(t)
}

// bequeath sets a name on the GPU, and ends.
func bequeath(w *worker) error {
	t, err := w.alloc(40 << 20)
	if err != nil {
		return err
	}
	defer t.Release()
	if _, err := w.c.Set(w.ctx, "left", t); err != nil {
		return err
	}
	return w.Say("set")
}

// inherit deletes the name and has its memory at once.
func inherit(w *worker) error {
	if _, err := w.alloc(40 << 20); !errors.Is(err, protocol.ErrQuotaExceeded) {
		return fmt.Errorf("beside what the name holds there is room: %w", err)
	}
	if err := w.c.Delete(w.ctx, "left"); err != nil {
		return err
	}
	t, err := w.alloc(40 << 20)
	if err != nil {
		return err
	}
	t.Release()
	return w.Say("had it")
}

func TestMemoryOfTheGPUThatTheDeadLeftIsHadAtOnce(t *testing.T) {
	m := start(t, 1, func(c *testkit.BrokerConfig) { c.DeviceMemory = 64 << 20 })
	p := m.play("bequeath", nil)
	p.Next(new(string))
	p.Ended()
	testkit.Gone(t, m.Broker, p.PID())
	q := m.play("inherit", nil)
	q.Next(new(string))
	q.Ended()
	m.empty(t)
}

func TestFullGPUIsAnErrorOfTheDrivers(t *testing.T) {
	standinOnly(t)
	m := start(t, 1)
	m.gpus.Memory = 64 << 20
	p := m.play("allocate", []int64{100 << 20, 40 << 20, 40 << 20})
	var said [3]string
	for i := range said {
		p.Next(&said[i])
	}
	assert.Contains(t, said[0], "CUDA_ERROR_OUT_OF_MEMORY")
	assert.Equal(t, "<nil>", said[1])
	assert.Contains(t, said[2], "nvidia-smi")
	p.Ended()
	m.empty(t)
}

// What the driver refuses at any step leaves nothing behind.
func TestDriverFailsAtAnyStep(t *testing.T) {
	standinOnly(t)
	for _, call := range []string{"cuMemGetAllocationGranularity", "cuMemCreate", "cuMemExportToShareableHandle", "cuMemAddressReserve",
		"cuMemMap", "cuMemSetAccess", "cuDevicePrimaryCtxRetain"} {
		t.Run(call, func(t *testing.T) {
			m := start(t, 1)
			p := m.play("allocate", []int64{1 << 20}, testkit.Env("BATON_STANDIN_FAULTS", call+"=998"))
			if call == "cuDevicePrimaryCtxRetain" {
				assert.Contains(t, p.Fails(), "CUDA error 998")
			} else {
				var said string
				p.Next(&said)
				assert.Contains(t, said, call)
				assert.Contains(t, said, "CUDA error 998")
				p.Ended()
			}
			m.empty(t)
		})
	}
}

func TestNothingButGPUsNeedsADriver(t *testing.T) {
	standinOnly(t)
	command, err := elf.Open(testkit.Binary(t))
	require.NoError(t, err)
	libraries, err := command.ImportedLibraries()
	require.NoError(t, err)
	assert.Empty(t, libraries, "the broker and the command are static")
	require.NoError(t, command.Close())
	b := testkit.StartBroker(t)
	p := b.Start("send both", nil)
	assert.Contains(t, p.Fails(), "no CUDA driver on this machine")
	c := b.Connect()
	_, err = c.Alloc(testkit.Context(t), dlpack.Uint8, []int64{1}, client.Device("cuda:0"))
	require.ErrorIs(t, err, protocol.ErrUnsupported)
	x, err := c.Alloc(testkit.Context(t), dlpack.Uint8, []int64{1}, client.Device("cpu"))
	require.NoError(t, err)
	require.NoError(t, x.UseOn(client.LegacyStream))
	require.NoError(t, x.Written(testkit.Context(t)))
	x.Release()
}
