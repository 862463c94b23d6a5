package cuda

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/integration/clib"
	"github.com/baton-ipc/baton/integration/cuda/standin"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

func init() {
	roles["driver"] = on(drive)
	roles["stall in a queue"] = on(func(w *worker) error {
		q, err := w.c.Queue(w.ctx, "q", client.Depth(4), soon)
		if err != nil {
			return err
		}
		return stallIn(w, func(t *client.Tensor) error { return q.Put(w.ctx, t, client.Stream(w.stream)) })
	})
	roles["stall with many tensors"] = on(func(w *worker) error {
		q, err := w.c.Queue(w.ctx, "q", client.Depth(4), soon)
		if err != nil {
			return err
		}
		return stallIn(w, func(t *client.Tensor) error {
			parts := map[string]*client.Tensor{}
			for i := range int64(20) {
				if parts[fmt.Sprint(i)], err = t.Slice(0, 100*i, 100*i+100); err != nil {
					return err
				}
			}
			return q.Put(w.ctx, client.NewBundle(parts), client.Stream(w.stream))
		})
	})
}

// order is what a driver is asked to do, with tensors on the GPU whose bytes are all
// one number. Every language has a driver that does:
//
//	put      put count tensors of seed, seed+1… into queue, by a stream
//	take     take count out of queue and read them by a stream; hold keeps them, unread
//	         does so with messages of whose tensors nothing is asked yet, and sees how many
//	         were lost before each
//	wait     take one, let a stream wait for it, and wait until it is written
//	follow   take a message, let a stream use each of its tensors, twice, and tell how often
//	         the driver was told to wait
//	held     read what is held; release lets it go
//	set get delete   a name
//	handle open      a handle
//	alloc    allocate bytes on device and let them go
//	look     look at a tensor's bytes with the processor; in C nothing is in the way
//	lend     as put, of memory that another library allocated, not copied
//	free     free what was lent, once nobody has it
type order struct {
	Do, Queue, Name, Handle, Device string
	Seed, Count                     int
	Bytes                           int64
	Hold, Unread                    bool
}

type answer struct {
	Code, Message, Broken, Handle string
	Seen                          []any
}

// drive is the driver in Go.
func drive(w *worker) error {
	d := &driver{worker: w, queues: map[string]*client.Queue{}}
	for {
		o := order{Count: 1, Bytes: 4096, Device: "cuda:0"}
		if err := w.Hear(&o); errors.Is(err, io.EOF) {
			d.release()
			return nil
		} else if err != nil {
			return err
		}
		a, err := d.carryOut(&o)
		var e *protocol.Error
		if errors.As(err, &e) {
			a = answer{Code: string(e.Code), Message: e.Error()}
		} else if err != nil {
			a = answer{Broken: err.Error()}
		}
		if err := w.Say(a); err != nil {
			return err
		}
	}
}

type driver struct {
	*worker
	queues map[string]*client.Queue
	held   []*client.Message
	lent   []lent
}

// lent is an allocation of another library's.
type lent struct {
	at    uint64
	letGo chan struct{}
}

// lend lends memory of cudaMalloc's whose bytes are all one number.
func (d *driver) lend(o *order, seed int) (*client.Tensor, error) {
	at, err := d.gpu.Malloc(uint64(o.Bytes))
	if err != nil {
		return nil, err
	}
	if err := d.gpu.Fill(at, byte(seed), uint64(o.Bytes), d.stream); err != nil {
		return nil, err
	}
	l := lent{at, make(chan struct{})}
	d.lent = append(d.lent, l)
	v := dlpack.View{Device: dlpack.Device{Type: dlpack.CUDA}, DType: dlpack.Uint8, Shape: []int64{o.Bytes}, Strides: []int64{1}, Data: uintptr(at)}
	return d.c.Lend(d.ctx, v, func() { close(l.letGo) }, client.Stream(d.stream))
}

// free frees what was lent, once nobody has it.
func (d *driver) free() error {
	for _, l := range d.lent {
		<-l.letGo
		if err := d.gpu.SynchronizeStream(d.stream); err != nil {
			return err
		}
		if err := d.gpu.Free(l.at); err != nil {
			return err
		}
	}
	d.lent = nil
	return nil
}

func (d *driver) release() {
	for _, m := range d.held {
		m.Release()
	}
	d.held = nil
}

func (d *driver) queue(name string) (*client.Queue, error) {
	if q := d.queues[name]; q != nil {
		return q, nil
	}
	q, err := d.c.Queue(d.ctx, name, client.Depth(4), soon)
	d.queues[name] = q
	return q, err
}

func (d *driver) get(name string) (*client.Message, error) {
	q, err := d.queue(name)
	if err != nil {
		return nil, err
	}
	return q.Get(d.ctx)
}

func (d *driver) filled(o *order, seed int) (*client.Tensor, error) {
	t, err := d.alloc(o.Bytes)
	if err == nil {
		err = d.fill(t, byte(seed))
	}
	return t, err
}

// read returns the number that all bytes of tensors are.
func (d *driver) read(all ...*client.Tensor) (a answer, err error) {
	for _, t := range all {
		at, err := t.Pointer()
		if err != nil {
			return a, err
		}
		if err := t.UseOn(client.Stream(d.stream)); err != nil {
			return a, err
		}
		got := make([]byte, t.NumBytes())
		if err := d.gpu.CopyOut(got, at, d.stream); err != nil {
			return a, err
		}
		if !bytes.Equal(got, bytes.Repeat(got[:1], len(got))) {
			a.Seen = append(a.Seen, "a mixture")
		} else {
			a.Seen = append(a.Seen, got[0])
		}
	}
	return a, nil
}

func (d *driver) carryOut(o *order) (a answer, err error) {
	switch o.Do {
	case "free":
		return a, d.free()
	case "put", "lend":
		make := d.filled
		if o.Do == "lend" {
			make = d.lend
		}
		q, err := d.queue(o.Queue)
		for i := 0; i < o.Count && err == nil; i++ {
			var t *client.Tensor
			if t, err = make(o, o.Seed+i); err == nil {
				err = q.Put(d.ctx, t, client.Stream(d.stream))
				if i%2 == 0 && err == nil { // released when its stream has passed, or before
					err = d.gpu.SynchronizeStream(d.stream)
				}
				t.Release()
			}
		}
		return a, err
	case "take":
		q, err := d.queue(o.Queue)
		for i := 0; i < o.Count && err == nil; i++ {
			var m *client.Message
			if m, err = q.Get(d.ctx); err != nil {
				break
			}
			if o.Unread {
				a.Seen = append(a.Seen, m.Lost)
				d.held = append(d.held, m)
				continue
			}
			var one answer
			one, err = d.read(m.Tensor())
			a.Seen = append(a.Seen, one.Seen...)
			if o.Hold {
				d.held = append(d.held, m)
			} else {
				m.Release()
			}
		}
		return a, err
	case "wait":
		m, err := d.get(o.Queue)
		if err != nil {
			return a, err
		}
		defer m.Release()
		if err := m.Tensor().UseOn(client.Stream(d.stream)); err != nil {
			return a, err
		}
		return a, m.Tensor().Written(d.ctx)
	case "follow":
		m, err := d.get(o.Queue)
		if err != nil {
			return a, err
		}
		d.held = append(d.held, m)
		b, err := m.Bundle()
		if err != nil {
			return a, err
		}
		before, err := standin.Calls("cuStreamWaitValue64_v2")
		for _, t := range slices.Concat(b.Tensors(), b.Tensors()) {
			if err == nil {
				err = t.UseOn(client.Stream(d.stream))
			}
		}
		if err != nil {
			return a, err
		}
		after, err := standin.Calls("cuStreamWaitValue64_v2")
		a.Seen = []any{len(b.Tensors()), after - before}
		return a, err
	case "held":
		for _, m := range d.held {
			one, err := d.read(m.Tensor())
			if err != nil {
				return a, err
			}
			a.Seen = append(a.Seen, one.Seen...)
		}
		return a, nil
	case "release":
		d.release()
		return a, nil
	case "set":
		t, err := d.filled(o, o.Seed)
		if err == nil {
			_, err = d.c.Set(d.ctx, o.Name, t)
			t.Release()
		}
		return a, err
	case "get":
		b, err := d.c.Get(d.ctx, o.Name)
		if err != nil {
			return a, err
		}
		defer b.Release()
		return d.read(b.Tensors()...)
	case "delete":
		return a, d.c.Delete(d.ctx, o.Name)
	case "handle":
		t, err := d.filled(o, o.Seed)
		if err != nil {
			return a, err
		}
		defer t.Release()
		h, err := t.Handle(d.ctx, client.LeaseSession())
		if err != nil {
			return a, err
		}
		b, err := json.Marshal(h)
		a.Handle = string(b)
		return a, err
	case "open":
		var h protocol.Handle
		if err := json.Unmarshal([]byte(o.Handle), &h); err != nil {
			return a, err
		}
		t, err := d.c.Open(d.ctx, h)
		if err != nil {
			return a, err
		}
		defer t.Release()
		return d.read(t)
	case "alloc":
		t, err := d.c.Alloc(d.ctx, dlpack.Uint8, []int64{o.Bytes}, client.Device(o.Device))
		if err == nil {
			t.Release()
		}
		return a, err
	default:
		return a, fmt.Errorf("unknown: %s", o.Do)
	}
}

// language starts a driver.
type language struct {
	name string
	with func(t *testing.T) []testkit.StartOption
}

var languages = []language{
	{"go", func(*testing.T) []testkit.StartOption { return nil }},
	{"rust", func(t *testing.T) []testkit.StartOption { return []testkit.StartOption{testkit.Program(rustDriver(t))} }},
	{"c", func(t *testing.T) []testkit.StartOption {
		if path, ok := testkit.Prebuilt("gpu-c"); ok {
			return []testkit.StartOption{testkit.Program(path)}
		}
		watch := clib.Sanitize
		if onGPU { // whose driver leaves memory behind, and needs the addresses that the sanitizer takes
			watch = []string{"-O2"}
		}
		return []testkit.StartOption{testkit.Program(clib.Compiled(t, "gcc", "integration/cuda/c/driver.c", append(watch, "-ldl")...))}
	}},
	{"python", func(t *testing.T) []testkit.StartOption { return []testkit.StartOption{python(t)} }},
}

var rust struct {
	sync.Once
	path string
	err  error
}

// rustDriver builds the Rust driver, once.
func rustDriver(t *testing.T) string {
	t.Helper()
	if path, ok := testkit.Prebuilt("gpu-rust"); ok {
		return path
	}
	testkit.Need(t, "cargo")
	rust.Do(func() {
		cmd := exec.Command("cargo", "build", "--quiet", "--locked", "--example", "gpu")
		cmd.Dir = filepath.Join("..", "..", "rust")
		cmd.Stderr = os.Stderr
		rust.err = cmd.Run()
		rust.path = filepath.Join(cmd.Dir, "target", "debug", "examples", "gpu")
	})
	require.NoError(t, rust.err)
	path, err := filepath.Abs(rust.path)
	require.NoError(t, err)
	return path
}

// python plays the driver by an interpreter that has the package: that of
// $BATON_PYTHON, or the one that the tests of Python use.
func python(t *testing.T) testkit.StartOption {
	t.Helper()
	interpreter := os.Getenv("BATON_PYTHON")
	if interpreter == "" {
		interpreter = filepath.Join("..", "..", "build", "venv", "bin", "python")
	}
	interpreter, err := filepath.Abs(interpreter)
	require.NoError(t, err)
	if exec.Command(interpreter, "-c", "import baton").Run() != nil {
		testkit.Skip(t, "python", "no interpreter with the package baton: run make python-test, or set BATON_PYTHON")
	}
	script, err := filepath.Abs(filepath.Join("..", "..", "python", "tests", "gpu_driver.py"))
	require.NoError(t, err)
	return func(c *exec.Cmd) { c.Path, c.Args = interpreter, []string{interpreter, script} }
}

// command is an order as it is written.
type command map[string]any

// speaker is a running driver.
type speaker struct {
	*testkit.Process
	t *testing.T
}

func (m machine) speak(t *testing.T, l language, opts ...testkit.StartOption) *speaker {
	t.Helper()
	return &speaker{m.play("driver", nil, append(l.with(t), opts...)...), t}
}

// try carries an order out that may be refused.
func (s *speaker) try(c command) (a answer) {
	s.t.Helper()
	s.Tell(c)
	s.Next(&a)
	return a
}

// do carries an order out and returns what was seen.
func (s *speaker) do(c command) []any {
	s.t.Helper()
	a := s.try(c)
	require.Empty(s.t, a.Code+a.Broken, "%v: %s", c, a.Message)
	return a.Seen
}

// numbers are what JSON makes of first, first+1…
func numbers(first, count int) (all []any) {
	for i := range count {
		all = append(all, float64(first+i))
	}
	return all
}

// pairs runs a test for every pair of languages, one of them not Go.
func pairs(t *testing.T, f func(t *testing.T, m machine, from, to *speaker)) {
	for _, from := range languages {
		for _, to := range languages {
			if from.name == "go" && to.name == "go" {
				continue // the other tests have these
			}
			t.Run(from.name+" to "+to.name, func(t *testing.T) {
				from.with(t) // what is missing is told before anything runs
				to.with(t)
				m := start(t, 1)
				f(t, m, m.speak(t, from), m.speak(t, to))
			})
		}
	}
}

func TestTensorsOnAGPUGoBetweenLanguages(t *testing.T) {
	pairs(t, func(t *testing.T, m machine, from, to *speaker) {
		from.Tell(command{"do": "put", "queue": "q", "bytes": 200_000, "seed": 1, "count": 40})
		assert.Equal(t, numbers(1, 40), to.do(command{"do": "take", "queue": "q", "count": 40}))
		var a answer
		from.Next(&a)
		require.Empty(t, a.Message+a.Broken)

		from.do(command{"do": "set", "name": "weights", "seed": 7})
		assert.Equal(t, numbers(7, 1), to.do(command{"do": "get", "name": "weights"}))
		to.do(command{"do": "delete", "name": "weights"})

		h := from.try(command{"do": "handle", "seed": 9})
		require.Empty(t, h.Message+h.Broken)
		assert.Equal(t, numbers(9, 1), to.do(command{"do": "open", "handle": h.Handle}))
		from.Done()
		to.Done()
		m.empty(t)
	})
}

func TestCreatorInAnotherLanguageIsKilled(t *testing.T) {
	pairs(t, func(t *testing.T, m machine, from, to *speaker) {
		from.do(command{"do": "put", "queue": "q", "bytes": 1 << 20, "seed": 3, "count": 3})
		assert.Equal(t, numbers(3, 3), to.do(command{"do": "take", "queue": "q", "count": 3, "hold": true}))
		from.Kill()
		testkit.Gone(t, m.Broker, from.PID())
		assert.Equal(t, numbers(3, 3), to.do(command{"do": "held"}), "the broker's descriptor keeps it")
		to.do(command{"do": "release"})
		testkit.AuditEmpty(t, m.Broker)
		to.Done()
		m.empty(t)
	})
}

// Nobody but the broker, which has no driver, keeps the memory of a creator that was
// killed before anybody had mapped it.
func TestIdleDescriptorKeepsTheMemory(t *testing.T) {
	pairs(t, func(t *testing.T, m machine, from, to *speaker) {
		to.do(command{"do": "take", "queue": "q", "count": 0}) // keeps the queue
		from.do(command{"do": "put", "queue": "q", "bytes": 1 << 20, "seed": 3, "count": 3})
		from.do(command{"do": "set", "name": "last", "seed": 9}) // waits for the GPU
		from.Kill()
		testkit.Gone(t, m.Broker, from.PID())
		to.do(command{"do": "delete", "name": "last"})
		assert.Positive(t, m.used(t), "the broker's descriptor keeps it")
		assert.Equal(t, numbers(3, 3), to.do(command{"do": "take", "queue": "q", "count": 3}))
		to.Done()
		m.empty(t)
	})
}

func TestReceiverInAnotherLanguageIsKilled(t *testing.T) {
	pairs(t, func(t *testing.T, m machine, from, to *speaker) {
		from.do(command{"do": "put", "queue": "q", "bytes": 1 << 20, "seed": 3, "count": 3})
		assert.Equal(t, numbers(3, 3), to.do(command{"do": "take", "queue": "q", "count": 3, "hold": true}))
		to.Kill()
		testkit.Gone(t, m.Broker, to.PID())
		testkit.Audit(t, m.Broker)
		from.Done()
		m.empty(t)
	})
}

// A sender that is killed before its stream has written leaves no data that are
// taken for data, and nobody waiting.
func TestStalledSenderIsKilledInFrontOfAnotherLanguage(t *testing.T) {
	for _, l := range languages[1:] {
		t.Run(l.name, func(t *testing.T) {
			l.with(t)
			m := start(t, 1)
			consumer := m.speak(t, l)
			consumer.do(command{"do": "take", "queue": "q", "count": 0}) // keeps the queue
			producer := m.play("stall in a queue", nil)
			producer.Next(new(string))
			producer.Tell("go")
			producer.Next(new(string))
			consumer.Tell(command{"do": "wait", "queue": "q"})
			producer.Kill()
			var a answer
			consumer.Next(&a)
			assert.Equal(t, "Expired", a.Code, "%s", a.Message+a.Broken)
			consumer.Done()
			m.empty(t)
		})
	}
}

// The tensors of a message are written by one stream, for which another waits once.
func TestStreamWaitsOnceForAMessage(t *testing.T) {
	standinOnly(t)
	eachLanguage(t, 1, func(t *testing.T, m machine, l language) {
		consumer := m.speak(t, l)
		consumer.do(command{"do": "take", "queue": "q", "count": 0}) // keeps the queue
		producer := m.play("stall with many tensors", nil)
		producer.Next(new(string))
		producer.Tell("go")
		producer.Next(new(string))
		assert.Equal(t, []any{20.0, 1.0}, consumer.do(command{"do": "follow", "queue": "q"}))
		producer.Kill()
		consumer.do(command{"do": "release"})
		consumer.Done()
		m.empty(t)
	})
}

func TestRefusalsAreAlikeInAllLanguages(t *testing.T) {
	for _, l := range languages[1:] {
		t.Run(l.name, func(t *testing.T) {
			m := start(t, 1, func(c *testkit.BrokerConfig) { c.DeviceMemory = 64 << 20 })
			s := m.speak(t, l)
			a := s.try(command{"do": "alloc", "bytes": 100 << 20})
			assert.Equal(t, "QuotaExceeded", a.Code)
			assert.Contains(t, a.Message, "--device-memory")
			s.do(command{"do": "alloc", "bytes": 40 << 20})
			a = s.try(command{"do": "alloc", "device": "cuda:99"})
			assert.Equal(t, "NotFound", a.Code)
			assert.Contains(t, a.Message, "CUDA_VISIBLE_DEVICES")
			assert.Equal(t, "InvalidArgument", s.try(command{"do": "alloc", "device": "tpu"}).Code)
			if l.name != "c" {
				a = s.try(command{"do": "look"})
				assert.Equal(t, "Unsupported", a.Code)
				assert.Contains(t, a.Message, "cpu")
			}
			s.Done()
			m.empty(t)
		})
	}
}

func TestDriverFailsAtAnyStepInOtherLanguages(t *testing.T) {
	standinOnly(t)
	for _, l := range languages[1:] {
		for _, call := range []string{"cuInit", "cuMemGetAllocationGranularity", "cuMemCreate", "cuMemExportToShareableHandle",
			"cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuDevicePrimaryCtxRetain"} {
			t.Run(l.name+" "+call, func(t *testing.T) {
				m := start(t, 1)
				s := m.speak(t, l, testkit.Env("BATON_STANDIN_FAULTS", call+"=999"))
				a := s.try(command{"do": "alloc"})
				assert.Contains(t, a.Message, call)
				assert.Contains(t, a.Message, "CUDA error 999")
				s.Done()
				m.empty(t)
			})
		}
	}
}

// What an older driver lacks is done by the processor.
func TestOlderDriversInOtherLanguages(t *testing.T) {
	standinOnly(t)
	for _, l := range languages[1:] {
		for _, lacks := range []string{"memops", "read-only-register", "memops,read-only-register"} {
			t.Run(l.name+" without "+lacks, func(t *testing.T) {
				m := start(t, 1)
				from, to := m.speak(t, l, testkit.Env("BATON_STANDIN_LACKS", lacks)), m.speak(t, languages[0])
				from.do(command{"do": "put", "queue": "q", "seed": 1, "count": 4})
				assert.Equal(t, numbers(1, 4), to.do(command{"do": "take", "queue": "q", "count": 4}))
				to.do(command{"do": "put", "queue": "q", "seed": 1, "count": 4})
				assert.Equal(t, numbers(1, 4), from.do(command{"do": "take", "queue": "q", "count": 4}))
				from.Done()
				to.Done()
				m.empty(t)
			})
		}
		t.Run(l.name+" without vmm", func(t *testing.T) {
			m := start(t, 1)
			s := m.speak(t, l, testkit.Env("BATON_STANDIN_LACKS", "vmm"))
			assert.Equal(t, "Unsupported", s.try(command{"do": "alloc"}).Code)
			s.Done()
		})
	}
}
