package cuda

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/integration/cuda/standin"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// handOver lets a producer and consumers run a course.
func handOver(t *testing.T, m machine, k course, consumers int, opts ...testkit.StartOption) {
	t.Helper()
	var in []*testkit.Process
	for range consumers {
		p := m.play("consume", k, opts...)
		p.Next(new(string))
		in = append(in, p)
	}
	out := m.play("produce", k, opts...)
	out.Next(new(string))
	out.Tell("go")
	for _, p := range in {
		p.Next(new(string))
	}
	out.Next(new(string))
	rows := testkit.List[broker.SegmentRow](t, m.Broker, protocol.ListSegments)
	require.NotEmpty(t, rows)
	assert.Equal(t, "cuda", rows[0].Kind)
	out.Done()
	for _, p := range in {
		p.Done()
	}
	m.empty(t)
}

// The stream of a consumer waits for that of the producer, over and over, while the
// memory is recycled.
func TestTensorsOnAGPUArriveInTheOrderOfTheirStreams(t *testing.T) {
	for _, c := range []struct {
		name      string
		k         course
		consumers int
	}{
		{"topic", course{Topic: "batches", Count: 200, Bytes: 64 << 10}, 2},
		{"queue", course{Queue: "work", Count: 200, Bytes: 1 << 20}, 1},
	} {
		t.Run(c.name, func(t *testing.T) { handOver(t, start(t, 1), c.k, c.consumers) })
	}
}

func init() { roles["send by many streams"] = on(sendByManyStreams) }

// sendByManyStreams sends each tensor by a stream of its own, more than have words.
func sendByManyStreams(w *worker) error {
	var k course
	if err := w.Config(&k); err != nil {
		return err
	}
	for i := range k.Count {
		var err error
		if w.stream, err = w.gpu.NewStream(); err != nil {
			return err
		}
		send, err := k.sender(w)
		if err != nil {
			return err
		}
		if err := w.sendFilled(k.Bytes, byte(i), send); err != nil {
			return err
		}
	}
	return w.finish("sent")
}

// A sender that has used up the words of its session waits for further streams itself.
func TestStreamsWithoutAWordAreWaitedFor(t *testing.T) {
	m := start(t, 1)
	k := course{Queue: "work", Count: protocol.MaxStreams + 5, Bytes: 4096}
	in := m.play("consume", k)
	in.Next(new(string))
	out := m.play("send by many streams", k)
	in.Next(new(string))
	out.Next(new(string))
	out.Done()
	in.Done()
	m.empty(t)
}

// Where streams cannot wait for values, or cannot reach what they may not write,
// processors wait instead.
func TestOldDriversAreOrderedByTheProcessor(t *testing.T) {
	standinOnly(t)
	m := start(t, 1)
	for lacks, said := range map[string]string{"": "on cuda:0, storage", "memops": "on cuda:0 (its processor waits for streams), storage"} {
		var text string
		p := m.play("describe a tensor", nil, testkit.Env("BATON_STANDIN_LACKS", lacks))
		p.Next(&text)
		assert.Contains(t, text, said)
		p.Ended()
	}
	for _, lacks := range []string{"memops", "read-only-register"} {
		t.Run(lacks, func(t *testing.T) {
			handOver(t, start(t, 1), course{Topic: "batches", Count: 50, Bytes: 64 << 10}, 1, testkit.Env("BATON_STANDIN_LACKS", lacks))
		})
	}
}

// What was received is written in place and handed on, each time before the
// stream has come to it.
func TestTensorPassesThroughSeveralProcesses(t *testing.T) {
	m := start(t, 1)
	const count = 100
	type hop = map[string]any
	last := m.play("relay", hop{"From": "second", "To": "third", "Add": 9, "Count": count})
	last.Next(new(string))
	middle := m.play("relay", hop{"From": "first", "To": "second", "Add": 5, "Count": count})
	middle.Next(new(string))
	end := m.play("consume", course{Queue: "third", Add: 9, Count: count})
	end.Next(new(string))
	p := m.play("produce", course{Queue: "first", Count: count, Bytes: 64 << 10})
	p.Next(new(string))
	p.Tell("go")
	end.Next(new(string))
	p.Next(new(string))
	for _, x := range []*testkit.Process{p, middle, last, end} {
		x.Done()
	}
	m.empty(t)
}

func init() {
	roles["describe a tensor"] = on(func(w *worker) error {
		t, err := w.alloc(4096)
		if err != nil {
			return err
		}
		defer t.Release()
		return w.Say(t.String())
	})
	roles["set a name"] = on(setName)
	roles["get a name"] = on(getName)
	roles["count calls"] = on(countCalls)
	roles["export"] = on(export)
	roles["consume late"] = on(consumeLate)
}

// setName publishes a bundle on the GPU under a name, and tells a handle of a tensor.
func setName(w *worker) error {
	b, err := w.c.AllocBundleOn(w.ctx, "cuda:0", client.Spec{Name: "w", DType: dlpack.Float32, Shape: []int64{64, 64}},
		client.Spec{Name: "b", DType: dlpack.Float32, Shape: []int64{64}})
	if err != nil {
		return err
	}
	for i, t := range b.Tensors() {
		if err := w.fill(t, byte(i+1)); err != nil {
			return err
		}
	}
	if _, err := w.c.Set(w.ctx, "weights", b); err != nil {
		return err
	}
	h, err := b.Tensor("w").Handle(w.ctx, client.LeaseSession())
	if err != nil {
		return err
	}
	b.Release()
	return w.finish(h)
}

func getName(w *worker) error {
	var h protocol.Handle
	if err := w.Config(&h); err != nil {
		return err
	}
	b, err := w.c.Get(w.ctx, "weights")
	if err != nil {
		return err
	}
	defer b.Release()
	for i, name := range []string{"w", "b"} {
		t := b.Tensor(name)
		if t == nil || !t.ReadOnly() || t.Device() != (dlpack.Device{Type: dlpack.CUDA}) {
			return fmt.Errorf("%s is %v", name, t)
		}
		if err := w.expect(t, byte(i+1)); err != nil {
			return err
		}
		if _, err := t.Bytes(); err == nil {
			return fmt.Errorf("bytes of %s were given to the processor", t)
		}
	}
	t, err := w.c.Open(w.ctx, h, client.OpenReadOnly())
	if err != nil {
		return err
	}
	if err := w.expect(t, 1); err != nil {
		return err
	}
	t.Release()
	// Written against the rules, read-only memory is an error of this process alone.
	err = w.fill(b.Tensor("w"), 9)
	if err == nil {
		err = w.gpu.SynchronizeStream(w.stream)
	}
	return w.Say(fmt.Sprint(err))
}

func TestNamesAndHandlesAreReadOnlyOnTheGPU(t *testing.T) {
	m := start(t, 1)
	setter := m.play("set a name", nil)
	var h protocol.Handle
	setter.Next(&h)
	assert.Equal(t, "cuda:0", h.Device)
	for range 2 { // the second sees that the first has written nothing
		getter := m.play("get a name", h)
		var said string
		getter.Next(&said)
		if assert.NotEqual(t, "<nil>", said); !onGPU { // whose driver may see it before the stream does
			assert.Contains(t, said, "CUDA_ERROR_ILLEGAL_ADDRESS")
		}
		getter.Done()
	}
	setter.Done()
	c := m.Connect()
	require.NoError(t, c.Delete(testkit.Context(t), "weights"))
	m.empty(t)
}

// countCalls hands tensors over within its own process and tells how often the
// driver was called for each.
func countCalls(w *worker) error {
	topic, err := w.c.Topic(w.ctx, "own", client.Depth(4), soon)
	if err != nil {
		return err
	}
	r, err := topic.Reader(w.ctx)
	if err != nil {
		return err
	}
	round := func(s client.Stream) error {
		t, err := w.alloc(4096)
		if err != nil {
			return err
		}
		if err := topic.Send(w.ctx, t, s); err != nil {
			return err
		}
		t.Release()
		m, err := r.Receive(w.ctx)
		if err != nil {
			return err
		}
		defer m.Release()
		if _, err := m.Tensor().Pointer(); err != nil {
			return err
		}
		return m.Tensor().UseOn(s)
	}
	const rounds = 100
	for _, s := range []client.Stream{client.NoStream, client.Stream(w.stream)} {
		for range 20 {
			if err := round(s); err != nil {
				return err
			}
		}
		all, err := standin.Calls("")
		if err != nil {
			return err
		}
		ordering, err := standin.Calls("cuStreamWriteValue64_v2", "cuStreamWaitValue64_v2")
		if err != nil {
			return err
		}
		asked, err := standin.Calls("cuStreamIsCapturing")
		if err != nil {
			return err
		}
		around, err := standin.Calls("cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2")
		if err != nil {
			return err
		}
		for range rounds {
			if err := round(s); err != nil {
				return err
			}
		}
		allNow, _ := standin.Calls("")
		orderingNow, _ := standin.Calls("cuStreamWriteValue64_v2", "cuStreamWaitValue64_v2")
		askedNow, _ := standin.Calls("cuStreamIsCapturing")
		aroundNow, _ := standin.Calls("cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2")
		told := calls{All: allNow - all, Ordering: orderingNow - ordering, Asked: askedNow - asked, Around: aroundNow - around, Rounds: rounds}
		if err := w.Say(told); err != nil {
			return err
		}
	}
	return nil
}

type calls struct{ All, Ordering, Asked, Around, Rounds uint64 }

func TestHandOverMakesNoCallsOfTheDriverButForTheOrder(t *testing.T) {
	standinOnly(t)
	m := start(t, 1)
	p := m.play("count calls", nil)
	var got calls
	p.Next(&got)
	assert.Equal(t, calls{Rounds: got.Rounds}, got, "without a stream")
	p.Next(&got)
	assert.Equal(t, got.All, got.Ordering+got.Asked+got.Around)
	assert.Equal(t, got.Ordering, got.Asked, "whether the stream is captured")
	assert.LessOrEqual(t, got.Ordering, 3*got.Rounds, "a write, a wait, and a write at the release")
	assert.Equal(t, 2*got.Ordering, got.Around, "the context is made current for each")
	p.Done()
	m.empty(t)
}

// consumeLate copies what it receives within the GPU and lets go of it at once, long
// before its stream has come to the copy.
func consumeLate(w *worker) error {
	var k course
	if err := w.Config(&k); err != nil {
		return err
	}
	receive, err := k.receiver(w)
	if err != nil {
		return err
	}
	all, err := w.alloc(k.Bytes * int64(k.Count))
	if err != nil {
		return err
	}
	to, err := all.Pointer()
	if err != nil {
		return err
	}
	if err := w.Say("ready"); err != nil {
		return err
	}
	for i := range k.Count {
		m, err := receive()
		if err != nil {
			return err
		}
		at, err := m.Tensor().Pointer()
		if err != nil {
			return err
		}
		if err := m.Tensor().UseOn(client.Stream(w.stream)); err != nil {
			return err
		}
		if err := w.gpu.CopyWithin(to+uint64(int64(i)*k.Bytes), at, uint64(k.Bytes), w.stream); err != nil {
			return err
		}
		m.Release()
	}
	if err := w.Say("received"); err != nil {
		return err
	}
	for i := range int64(k.Count) {
		part, err := all.Slice(0, i*k.Bytes, (i+1)*k.Bytes)
		if err != nil {
			return err
		}
		if err := w.expect(part, byte(i)); err != nil {
			return err
		}
	}
	all.Release()
	<-w.ctx.Done()
	return nil
}

// Memory that was let go is not used anew before the streams that read it have
// passed.
func TestReleasedTensorWaitsForItsStream(t *testing.T) {
	m := start(t, 1)
	k := course{Queue: "work", Count: 200, Bytes: 64 << 10}
	in := m.play("consume late", k, testkit.Env("BATON_STANDIN_DELAY", "3000"))
	in.Next(new(string))
	out := m.play("produce", k, testkit.Env("BATON_STANDIN_DELAY", "0"))
	out.Next(new(string))
	out.Tell("go")
	in.Next(new(string))
	out.Next(new(string))
	in.Done()
	out.Done()
	m.empty(t)
}

// export gives a tensor to a consumer of DLPack, whose deleter makes no call.
func export(w *worker) error {
	t, err := w.alloc(4096)
	if err != nil {
		return err
	}
	at, err := t.Pointer()
	if err != nil {
		return err
	}
	for _, s := range []client.Stream{0, 2, -2} {
		if x, err := t.ToDLPack(s); err == nil {
			return fmt.Errorf("stream %d was accepted: %v", s, x)
		}
	}
	x, err := t.ToDLPack(client.Stream(w.stream))
	if err != nil {
		return err
	}
	if x.Tensor.Data != uintptr(at) || x.Tensor.Device != (dlpack.Device{Type: dlpack.CUDA, ID: 0}) {
		return fmt.Errorf("exported as %+v", x.Tensor)
	}
	t.Release()
	if err := w.gpu.Fill(at, 1, 4096, w.stream); err != nil {
		return err
	}
	if err := dlpack.Release(x); err != nil {
		return err
	}
	return w.finish("released")
}

func TestExportedTensorIsLetGoWhenItsStreamHasPassed(t *testing.T) {
	m := start(t, 1)
	p := m.play("export", nil)
	p.Next(new(string))
	testkit.AuditEmpty(t, m.Broker)
	p.Done()
	m.empty(t)
}
