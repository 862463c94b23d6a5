package cuda

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

func init() {
	roles["stall"] = on(stall)
	roles["wait for the stalled"] = on(waitForStalled)
	roles["abandon"] = on(abandon)
}

// pair starts a consumer that keeps the last of what a producer sent.
func pair(t *testing.T, m machine, k course) (producer, consumer *testkit.Process) {
	t.Helper()
	k.Hold = true
	consumer = m.play("consume", k)
	consumer.Next(new(string))
	producer = m.play("produce", k)
	producer.Next(new(string))
	producer.Tell("go")
	producer.Next(new(string))
	consumer.Next(new(string))
	return producer, consumer
}

// The broker's descriptor keeps the memory of a creator that was killed for its
// holders, and the last of them frees it.
func TestCreatorIsKilled(t *testing.T) {
	m := start(t, 1)
	testkit.Look(t, m.Broker) // its own session stays
	before := testkit.FDs(m.Process().PID())
	producer, consumer := pair(t, m, course{Queue: "work", Count: 5, Bytes: 1 << 20})
	producer.Kill()
	testkit.Gone(t, m.Broker, producer.PID())
	assert.Positive(t, m.used(t), "the consumer holds it")
	consumer.Tell("go on")
	consumer.Next(new(string))
	testkit.AuditEmpty(t, m.Broker)
	consumer.Done()
	m.empty(t)
	brokerKeepsNoMore(t, m, before)
}

// brokerKeepsNoMore waits until the broker has closed the descriptors of freed memory.
func brokerKeepsNoMore(t *testing.T, m machine, before int) {
	t.Helper()
	testkit.Until(t, "the broker keeps no descriptor of freed memory", func() (bool, string) {
		now := testkit.FDs(m.Process().PID())
		return now <= before, fmt.Sprintf("%d descriptors, %d before", now, before)
	})
}

func TestReceiverIsKilled(t *testing.T) {
	m := start(t, 1)
	producer, consumer := pair(t, m, course{Queue: "work", Count: 5, Bytes: 1 << 20})
	consumer.Kill()
	testkit.Gone(t, m.Broker, consumer.PID())
	testkit.Audit(t, m.Broker)
	producer.Done()
	m.empty(t)
}

func TestBothAreKilled(t *testing.T) {
	m := start(t, 1)
	producer, consumer := pair(t, m, course{Topic: "batches", Count: 20, Bytes: 1 << 20})
	producer.Kill()
	consumer.Kill()
	m.empty(t)
}

// stall sends a tensor that its stream will never write.
func stall(w *worker) error {
	topic, err := w.c.Topic(w.ctx, "stalled", client.Overwrite(false), soon)
	if err != nil {
		return err
	}
	return stallIn(w, func(t *client.Tensor) error { return topic.Send(w.ctx, t, client.Stream(w.stream)) })
}

func stallIn(w *worker, send func(*client.Tensor) error) error {
	page, err := sys.MapAnonymous(protocol.PageBytes)
	if err != nil {
		return err
	}
	at, err := w.gpu.Register(page, true)
	if err != nil {
		return err
	}
	if err := w.pause("ready"); err != nil {
		return err
	}
	t, err := w.alloc(4096)
	if err != nil {
		return err
	}
	if err := w.gpu.WaitValue(w.stream, at, 1); err != nil {
		return err
	}
	if err := w.fill(t, 1); err != nil {
		return err
	}
	if err := send(t); err != nil {
		return err
	}
	if err := w.Say("sent"); err != nil {
		return err
	}
	<-w.ctx.Done()
	return errors.New("was not killed")
}

// waitForStalled lets its stream wait for a sender that is killed meanwhile.
func waitForStalled(w *worker) error {
	topic, err := w.c.Topic(w.ctx, "stalled", client.Overwrite(false), soon)
	if err != nil {
		return err
	}
	r, err := topic.Reader(w.ctx)
	if err != nil {
		return err
	}
	if err := w.Say("ready"); err != nil {
		return err
	}
	m, err := r.Receive(w.ctx)
	if err != nil {
		return err
	}
	t := m.Tensor()
	if err := t.UseOn(client.Stream(w.stream)); err != nil {
		return err
	}
	if err := w.Say("waiting"); err != nil {
		return err
	}
	if err := w.gpu.SynchronizeStream(w.stream); err != nil {
		return err
	}
	if err := t.Written(w.ctx); !errors.Is(err, protocol.ErrExpired) {
		return fmt.Errorf("after the stream has passed: %w", err)
	}
	if err := t.UseOn(client.LegacyStream); !errors.Is(err, protocol.ErrExpired) {
		return fmt.Errorf("another stream: %w", err)
	}
	m.Release()
	return w.Say("released")
}

// A stream that waits for a dead process's is released, and told apart from one
// that has its data.
func TestProducerIsKilledBeforeItsStreamHasWritten(t *testing.T) {
	m := start(t, 1)
	consumer := m.play("wait for the stalled", nil)
	consumer.Next(new(string))
	producer := m.play("stall", nil)
	producer.Next(new(string))
	producer.Tell("go")
	producer.Next(new(string))
	consumer.Next(new(string))
	producer.Kill()
	var said string
	consumer.Next(&said)
	assert.Equal(t, "released", said)
	consumer.Done()
	m.empty(t)
}

// abandon sends without end and releases nothing that it receives.
func abandon(w *worker) error {
	topic, err := w.c.Topic(w.ctx, "storm", soon)
	if err != nil {
		return err
	}
	r, err := topic.Reader(w.ctx)
	if err != nil {
		return err
	}
	if err := w.Say("ready"); err != nil {
		return err
	}
	var held []*client.Message
	for i := 0; ; i++ {
		t, err := w.alloc(300 << 10)
		if err != nil {
			return err
		}
		if err := w.fill(t, byte(i)); err != nil {
			return err
		}
		if err := topic.Send(w.ctx, t, client.Stream(w.stream)); err != nil {
			return err
		}
		t.Release()
		m, err := r.TryReceive(w.ctx)
		if err != nil {
			return err
		}
		if m != nil {
			if err := m.Tensor().UseOn(client.Stream(w.stream)); err != nil && !errors.Is(err, protocol.ErrExpired) {
				return err
			}
			held = append(held, m)
		}
		if len(held) > 20 {
			held[0].Release()
			held = held[1:]
		}
	}
}

// Killed anywhere, several times over, nothing of the GPU is left in use.
func TestProcessesAreKilledAnywhere(t *testing.T) {
	m := start(t, 1)
	for range 5 {
		var storm []*testkit.Process
		for range 3 {
			p := m.play("abandon", nil)
			p.Next(new(string))
			storm = append(storm, p)
		}
		testkit.Until(t, "something of the GPU is in use", func() (bool, string) {
			return m.used(t) > 0, "nothing"
		})
		for _, p := range storm {
			p.Kill()
		}
		testkit.Audit(t, m.Broker)
	}
	m.empty(t)
}

// A new broker gets the memory from a process that maps it, and gives it on.
func TestMemoryOfTheGPUOutlivesTheBroker(t *testing.T) {
	m := start(t, 1)
	k := course{Topic: "batches", Count: 5, Bytes: 1 << 20}
	producer, consumer := pair(t, m, k)
	m.Kill()
	m.Restart()
	setter := m.play("set a name", nil)
	var h protocol.Handle
	setter.Next(&h)
	assert.Equal(t, "cuda:0", h.Device, "the broker knows the device by the same number")
	consumer.Tell("go on")
	consumer.Next(new(string))
	setter.Done()
	producer.Done()
	consumer.Done()
	c := m.Connect()
	require.NoError(t, c.Delete(testkit.Context(t), "weights"))
	m.empty(t)
}

// The same of every language, with memory that is lent too: whichever is killed first, the
// other meets typed errors alone.
func TestDriversAreKilledAnywhere(t *testing.T) {
	for _, l := range languages {
		t.Run(l.name, func(t *testing.T) {
			l.with(t)
			m := start(t, 1)
			const orders, rounds = 40, 6
			for round := range rounds {
				from, to := m.speak(t, l), m.speak(t, l)
				for i := range orders {
					from.Tell(command{"do": []string{"put", "lend"}[i%2], "queue": "q", "seed": i, "bytes": 100_000})
					to.Tell(command{"do": "take", "queue": "q", "hold": i%5 == 0})
				}
				for range rand.IntN(orders - 5) { // the last few wait without an end, when the other has gone
					var a answer
					from.Next(&a)
					require.Empty(t, a.Code+a.Broken, "%s", a.Message)
				}
				first, then := from, to
				if round%2 == 1 {
					first, then = to, from
				}
				first.Kill()
				testkit.Gone(t, m.Broker, first.PID())
				for a := (answer{}); then.Poll(&a); a = (answer{}) {
					require.Empty(t, a.Broken)
				}
				then.Kill()
				testkit.Audit(t, m.Broker)
			}
			m.empty(t)
		})
	}
}
