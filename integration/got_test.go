package integration

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// A name that was read is read again from the broker's lane, which is mapped: no broker
// need answer.
func TestNameThatWasReadIsReadAgainWithoutTheBroker(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	setter, c := b.Connect(), b.Connect()
	set := func(v byte) uint64 {
		x, err := setter.Alloc(ctx, dlpack.Uint8, []int64{8})
		require.NoError(t, err)
		defer x.Release()
		bytes, err := x.Bytes()
		require.NoError(t, err)
		bytes[0] = v
		revision, err := setter.Set(ctx, "weights", x)
		require.NoError(t, err)
		return revision
	}
	reads := func(revision uint64, v byte) *client.Bundle {
		got, err := c.Get(ctx, "weights")
		require.NoError(t, err)
		require.Equal(t, revision, got.Revision)
		bytes, err := got.Tensors()[0].Bytes()
		require.NoError(t, err)
		require.Equal(t, v, bytes[0])
		return got
	}
	first := set(1)
	reads(first, 1).Release()

	b.Process().Stop()
	reads(first, 1).Release()
	b.Process().Cont()
	second := set(2)
	held := reads(second, 2)
	b.Kill()
	reads(second, 2).Release()
	b.Restart()
	reads(set(3), 3).Release()
	bytes, err := held.Tensors()[0].Bytes()
	require.NoError(t, err)
	require.EqualValues(t, 2, bytes[0])
	held.Release()

	require.NoError(t, setter.Delete(ctx, "weights"))
	_, err = c.Get(ctx, "weights")
	require.ErrorIs(t, err, protocol.ErrNotFound)
	reads(set(4), 4).Release()

	testkit.Until(t, "no session has it open, so that it begins anew", func() (bool, string) {
		require.NoError(t, c.Delete(ctx, "weights"))
		revision := set(5)
		return revision == 1, fmt.Sprint("revision ", revision)
	})
}

// eightBytes allocates a tensor, which is released before its client is closed.
func eightBytes(t *testing.T, c *client.Client) *client.Tensor {
	x, err := c.Alloc(testkit.Context(t), dlpack.Uint8, []int64{8})
	require.NoError(t, err)
	t.Cleanup(x.Release)
	return x
}

// The broker has 4,096 places for names, and that of a deleted one is free once no
// session has it open.
func TestNamesThatWereReadDoNotStayOpenWithoutABound(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	setter, c := b.Connect(), b.Connect()
	x := eightBytes(t, setter)
	for k := range 4200 {
		name := fmt.Sprintf("run/%d", k)
		_, err := setter.Set(ctx, name, x)
		require.NoError(t, err)
		got, err := c.Get(ctx, name)
		require.NoError(t, err)
		got.Release()
		require.NoError(t, setter.Delete(ctx, name))
	}
}

// A name that another session deletes is left by those that have read it: it would fill
// the share of the session that made it.
func TestNameThatAnotherDeletesIsLeft(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	setter, c := b.Connect(), b.Connect()
	x := eightBytes(t, setter)
	_, err := setter.Set(ctx, "weights", x)
	require.NoError(t, err)
	got, err := c.Get(ctx, "weights")
	require.NoError(t, err)
	defer got.Release()
	testkit.Until(t, "a name that no session has open begins anew", func() (bool, string) {
		require.NoError(t, setter.Delete(ctx, "weights"))
		revision, err := setter.Set(ctx, "weights", x)
		require.NoError(t, err)
		return revision == 1, fmt.Sprint("revision ", revision)
	})
}
