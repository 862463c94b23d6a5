package broker_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/shortdir"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// recorder is a Publisher that keeps what it is given.
type recorder struct {
	mu         sync.Mutex
	version    uint64
	subscribed string
	refuse     int // so many messages
	queued     int
	missed     uint64
	tuples     []protocol.Tuple
	names      map[string]uint64
	origins    map[string]protocol.Origin // of names
	left       map[string]string          // names left out, and why
	told       int
	longest    int           // text given at once
	gate       chan struct{} // if not nil: the first Publish sends here, and goes on when it is sent to
	changed    *sync.Cond
	bad        error
}

func newRecorder(subscribed string) *recorder {
	r := &recorder{subscribed: subscribed, names: map[string]uint64{}, origins: map[string]protocol.Origin{}, left: map[string]string{}}
	r.changed = sync.NewCond(&r.mu)
	return r
}

func (r *recorder) Publish(subject string, text []byte, bounds []int) int {
	if r.gate != nil {
		r.gate <- struct{}{}
		<-r.gate
		r.gate = nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.changed.Broadcast()
	r.longest = max(r.longest, len(text))
	for i := range len(bounds) - 1 {
		if r.refuse > 0 {
			r.refuse--
			return i
		}
		t, err := protocol.ParseTuple(text[bounds[i]:bounds[i+1]])
		if err != nil || subject != r.subscribed {
			r.bad = protocol.Errorf(protocol.CodeInternal, "", "tuple on %s: %v", subject, err)
		}
		r.tuples = append(r.tuples, t)
	}
	return len(bounds) - 1
}

func (r *recorder) Missed(n uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.missed += n
	r.changed.Broadcast()
}

func (r *recorder) Queued() int { return r.queued }

func (r *recorder) Interest(subject string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return subject == r.subscribed
}

func (r *recorder) InterestVersion() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.version
}

func (r *recorder) InterestMayChange() bool { return true }

func (r *recorder) SetName(ns, name string, value []byte, short protocol.TupleReference) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	t, err := protocol.ParseTuple(append([]byte(nil), value...))
	if err == nil && (t.Sequence != short.Sequence || uint64(len(t.Tensors)) != short.Tensors || uint64(len(value)) != short.Bytes ||
		t.Origin != short.Origin || t.Stamp != short.Stamp || t.Topic != short.Topic) {
		err = fmt.Errorf("%+v stands for %+v", short, t)
	}
	if err != nil {
		r.bad = err
	}
	r.names[ns+"/"+name] = short.Sequence
	r.origins[name] = t.Origin
	delete(r.left, name)
	r.changed.Broadcast()
	return nil
}

func (r *recorder) LeaveOut(ns, name, why string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.names, ns+"/"+name)
	r.left[name] = why
	r.changed.Broadcast()
	return nil
}

func (r *recorder) NamesTold() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told++
	r.changed.Broadcast()
}

func (r *recorder) NameState(ns, name string) string { return "recorded" }

func (r *recorder) DeleteName(ns, name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.names, ns+"/"+name)
	r.changed.Broadcast()
	return nil
}

// until waits for a state of the recorder.
func (r *recorder) until(f func() bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for !f() {
		r.changed.Wait()
	}
}

func newMirrored(t *testing.T, to *recorder) (c *client.Client, socket string) {
	t.Helper()
	c, b := newMirroredBroker(t, to, func(*broker.Broker) {})
	return c, b.Socket()
}

// newMirroredBroker calls before between the start of the broker and that of its mirror.
func newMirroredBroker(t *testing.T, to *recorder, before func(*broker.Broker)) (c *client.Client, b *broker.Broker) {
	t.Helper()
	b, err := broker.New(context.Background(), broker.Config{Dir: filepath.Join(shortdir.New(t), "r"), Memory: 1 << 28})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served, mirrored := make(chan error, 1), make(chan struct{})
	before(b)
	mirror := b.Mirror(to)
	go func() { served <- b.Serve(ctx) }()
	go func() { defer close(mirrored); mirror(ctx) }()
	c, err = client.Connect(ctx, client.WithAddress(b.Socket()))
	require.NoError(t, err)
	t.Cleanup(func() {
		c.Close()
		cancel()
		<-mirrored
		require.NoError(t, <-served)
		require.NoError(t, to.bad)
	})
	return c, b
}

func TestMirrorPublishesEachMessageThatIsKept(t *testing.T) {
	to := newRecorder("baton.default.topic.a.b")
	c, _ := newMirrored(t, to)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	seen, err := c.Topic(ctx, "a/b", client.Depth(64))
	require.NoError(t, err)
	unseen, err := c.Topic(ctx, "other")
	require.NoError(t, err)
	const messages = 50
	for i := 0; i < messages; i++ {
		x, err := c.Alloc(ctx, dlpack.Int16, []int64{int64(i), 2})
		require.NoError(t, err)
		require.NoError(t, seen.Send(ctx, map[string]*client.Tensor{"x": x}, client.Meta(i)))
		require.NoError(t, unseen.Send(ctx, x))
		x.Release()
	}
	to.until(func() bool { return len(to.tuples) == messages })
	for i, tuple := range to.tuples {
		require.Equal(t, "a/b", tuple.Topic)
		require.EqualValues(t, i+1, tuple.Sequence)
		require.Zero(t, tuple.Lost)
		h := tuple.Tensors[0].Handle
		require.Equal(t, "int16", h.DType)
		require.Equal(t, []int64{int64(i), 2}, h.Shape)
		y, err := c.Open(ctx, h)
		require.NoError(t, err, "the topic keeps it")
		y.Release()
	}
	require.NoError(t, seen.End(ctx))
}

func TestMirrorCountsWhatWasOverwrittenBeforeItLooked(t *testing.T) {
	to := newRecorder("baton.default.topic.fast")
	c, _ := newMirrored(t, to)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	topic, err := c.Topic(ctx, "fast", client.Depth(2))
	require.NoError(t, err)
	x, err := c.Alloc(ctx, dlpack.Float32, []int64{8})
	require.NoError(t, err)
	const messages = 2000
	for i := 0; i < messages; i++ {
		require.NoError(t, topic.Send(ctx, x))
	}
	x.Release()
	to.until(func() bool { return len(to.tuples) > 0 && to.tuples[len(to.tuples)-1].Sequence == messages })
	sum := uint64(0)
	for _, tuple := range to.tuples {
		sum += tuple.Lost + 1
	}
	require.EqualValues(t, messages, sum, "seen and lost together are all that was sent")
	to.until(func() bool { return to.missed >= messages-uint64(len(to.tuples)) }) // told after what was copied
	require.EqualValues(t, messages-len(to.tuples), to.missed)
}

func TestMirrorCountsWhatNATSRefused(t *testing.T) {
	to := newRecorder("baton.default.topic.refused")
	to.refuse = 7
	c, _ := newMirrored(t, to)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	topic, err := c.Topic(ctx, "refused", client.Depth(64))
	require.NoError(t, err)
	x, err := c.Alloc(ctx, dlpack.Float32, []int64{8})
	require.NoError(t, err)
	for range 20 {
		require.NoError(t, topic.Send(ctx, x))
	}
	to.until(func() bool { return len(to.tuples) == 13 })
	require.NoError(t, topic.Send(ctx, x)) // those that were written already cannot tell any more
	x.Release()
	to.until(func() bool { return len(to.tuples) == 14 })
	lost := uint64(0)
	for _, tuple := range to.tuples {
		lost += tuple.Lost
	}
	require.EqualValues(t, 21, to.tuples[13].Sequence)
	require.EqualValues(t, 7, lost)
}

func TestMirrorLeavesMessagesInTheirLaneWhileMuchIsQueued(t *testing.T) {
	to := newRecorder("baton.default.topic.many")
	to.queued = 1 << 30 // always: what a batch holds is published each time it looks
	c, _ := newMirrored(t, to)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	const messages = 2000
	topic, err := c.Topic(ctx, "many", client.Depth(messages))
	require.NoError(t, err)
	x, err := c.Alloc(ctx, dlpack.Float32, []int64{8})
	require.NoError(t, err)
	for i := range messages {
		require.NoError(t, topic.Send(ctx, map[string]*client.Tensor{"x": x}, client.Meta(i)))
	}
	x.Release()
	to.until(func() bool { return len(to.tuples) == messages })
	for i, tuple := range to.tuples {
		require.EqualValues(t, i+1, tuple.Sequence)
		require.Equal(t, strconv.Itoa(i), string(tuple.Meta))
	}
}

func TestMirrorCopiesFewLongMessagesAtATime(t *testing.T) {
	to := newRecorder("baton.default.topic.long")
	to.gate = make(chan struct{})
	c, _ := newMirrored(t, to)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	const messages, meta = 12, 1 << 20
	topic, err := c.Topic(ctx, "long", client.Depth(messages))
	require.NoError(t, err)
	x, err := c.Alloc(ctx, dlpack.Float32, []int64{8})
	require.NoError(t, err)
	require.NoError(t, topic.Send(ctx, x))
	<-to.gate // it looks again when all the others are there
	for range messages {
		require.NoError(t, topic.Send(ctx, x, client.Meta(strings.Repeat("m", meta))))
	}
	x.Release()
	to.gate <- struct{}{}
	to.until(func() bool { return len(to.tuples) == messages+1 })
	require.Less(t, to.longest, 3*meta)
}

func TestMirrorGoesOnPastAHeadThatLies(t *testing.T) {
	to := newRecorder("baton.default.topic.shared")
	c, socket := newMirrored(t, to)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	topic, err := c.Topic(ctx, "shared")
	require.NoError(t, err)
	liar := connect(t, socket, "liar")
	lane := liar.writer(liar.open(topicOf("shared")))
	for i, head := range liedHeads {
		liar.file.Store64(lane.at+protocol.LaneHead, head)
		x, err := c.Alloc(ctx, dlpack.Float32, []int64{8})
		require.NoError(t, err)
		require.NoError(t, topic.Send(ctx, x, client.Meta(i)))
		x.Release()
		meta := ""
		to.until(func() bool {
			if len(to.tuples) > i {
				meta = string(to.tuples[i].Meta)
			}
			return len(to.tuples) == i+1
		})
		require.Equal(t, strconv.Itoa(i), meta)
	}
}

func TestMirrorFollowsNames(t *testing.T) {
	to := newRecorder("")
	c, _ := newMirrored(t, to)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	x, err := c.Alloc(ctx, dlpack.Float32, []int64{8})
	require.NoError(t, err)
	for i := 0; i < 3; i++ {
		_, err = c.Set(ctx, "weights/actor", x)
		require.NoError(t, err)
	}
	to.until(func() bool { return to.names["default/weights/actor"] == 3 })
	o := to.origins["weights/actor"]
	require.EqualValues(t, os.Getpid(), o.PID)
	require.EqualValues(t, os.Getpid(), o.BrokerPID)
	require.NotEmpty(t, o.Machine)
	var reply protocol.ListReply
	require.NoError(t, c.Broker(ctx, protocol.OpList, protocol.List{What: protocol.ListNames}, &reply))
	require.Contains(t, string(reply.Rows[0]), `"nats":"recorded"`)
	require.NoError(t, c.Delete(ctx, "weights/actor"))
	to.until(func() bool { return len(to.names) == 0 })
	to.until(func() bool { return to.told == 1 })
}

func TestTellNamesReturnsWhenWhatWasSetBeforeHasBeenTold(t *testing.T) {
	to := newRecorder("")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	first := make(chan int, 1)
	c, b := newMirroredBroker(t, to, func(b *broker.Broker) {
		over, end := context.WithCancel(ctx)
		end()
		b.TellNames(over)
		go func() {
			b.TellNames(ctx)
			to.mu.Lock()
			defer to.mu.Unlock()
			first <- to.told
		}()
	})
	require.Equal(t, 1, <-first, "not before the mirror has told what it began with")
	x, err := c.Alloc(ctx, dlpack.Float32, []int64{8})
	require.NoError(t, err)
	defer x.Release()
	for i := range 200 {
		_, err = c.Set(ctx, "weights", x)
		require.NoError(t, err)
		b.TellNames(ctx)
		to.mu.Lock()
		require.EqualValues(t, i+1, to.names["default/weights"])
		to.mu.Unlock()
	}
	require.NoError(t, c.Delete(ctx, "weights"))
	b.TellNames(ctx)
	require.Empty(t, to.names)
	require.NoError(t, ctx.Err())
}

// What stands there of an earlier revision would mislead.
func TestMirrorLeavesOutANameThatHasNoTuple(t *testing.T) {
	to := newRecorder("")
	c, _ := newMirrored(t, to)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	x, err := c.Alloc(ctx, dlpack.Float32, []int64{8})
	require.NoError(t, err)
	_, err = c.Set(ctx, "weights", x)
	require.NoError(t, err)
	to.until(func() bool { return to.names["default/weights"] == 1 })
	x.Release()
	body, err := protocol.AppendBody(nil, &protocol.Body{Tensors: []protocol.Tensor{{Ref: -1, Code: 2, Bits: 32, Lanes: 1, DeviceType: 2, Shape: []int64{0}}}})
	require.NoError(t, err)
	require.NoError(t, c.Broker(ctx, protocol.OpNameSet, protocol.NameSet{Name: "weights", Tensors: 1, Body: body}, nil))
	why := ""
	to.until(func() bool { why = to.left["weights"]; return len(to.names) == 0 && why != "" })
	require.Contains(t, why, "no stream to wait for")
	require.NotContains(t, why, "take it as", "a remedy for readers is none here")
	require.NoError(t, c.Broker(ctx, protocol.OpNameSet, protocol.NameSet{Name: "weights", Tensors: 1, Body: []byte("x")}, nil))
	to.until(func() bool { return strings.Contains(to.left["weights"], "body") })
}
