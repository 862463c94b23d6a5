package client_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

func tensor(t testing.TB, c *client.Client, values ...float32) *client.Tensor {
	t.Helper()
	x, err := c.Alloc(context.Background(), dlpack.Float32, []int64{int64(len(values))})
	require.NoError(t, err)
	v, err := client.Slice[float32](x)
	require.NoError(t, err)
	copy(v, values)
	return x
}

func values(t testing.TB, x *client.Tensor) []float32 {
	t.Helper()
	require.NotNil(t, x)
	v, err := client.Slice[float32](x)
	require.NoError(t, err)
	return v
}

func TestQueueGivesEachItemToOneTakerWritable(t *testing.T) {
	address, ctx := newBroker(t), limited(t)
	a, b := connect(t, address), connect(t, address)
	put, err := a.Queue(ctx, "work", client.Depth(4))
	require.NoError(t, err)
	get, err := b.Queue(ctx, "work")
	require.NoError(t, err)
	for i := 0; i < 4; i++ {
		x := tensor(t, a, float32(i))
		require.NoError(t, put.Put(ctx, x))
		x.Release()
	}
	n, err := get.Len(ctx)
	require.NoError(t, err)
	require.Equal(t, 4, n)

	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	x := tensor(t, a, 9)
	err = put.Put(short, x)
	require.ErrorIs(t, err, protocol.ErrFull)
	require.ErrorIs(t, err, protocol.ErrTimeout)
	var full *protocol.Error
	require.ErrorAs(t, err, &full)
	require.Contains(t, full.Remedy, "`baton why --address="+address+" queue work`")
	x.Release()

	for i := 0; i < 4; i++ {
		m, err := get.Get(ctx)
		require.NoError(t, err)
		v := values(t, m.Tensor())
		require.EqualValues(t, i, v[0])
		v[0] = 7 // writable
		m.Release()
	}
	short, cancel = context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err = get.Get(short)
	require.ErrorIs(t, err, protocol.ErrEmpty)
	require.NoError(t, put.End(ctx))
	_, err = get.Get(ctx)
	require.ErrorIs(t, err, protocol.ErrClosed)
	require.ErrorIs(t, put.Put(ctx, tensor(t, a, 1)), protocol.ErrClosed)
}

func TestNamePublishedIsGotWatchedAndDeleted(t *testing.T) {
	address, ctx := newBroker(t), limited(t)
	a, b := connect(t, address), connect(t, address)
	_, err := b.Get(context.Background(), "weights/actor")
	require.ErrorIs(t, err, protocol.ErrNotFound)
	w, err := b.Watch(ctx, "weights/actor")
	require.NoError(t, err)
	for rev := 1; rev <= 5; rev++ {
		x, y := tensor(t, a, float32(rev)), tensor(t, a, float32(-rev))
		got, err := a.Set(ctx, "weights/actor", map[string]*client.Tensor{"w": x, "a/b": y})
		require.NoError(t, err)
		require.EqualValues(t, rev, got)
		x.Release()
		y.Release()
		bundle, err := w.Next(ctx)
		require.NoError(t, err)
		require.EqualValues(t, rev, bundle.Revision)
		require.Equal(t, float32(rev), values(t, bundle.Tensor("w"))[0])
		require.Equal(t, float32(-rev), values(t, bundle.Tensor("a/b"))[0])
		require.True(t, bundle.Tensor("w").ReadOnly())
		bundle.Release()
	}
	bundle, err := b.Get(ctx, "weights/actor")
	require.NoError(t, err)
	require.NoError(t, b.Delete(ctx, "weights/actor"))
	require.Equal(t, float32(5), values(t, bundle.Tensor("w"))[0], "a holder keeps what it got")
	bundle.Release()
	_, err = b.Get(context.Background(), "weights/actor")
	require.ErrorIs(t, err, protocol.ErrNotFound)
}

func TestMetaOfANameIsOfItsRevision(t *testing.T) {
	address, ctx := newBroker(t), limited(t)
	a, b := connect(t, address), connect(t, address)
	x := tensor(t, a, 1)
	defer x.Release()
	for _, meta := range []any{map[string]any{"epoch": 3.0}, "text", nil} {
		opts := []client.SetOption{client.Ephemeral()}
		if meta != nil {
			opts = append(opts, client.Meta(meta))
		}
		_, err := a.Set(ctx, "n", x, opts...)
		require.NoError(t, err)
		got, err := b.Get(ctx, "n")
		require.NoError(t, err)
		var back any
		require.NoError(t, got.Meta(&back))
		require.Equal(t, meta, back)
		require.Equal(t, meta == nil, got.RawMeta() == nil)
		got.Release()
	}
	_, err := a.Set(ctx, "n", x, client.Meta(make(chan int)))
	require.ErrorIs(t, err, protocol.ErrInvalid)
}

func TestLiveNameIsWrittenInPlaceByAll(t *testing.T) {
	address, ctx := newBroker(t), limited(t)
	a, b := connect(t, address), connect(t, address)
	mine, err := a.AllocBundle(ctx, client.Spec{Name: "w", DType: dlpack.Float32, Shape: []int64{8}}, client.Spec{Name: "b", DType: dlpack.Float64, Shape: []int64{2}})
	require.NoError(t, err)
	_, err = a.Set(ctx, "weights/live", mine, client.Live())
	require.NoError(t, err)
	theirs, err := b.Get(ctx, "weights/live")
	require.NoError(t, err)
	require.True(t, theirs.Live)
	values(t, theirs.Tensor("w"))[3] = 42
	require.Equal(t, float32(42), values(t, mine.Tensor("w"))[3])
	mine.Release()
	theirs.Release()
}

func TestHandleAsJSONOpensTheSameMemoryUntilItsLeaseEnds(t *testing.T) {
	address, ctx := newBroker(t), limited(t)
	a, b := connect(t, address), connect(t, address)
	x := tensor(t, a, 1, 2, 3)
	h, err := x.Handle(ctx)
	require.NoError(t, err)
	text, err := h.MarshalJSON()
	require.NoError(t, err)
	x.Release()
	parsed, err := protocol.ParseHandle(text)
	require.NoError(t, err)
	y, err := b.Open(ctx, parsed)
	require.NoError(t, err)
	require.Equal(t, []float32{1, 2, 3}, values(t, y))
	y.Release()
	require.NoError(t, a.ReleaseHandle(ctx, h))
	require.Eventually(t, func() bool { a.Collect(); return a.Stats().Live == 0 }, time.Minute, time.Millisecond)
	_, err = b.Open(ctx, parsed)
	require.ErrorIs(t, err, protocol.ErrExpired)
}

func TestValueComesOutWithTheSameStructure(t *testing.T) {
	address, ctx := newBroker(t), limited(t)
	a, b := connect(t, address), connect(t, address)
	out, err := a.Topic(ctx, "v")
	require.NoError(t, err)
	in, err := b.Topic(ctx, "v")
	require.NoError(t, err)
	x := tensor(t, a, 1)
	require.NoError(t, out.Send(ctx, map[string]any{"x": []any{x, "s", int64(3), nil}, "b": []byte{1}}))
	require.NoError(t, out.Send(ctx, map[string]any{}))
	many := map[string]*client.Tensor{}
	for i := 0; i < 300; i++ {
		many[fmt.Sprintf("layer.%d", i)] = tensor(t, a, float32(i))
	}
	require.NoError(t, out.Send(ctx, many))
	r, err := in.Reader(ctx, client.StartAll)
	require.NoError(t, err)
	m, err := r.Receive(ctx)
	require.NoError(t, err)
	v, err := m.Value()
	require.NoError(t, err)
	got := v.(map[string]any)
	require.Equal(t, []byte{1}, got["b"])
	require.Equal(t, float32(1), values(t, got["x"].([]any)[0].(*client.Tensor))[0])
	m.Release()
	m, err = r.Receive(ctx)
	require.NoError(t, err)
	v, err = m.Value()
	require.NoError(t, err)
	require.Empty(t, v)
	m.Release()
	m, err = r.Receive(ctx)
	require.NoError(t, err)
	bundle, err := m.Bundle()
	require.NoError(t, err)
	require.Len(t, bundle.Names(), 300)
	for i := 0; i < 300; i++ {
		require.EqualValues(t, i, values(t, bundle.Tensor(fmt.Sprintf("layer.%d", i)))[0])
	}
	m.Release()
}

func TestLosslessTopicWaitsForItsSlowestReader(t *testing.T) {
	address, ctx := newBroker(t), limited(t)
	a, b := connect(t, address), connect(t, address)
	out, err := a.Topic(ctx, "ranks", client.Overwrite(false), client.Depth(2))
	require.NoError(t, err)
	in, err := b.Topic(ctx, "ranks")
	require.NoError(t, err)
	r1, err := in.Reader(ctx)
	require.NoError(t, err)
	r2, err := in.Reader(ctx)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		for i := 0; i < 50; i++ {
			x, err := a.Alloc(ctx, dlpack.Float32, []int64{1})
			if err == nil {
				v, _ := client.Slice[float32](x)
				v[0] = float32(i)
				err = out.Send(ctx, x)
				x.Release()
			}
			if err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for i := 0; i < 50; i++ {
		for _, r := range []*client.Reader{r1, r2} {
			m, err := r.Receive(ctx)
			require.NoError(t, err)
			require.EqualValues(t, i, values(t, m.Tensor())[0])
			m.Release()
		}
	}
	require.NoError(t, <-done)
}

// A topic keeps depth messages of all senders that have ended, together. A reader
// that comes too late for the rest is told how many there were.
func TestMessagesOfSendersThatHaveGoneAreCountedAsLost(t *testing.T) {
	address, ctx := newBroker(t), limited(t)
	reading := connect(t, address)
	topic, err := reading.Topic(ctx, "t", client.Depth(2))
	require.NoError(t, err)
	r, err := topic.Reader(ctx)
	require.NoError(t, err)
	const senders = 4
	var last uint64
	for i := range senders {
		c, err := client.Connect(ctx, client.WithAddress(address))
		require.NoError(t, err)
		last = c.Session()
		to, err := c.Topic(ctx, "t")
		require.NoError(t, err)
		for range 2 {
			x, err := c.Zeros(ctx, dlpack.Int64, []int64{1})
			require.NoError(t, err)
			require.NoError(t, to.Send(ctx, x, client.Meta(i)))
			x.Release()
		}
		require.NoError(t, c.Close())
	}
	// Those of the last one are kept alone once the broker has its lane, which may be later than its end.
	require.Eventually(t, func() bool {
		makers := makersOfStored(t, reading)
		return len(makers) == 2 && makers[0] == last && makers[1] == last
	}, time.Minute, 5*time.Millisecond)
	lost := uint64(0)
	for range 2 {
		m, err := r.Receive(ctx)
		require.NoError(t, err)
		lost += m.Lost
		m.Release()
	}
	require.EqualValues(t, 2*senders-2, lost+r.Lost())
	m, err := r.TryReceive(ctx)
	require.NoError(t, err)
	require.Nil(t, m)
}

// stored counts the storages that a client's broker lists.
func stored(t *testing.T, c *client.Client) int { return len(makersOfStored(t, c)) }

// makersOfStored lists the sessions that made them.
func makersOfStored(t *testing.T, c *client.Client) (serials []uint64) {
	var s struct {
		Rows []struct {
			Maker uint64 `json:"creator_serial"`
		} `json:"rows"`
	}
	require.NoError(t, c.Broker(limited(t), protocol.OpList, map[string]any{"what": protocol.ListStorages}, &s))
	for _, r := range s.Rows {
		serials = append(serials, r.Maker)
	}
	return serials
}

func TestNothingIsLeftWhenAllIsReleased(t *testing.T) {
	address, ctx := newBroker(t), limited(t)
	a, b := connect(t, address), connect(t, address)
	out, err := a.Topic(ctx, "t")
	require.NoError(t, err)
	in, err := b.Topic(ctx, "t")
	require.NoError(t, err)
	r, err := in.Reader(ctx)
	require.NoError(t, err)
	for i := 0; i < 100; i++ {
		x := tensor(t, a, 1)
		require.NoError(t, out.Send(ctx, x))
		x.Release()
	}
	for i := 0; i < 5; i++ {
		m, err := r.Receive(ctx)
		require.NoError(t, err)
		p, err := m.Tensor().ToDLPack()
		require.NoError(t, err)
		m.Release()
		require.NoError(t, dlpack.Release(p))
	}
	require.NoError(t, r.Close())
	require.NoError(t, in.Close())
	require.NoError(t, out.Close())
	require.NoError(t, a.Close())
	// The topic lingers with its last eight.
	require.Eventually(t, func() bool { return stored(t, b) <= 8 }, time.Minute, 5*time.Millisecond)
}

func TestAllocRefusesImpossibleShapes(t *testing.T) {
	address, ctx := newBroker(t), limited(t)
	c := connect(t, address)
	for _, shape := range [][]int64{{-1}, {1 << 62, 4}, {1 << 32, 1 << 32}} {
		_, err := c.Alloc(ctx, dlpack.Float32, shape)
		require.ErrorIs(t, err, protocol.ErrInvalid, "%v", shape)
	}
	_, err := c.Alloc(ctx, dlpack.DType{Code: 99, Bits: 8, Lanes: 1}, []int64{1})
	require.ErrorIs(t, err, protocol.ErrInvalid)
	_, err = c.Alloc(ctx, dlpack.Float32, []int64{1 << 40})
	require.Error(t, err)
	x, err := c.Alloc(ctx, dlpack.Float32, []int64{3, 0})
	require.NoError(t, err)
	b, err := x.Bytes()
	require.NoError(t, err)
	require.Empty(t, b)
	x.Release()
}

func TestNamesThatAreNoKeysOfADictAreRefusedBeforeTheyAreSent(t *testing.T) {
	address, ctx := newBroker(t), limited(t)
	c := connect(t, address)
	spec := func(name string) client.Spec {
		return client.Spec{Name: name, DType: dlpack.Float32, Shape: []int64{1}}
	}
	_, err := c.AllocBundle(ctx, spec("x"), spec("y"), spec("x"))
	require.ErrorIs(t, err, protocol.ErrInvalid)
	topic, err := c.Topic(ctx, "t")
	require.NoError(t, err)
	x := tensor(t, c, 1)
	err = topic.Send(ctx, client.NewBundle(map[string]*client.Tensor{"": x, "x": x}))
	require.ErrorIs(t, err, protocol.ErrInvalid)
	require.NoError(t, topic.Send(ctx, client.NewBundle(map[string]*client.Tensor{"": x})))
	x.Release()
}
