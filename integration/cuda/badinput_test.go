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
	eachLanguage(t, 1, func(t *testing.T, m machine, l language) {
		s := m.speak(t, l)
		from := &speaker{m.play("offer what is no memory", nil), t}
		from.do(command{"do": "put", "queue": "q", "seed": 1})
		a := s.try(command{"do": "take", "queue": "q"})
		assert.Equal(t, "InvalidHandle", a.Code, "%s", a.Message+a.Broken)
		assert.Contains(t, a.Message, "restart the process that made it")
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
	eachLanguage(t, 1, func(t *testing.T, m machine, l language) {
		tooMuch := uint64(100 << 20)
		if onGPU {
			tooMuch = m.inUse(t).Most + granule
		} else {
			m.gpus.Memory = 64 << 20
		}
		s := m.speak(t, l)
		a := s.try(command{"do": "alloc", "bytes": tooMuch})
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

// A receiver whose driver fails at a step of the first use is told which, and has the next.
func TestReceiversDriverFailsAtAnyStep(t *testing.T) {
	standinOnly(t)
	for _, l := range languages {
		for _, f := range []struct{ call, code, put string }{
			{"cuMemImportFromShareableHandle=1", "InvalidHandle", "put"},
			{"cuMemAddressReserve=2", "OutOfMemory", "put"},
			{"cuMemMap=205", "Internal", "put"},
			{"cuMemSetAccess=999", "Internal", "put"},
			{"cuMemImportFromShareableHandle=700", "Internal", "put"}, // its own context is lost
			{"cuIpcOpenMemHandle_v2=1", "InvalidHandle", "lend"},
			{"cuIpcOpenMemHandle_v2=700", "Internal", "lend"},
			{"cuIpcOpenMemHandle_v2=217", "Unsupported", "lend"},
			{"cuMemGetAddressRange_v2=1", "", "lend"}, // then what the lender says holds
		} {
			t.Run(l.name+" "+f.call, func(t *testing.T) {
				l.with(t)
				m := start(t, 1)
				from, to := m.speak(t, languages[0]), m.speak(t, l, testkit.Env("BATON_STANDIN_FAULTS", f.call+"@1"))
				to.do(command{"do": "take", "queue": "q", "count": 0}) // keeps the queue
				from.do(command{"do": f.put, "queue": "q", "seed": 1, "count": 2})
				a := to.try(command{"do": "take", "queue": "q"})
				assert.Equal(t, f.code, a.Code, "%s", a.Message+a.Broken)
				if call, _, _ := strings.Cut(f.call, "="); f.code != "" {
					assert.Contains(t, a.Message, call)
				}
				assert.Equal(t, numbers(2, 1), to.do(command{"do": "take", "queue": "q"}))
				to.Done()
				from.do(command{"do": "free"})
				from.Done()
				m.empty(t)
			})
		}
	}
}

// What is captured into a graph runs when the graph does: no value orders that.
func TestStreamThatIsCapturedIsRefused(t *testing.T) {
	standinOnly(t)
	for _, l := range []language{languages[0], languages[2]} { // with streams of their own
		t.Run(l.name, func(t *testing.T) {
			l.with(t)
			m := start(t, 1)
			s := m.speak(t, l, testkit.Env("BATON_STANDIN_FAULTS", "cuStreamIsCapturing=900@1"))
			a := s.try(command{"do": "put", "queue": "q", "seed": 1})
			assert.Equal(t, "Conflict", a.Code, "%s", a.Message+a.Broken)
			assert.Contains(t, a.Message, "before the capture begins")
			s.do(command{"do": "put", "queue": "q", "seed": 2})
			assert.Equal(t, numbers(2, 1), s.do(command{"do": "take", "queue": "q"}))
			s.Done()
			m.empty(t)
		})
	}
}
