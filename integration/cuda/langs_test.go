package cuda

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
)

func init() {
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

// The broker alone, which has no driver, keeps the memory of a creator that was
// killed before another process had mapped it.
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
// taken for data, and no reader waiting.
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
				s := m.speak(t, l, testkit.Env("BATON_STANDIN_FAULTS", call+"=998"))
				a := s.try(command{"do": "alloc"})
				assert.Contains(t, a.Message, call)
				assert.Contains(t, a.Message, "CUDA error 998")
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

func TestTensorTellsWhoWaits(t *testing.T) {
	standinOnly(t)
	eachLanguage(t, 1, func(t *testing.T, m machine, l language) {
		for lacks, want := range map[string]float64{"": 1, "memops": 0} {
			s := m.speak(t, l, testkit.Env("BATON_STANDIN_LACKS", lacks))
			assert.Equal(t, []any{want}, s.do(command{"do": "ordered"}), "without %q", lacks)
			s.Done()
		}
		m.empty(t)
	})
}

// What is passed on by a process that has asked nothing of it is written as late as before.
func TestWhatIsPassedOnUntouchedIsWaitedFor(t *testing.T) {
	standinOnly(t)
	eachLanguage(t, 1, func(t *testing.T, m machine, l language) {
		relay, end := m.speak(t, l), m.speak(t, languages[0])
		relay.do(command{"do": "take", "queue": "q", "count": 0}) // keeps the queue
		producer := m.play("stall in a queue", nil)
		producer.Next(new(string))
		producer.Tell("go")
		producer.Next(new(string))
		relay.do(command{"do": "pass", "queue": "q"})
		assert.Equal(t, []any{1.0, 1.0}, end.do(command{"do": "follow", "queue": "q"}))
		producer.Kill()
		end.do(command{"do": "release"})
		end.Done()
		relay.Done()
		m.empty(t)
	})
}

// Where the processor waits for what is to be handed on, a send waits no longer than it may.
func TestSendOfWhatIsNotWrittenEndsInTime(t *testing.T) {
	standinOnly(t)
	eachLanguage(t, 1, func(t *testing.T, m machine, l language) {
		taker := m.speak(t, l, testkit.Env("BATON_STANDIN_LACKS", "memops"))
		taker.do(command{"do": "take", "queue": "q", "count": 0}) // keeps the queue
		producer := m.play("stall in a queue", nil)
		producer.Next(new(string))
		producer.Tell("go")
		producer.Next(new(string))
		a := taker.try(command{"do": "pass", "queue": "q"})
		assert.Equal(t, "Timeout", a.Code, "%s", a.Message+a.Broken)
		producer.Kill()
		taker.Done()
		m.empty(t)
	})
}
