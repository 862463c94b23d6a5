package integration

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

func TestImpossibleShapesAreRefused(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	for what, k := range map[string]struct {
		dtype dlpack.DType
		shape []int64
	}{
		"negative":          {dlpack.Float32, []int64{4, -1}},
		"beyond 64 bits":    {dlpack.Float32, []int64{1 << 32, 1 << 32}},
		"bytes past 64":     {dlpack.Float64, []int64{math.MaxInt64 / 4}},
		"negative and zero": {dlpack.Float32, []int64{0, -1}},
		"unknown dtype":     {dlpack.DType{Code: 200, Bits: 8, Lanes: 1}, []int64{4}},
		"no bits":           {dlpack.DType{Code: dlpack.CodeFloat, Bits: 0, Lanes: 1}, []int64{4}},
		"too many axes":     {dlpack.Float32, make([]int64, 65)},
	} {
		_, err := c.Alloc(ctx, k.dtype, k.shape)
		require.ErrorIs(t, err, protocol.ErrInvalid, what)
		_, err = c.AllocBundle(ctx, client.Spec{Name: "x", DType: k.dtype, Shape: k.shape})
		require.ErrorIs(t, err, protocol.ErrInvalid, what)
	}
	for _, shape := range [][]int64{{0, 1 << 62, 1 << 62}, {1 << 62, 1 << 62, 0}} {
		x, err := c.Alloc(ctx, dlpack.Float32, shape)
		if err == nil { // no elements need no memory
			require.Zero(t, x.NumBytes())
			x.Release()
			continue
		}
		require.ErrorIs(t, err, protocol.ErrInvalid)
	}
	x, err := c.Alloc(ctx, dlpack.Float32, []int64{4, 4})
	require.NoError(t, err)
	for _, k := range []struct {
		shape, strides []int64
		offset         int64
	}{{[]int64{17}, nil, 0}, {[]int64{16}, nil, 1}, {[]int64{2}, []int64{-1}, 0}, {[]int64{2}, []int64{16}, 0},
		{[]int64{2}, []int64{math.MaxInt64}, 0}, {[]int64{2}, []int64{math.MinInt64}, 8}, {[]int64{1}, nil, -1}, {[]int64{1}, nil, math.MaxInt64}} {
		_, err := x.AsStrided(k.shape, k.strides, k.offset)
		require.ErrorIs(t, err, protocol.ErrInvalid, "%v %v %d", k.shape, k.strides, k.offset)
	}
	x.Release()
	testkit.AuditEmpty(t, b, c)
}

func TestNamesThatAreNoSubjectsAreRefused(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	x, err := filled(ctx, c, 8, 1)
	require.NoError(t, err)
	long := make([]byte, 201)
	for i := range long {
		long[i] = 'a'
	}
	for _, name := range []string{"a.b", "a*", ">", "a//b", "/a", "a/", "a b", "ä", "a\x00", string(long)} {
		_, err := c.Topic(ctx, name)
		require.ErrorIs(t, err, protocol.ErrInvalid, name)
		_, err = c.Queue(ctx, name)
		require.ErrorIs(t, err, protocol.ErrInvalid, name)
		_, err = c.Set(ctx, name, x)
		require.ErrorIs(t, err, protocol.ErrInvalid, name)
		_, err = c.Watch(ctx, name)
		require.ErrorIs(t, err, protocol.ErrInvalid, name)
		_, err = c.Get(ctx, name)
		require.ErrorIs(t, err, protocol.ErrInvalid, name)
		require.ErrorIs(t, c.Delete(ctx, name), protocol.ErrInvalid, name)
	}
	for _, ns := range []string{"a/b", "a.b", "*", "a b", string(long[:33])} {
		_, err := b.TryConnect(client.WithNamespace(ns))
		require.ErrorIs(t, err, protocol.ErrInvalid, ns)
	}
	_, err = c.Set(ctx, "", x)
	require.ErrorIs(t, err, protocol.ErrInvalid)
	x.Release()
	testkit.AuditEmpty(t, b, c)
}

func TestOptionsThatDifferAreAConflictThatNamesBoth(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	maker, c := b.Connect(client.WithName("the-maker")), b.Connect()
	topic, err := maker.Topic(ctx, "t", client.Depth(5), client.Linger(3*time.Second))
	require.NoError(t, err)
	_, err = maker.Queue(ctx, "q", client.Depth(5), client.Redeliver(true))
	require.NoError(t, err)
	for option, k := range map[string]client.TopicOption{
		"depth": client.Depth(6), "overwrite": client.Overwrite(false), "linger": client.Linger(4 * time.Second),
		"description": client.Description(2048)} {
		_, err := c.Topic(ctx, "t", k)
		require.ErrorIs(t, err, protocol.ErrConflict, option)
		var e *protocol.Error
		require.True(t, errors.As(err, &e))
		require.Equal(t, option, e.Detail["option"])
		require.Contains(t, err.Error(), "the-maker")
		require.NotNil(t, e.Detail["have"])
		require.NotNil(t, e.Detail["want"])
	}
	_, err = c.Queue(ctx, "q", client.Redeliver(false))
	require.ErrorIs(t, err, protocol.ErrConflict)
	_, err = c.Queue(ctx, "t")
	require.ErrorIs(t, err, protocol.ErrConflict, "a topic is no queue")
	_, err = c.Topic(ctx, "q")
	require.ErrorIs(t, err, protocol.ErrConflict, "a queue is no topic")
	same, err := c.Topic(ctx, "t", client.Depth(5))
	require.NoError(t, err)
	require.Equal(t, topic.Info().ID, same.Info().ID)
	taken, err := c.Topic(ctx, "t")
	require.NoError(t, err, "an option left out takes what exists")
	require.EqualValues(t, 5, taken.Info().Depth)
	for _, bad := range []client.TopicOption{client.Depth(0), client.Depth(-1), client.Depth(1 << 30), client.Depth(1<<32 + 4),
		client.Description(-1), client.Description(1 << 30), client.Linger(-time.Second)} {
		_, err := c.Topic(ctx, "bad", bad)
		require.ErrorIs(t, err, protocol.ErrInvalid)
	}
	_, err = c.Topic(ctx, "bad", client.MustExist())
	require.ErrorIs(t, err, protocol.ErrNotFound, "nothing was made with another value than was asked for")
	for _, bad := range []client.ReaderOption{client.Start(-1), client.Start(3), client.Group("a/b")} {
		_, err := topic.Reader(ctx, bad)
		require.ErrorIs(t, err, protocol.ErrInvalid)
	}
	_, err = topic.Reader(ctx, client.Group("a/b"))
	require.ErrorContains(t, err, `group "a/b"`)
}

// What comes of asking a bundle for a tensor that it has not.
func TestSendOfNothingIsAnErrorThatSaysSo(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	topic, err := c.Topic(ctx, "t")
	require.NoError(t, err)
	missing := client.NewBundle(nil).Tensor("missing")
	for _, v := range []any{missing, (*client.Bundle)(nil), map[string]*client.Tensor{"x": missing}, []any{missing}} {
		err := topic.Send(ctx, v)
		require.ErrorIs(t, err, protocol.ErrInvalid, "%T", v)
		require.ErrorContains(t, err, "is nil", "%T", v)
	}
	require.NoError(t, topic.Send(ctx, nil), "no value is one")
}

func TestTimeoutsAreTheContextsDeadlineToo(t *testing.T) {
	b := testkit.StartBroker(t)
	c := b.Connect()
	queue, err := c.Queue(testkit.Context(t), "q", client.Depth(1))
	require.NoError(t, err)
	topic, err := c.Topic(testkit.Context(t), "t")
	require.NoError(t, err)
	reader, err := topic.Reader(testkit.Context(t))
	require.NoError(t, err)
	soon := func() context.Context {
		ctx, cancel := context.WithTimeout(testkit.Context(t), 10*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	_, err = queue.Get(soon())
	require.ErrorIs(t, err, protocol.ErrEmpty)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, queue.Put(testkit.Context(t), 1))
	err = queue.Put(soon(), 2)
	require.ErrorIs(t, err, protocol.ErrFull)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = reader.Receive(soon())
	require.ErrorIs(t, err, protocol.ErrTimeout)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestOpenOfATopicThatMustExist(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	_, err := c.Topic(ctx, "none", client.MustExist())
	require.ErrorIs(t, err, protocol.ErrNotFound)
	_, err = c.Queue(ctx, "none", client.MustExist())
	require.ErrorIs(t, err, protocol.ErrNotFound)
	_, err = c.OpenPrivate(ctx, "00")
	require.ErrorIs(t, err, protocol.ErrNotFound)
}

func TestQuotaOfASessionIsATypedErrorAndRecovers(t *testing.T) {
	b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.SessionMemory = 16 << 20 })
	ctx := testkit.Context(t)
	c, d := b.Connect(client.WithName("greedy")), b.Connect()
	x, err := c.Alloc(ctx, dlpack.Uint8, []int64{12 << 20})
	require.NoError(t, err)
	_, err = c.Alloc(ctx, dlpack.Uint8, []int64{8 << 20})
	require.ErrorIs(t, err, protocol.ErrQuotaExceeded)
	var e *protocol.Error
	require.True(t, errors.As(err, &e))
	require.Contains(t, err.Error(), "greedy", "the largest holders are named")
	require.NotEmpty(t, e.Remedy)
	y, err := d.Alloc(ctx, dlpack.Uint8, []int64{12 << 20})
	require.NoError(t, err, "another session has a quota of its own")
	y.Release()
	x.Release()
	x, err = c.Alloc(ctx, dlpack.Uint8, []int64{15 << 20})
	require.NoError(t, err, "what was released makes room, whatever its size was")
	x.Release()
	testkit.AuditEmpty(t, b, c, d)
}

func TestQuotaOfAllIsSharedAndIdleOwnersGiveBack(t *testing.T) {
	b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.Memory = 64 << 20 })
	ctx := testkit.Context(t)
	c, d := b.Connect(), b.Connect()
	x, err := c.Alloc(ctx, dlpack.Uint8, []int64{48 << 20})
	require.NoError(t, err)
	_, err = d.Alloc(ctx, dlpack.Uint8, []int64{32 << 20})
	require.ErrorIs(t, err, protocol.ErrQuotaExceeded)
	x.Release()
	// The owner is idle and keeps its memory warm; asked by the broker it returns
	// it, so that another can have it.
	testkit.Until(t, "the idle owner has given its memory back", func() (bool, string) {
		y, err := d.Alloc(ctx, dlpack.Uint8, []int64{32 << 20})
		if err != nil {
			require.ErrorIs(t, err, protocol.ErrQuotaExceeded)
			return false, err.Error()
		}
		y.Release()
		return true, ""
	})
	testkit.AuditEmpty(t, b, c, d)
}

func TestMoreMemoryThanTheMachineHasIsOutOfMemory(t *testing.T) {
	b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.Memory = 1 << 50 })
	ctx := testkit.Context(t)
	c := b.Connect()
	_, err := c.Alloc(ctx, dlpack.Uint8, []int64{1 << 49})
	require.ErrorIs(t, err, protocol.ErrOutOfMemory)
	_, err = c.Alloc(ctx, dlpack.Uint8, []int64{1 << 60})
	require.ErrorIs(t, err, protocol.ErrOutOfMemory)
	x, err := c.Alloc(ctx, dlpack.Uint8, []int64{1 << 10})
	require.NoError(t, err, "a refusal costs nothing")
	x.Release()
	testkit.AuditEmpty(t, b, c)
}

func TestSendOfWhatCannotBeSent(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	topic, err := c.Topic(ctx, "t")
	require.NoError(t, err)
	x, err := filled(ctx, c, 8, 1)
	require.NoError(t, err)
	require.Error(t, topic.Send(ctx, make(chan int)))
	require.ErrorIs(t, topic.Send(ctx, x, client.Meta(func() {})), protocol.ErrInvalid)
	require.ErrorIs(t, topic.Send(ctx, (*client.Tensor)(nil)), protocol.ErrInvalid)
	require.ErrorIs(t, topic.Send(ctx, map[string]*client.Tensor{"x": nil}), protocol.ErrInvalid)
	x.Release()
	require.ErrorIs(t, topic.Send(ctx, x), protocol.ErrClosed, "a released tensor")
	require.NoError(t, topic.Close())
	testkit.AuditEmpty(t, b, c)
}

// Both sessions are named: the error is met where a program has more than one.
func TestTensorOfAnotherSessionIsRefusedAndNamed(t *testing.T) {
	b := testkit.StartBroker(t)
	c, other := b.Connect(), b.Connect()
	ctx := testkit.Context(t)
	q, err := c.Queue(ctx, "q")
	require.NoError(t, err)
	x, err := other.Alloc(ctx, dlpack.Uint8, []int64{1})
	require.NoError(t, err)
	defer x.Release()

	require.ErrorContains(t, q.Put(ctx, x),
		fmt.Sprintf("the tensor belongs to another session: to %d, and this is %d (send it in its own session, or open its handle in this one, or copy its elements into this session: ", other.Session(), c.Session()))
	require.ErrorContains(t, q.Put(ctx, map[string]*client.Tensor{"a": x}), `tensor "a" belongs to another session`)
	h, err := x.Handle(ctx)
	require.NoError(t, err)
	mine, err := c.Open(ctx, h)
	require.NoError(t, err)
	defer mine.Release()
	require.NoError(t, q.Put(ctx, mine))
	require.NoError(t, other.Close())
	require.ErrorContains(t, q.Put(ctx, x),
		fmt.Sprintf("the tensor belongs to a session that was closed: to %d, and this is %d (copy its elements into this session: ", other.Session(), c.Session()))
}
