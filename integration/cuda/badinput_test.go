package cuda

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/cudaipc"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

func init() {
	roles["offer what is no memory"] = func(child *testkit.Child) error {
		driver, err := cudaipc.Open()
		if err != nil {
			return err
		}
		c, err := child.Connect(client.WithDevices(liar{driver}))
		if err != nil {
			return err
		}
		w := &worker{Child: child, ctx: child.Context(), c: c, gpu: driver.Devices()[0]}
		if w.stream, err = w.gpu.NewStream(); err != nil {
			return err
		}
		if err := drive(w); err != nil {
			return err
		}
		return c.Close()
	}
}

// liar gives the broker a file where the memory of a GPU is expected.
type liar struct{ client.Devices }

func (l liar) Accelerator(name string) (client.Accelerator, error) {
	a, err := l.Devices.Accelerator(name)
	return lyingGPU{a}, err
}

type lyingGPU struct{ client.Accelerator }

func (g lyingGPU) Create(bytes uint64) (client.DeviceMemory, error) {
	m, err := g.Accelerator.Create(bytes)
	return lie{m}, err
}

type lie struct{ client.DeviceMemory }

func (lie) Export() (*sys.FD, error) { return sys.CreateMemfd("no memory of a GPU", 1<<20) }

// eachLanguage runs a test for each, on a machine of its own.
func eachLanguage(t *testing.T, gpus int, f func(t *testing.T, m machine, l language)) {
	for _, l := range languages {
		t.Run(l.name, func(t *testing.T) {
			l.with(t)
			f(t, start(t, gpus), l)
		})
	}
}

// The receiver is told, and goes on with the next.
func TestDescriptorThatIsNoMemoryOfAGPU(t *testing.T) {
	standinOnly(t)
	eachLanguage(t, 1, func(t *testing.T, m machine, l language) {
		s := m.speak(t, l)
		from := &speaker{m.play("offer what is no memory", nil), t}
		from.do(command{"do": "put", "queue": "q", "seed": 1})
		a := s.try(command{"do": "take", "queue": "q"})
		assert.Equal(t, "InvalidHandle", a.Code, "%s", a.Message+a.Broken)
		assert.Contains(t, a.Message, "its maker is at fault")
		from.Done()
		honest := m.speak(t, languages[0])
		honest.do(command{"do": "put", "queue": "q", "seed": 5})
		assert.Equal(t, numbers(5, 1), s.do(command{"do": "take", "queue": "q"}))
		honest.Done()
		s.Done()
		m.empty(t)
	})
}

// A handle or a message of a GPU that a process does not see names the GPU; one of
// another machine is of no use.
func TestHandleOfAnotherGPU(t *testing.T) {
	eachLanguage(t, 2, func(t *testing.T, m machine, l language) {
		from, to := m.speak(t, languages[0]), m.speak(t, l, testkit.Env("CUDA_VISIBLE_DEVICES", "1"))
		h := from.try(command{"do": "handle", "seed": 9})
		a := to.try(command{"do": "open", "handle": h.Handle})
		assert.Equal(t, "NotFound", a.Code, "%s", a.Message+a.Broken)
		assert.Contains(t, a.Message, "does not see the GPU GPU-")
		assert.Contains(t, a.Message, "CUDA_VISIBLE_DEVICES")
		var far protocol.Handle
		require.NoError(t, json.Unmarshal([]byte(h.Handle), &far))
		far.Host = strings.Repeat("7", len(far.Host))
		b, err := json.Marshal(far)
		require.NoError(t, err)
		a = to.try(command{"do": "open", "handle": string(b)})
		assert.Equal(t, "InvalidHandle", a.Code, "%s", a.Message+a.Broken)
		from.do(command{"do": "set", "name": "weights", "seed": 7})
		assert.Equal(t, "NotFound", to.try(command{"do": "get", "name": "weights"}).Code)
		from.do(command{"do": "delete", "name": "weights"})
		from.Done()
		to.Done()
		m.empty(t)
	})
}

func TestFullGPUIsAnErrorInAllLanguages(t *testing.T) {
	standinOnly(t)
	eachLanguage(t, 1, func(t *testing.T, m machine, l language) {
		m.gpus.Memory = 64 << 20
		s := m.speak(t, l)
		a := s.try(command{"do": "alloc", "bytes": 100 << 20})
		assert.Equal(t, "OutOfMemory", a.Code, "%s", a.Message+a.Broken)
		assert.Contains(t, a.Message, "nvidia-smi")
		s.do(command{"do": "put", "queue": "q", "seed": 1})
		assert.Equal(t, numbers(1, 1), s.do(command{"do": "take", "queue": "q"}))
		s.Done()
		m.empty(t)
	})
}

// A container that was given the driver and no GPU.
func TestContainerWithoutTheDevice(t *testing.T) {
	standinOnly(t)
	none := testkit.Env("BATON_STANDIN_FAULTS", "cuInit=100")
	for _, l := range languages[1:] { // in Go cudaipc.Open says it
		t.Run(l.name, func(t *testing.T) {
			m := start(t, 1)
			s := m.speak(t, l, none)
			a := s.try(command{"do": "alloc"})
			assert.Equal(t, "NotFound", a.Code, "%s", a.Message+a.Broken)
			assert.Contains(t, a.Message, "the container was given a GPU")
			s.Done()
		})
	}
}
