package integration

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// numbered sets a name to a tensor of one number.
func numbered(t *testing.T, ctx context.Context, c *client.Client, name string, n int64, opts ...client.SetOption) (uint64, error) {
	t.Helper()
	x, err := c.Alloc(ctx, dlpack.Int64, []int64{4})
	require.NoError(t, err)
	defer x.Release()
	all, err := client.Slice[int64](x)
	require.NoError(t, err)
	for i := range all {
		all[i] = n
	}
	return c.Set(ctx, name, x, opts...)
}

// numberOf reads it. The bundle is released.
func numberOf(t *testing.T, b *client.Bundle) int64 {
	t.Helper()
	defer b.Release()
	all, err := client.Slice[int64](b.Tensors()[0])
	require.NoError(t, err)
	for _, n := range all {
		require.Equal(t, all[0], n, "a revision is whole")
	}
	return all[0]
}

func TestNameIsReadOnAnotherHost(t *testing.T) {
	h := startHosts(t)
	a, b := h.connect()
	first, err := numbered(t, h.ctx, a, "weights/actor", 7)
	require.NoError(t, err)
	got, err := b.Get(h.ctx, "weights/actor")
	require.NoError(t, err)
	require.Equal(t, first, got.Revision)
	require.False(t, got.Stale)
	require.Less(t, got.Age(), time.Minute)
	require.EqualValues(t, 7, numberOf(t, got))

	w, err := b.Watch(h.ctx, "weights/actor")
	require.NoError(t, err)
	defer w.Close()
	last := uint64(0)
	for n := int64(8); n < 20; n++ {
		revision, err := numbered(t, h.ctx, a, "weights/actor", n)
		require.NoError(t, err)
		for last < revision {
			x, err := w.Next(h.ctx)
			require.NoError(t, err)
			require.Greater(t, x.Revision, last)
			last = x.Revision
			if got := numberOf(t, x); last == revision {
				require.Equal(t, n, got)
			}
		}
	}

	second, err := numbered(t, h.ctx, b, "weights/actor", 99)
	require.NoError(t, err)
	require.Greater(t, second, last)
	testkit.Until(t, "the first host has what the other one has set", func() (bool, string) {
		x, err := a.Get(h.ctx, "weights/actor")
		require.NoError(t, err)
		defer x.Release()
		return x.Revision == second, ""
	})
	_, err = a.Get(h.ctx, "weights/none")
	require.ErrorIs(t, err, protocol.ErrNotFound)
}

// setTogether runs one set on each host at the same time, and gives their results.
func setTogether(t *testing.T, ctx context.Context, a, b *client.Client, name string, n int64) (revisions [2]uint64, errs [2]error) {
	t.Helper()
	begin := make(chan struct{})
	var both sync.WaitGroup
	for i, c := range []*client.Client{a, b} {
		both.Go(func() {
			<-begin
			revisions[i], errs[i] = numbered(t, ctx, c, name, n+int64(i))
		})
	}
	close(begin)
	both.Wait()
	return revisions, errs
}

func TestOneOfTwoSetsAtATimeWins(t *testing.T) {
	h := startHosts(t)
	a, b := h.connect()
	conflicts := 0
	for n := int64(0); n < 40; n += 2 {
		revisions, errs := setTogether(t, h.ctx, a, b, "x", n)
		for i, err := range errs {
			if err == nil {
				continue
			}
			require.ErrorIs(t, err, protocol.ErrConflict)
			require.NoError(t, errs[1-i], "one wins")
			conflicts++
			var e *protocol.Error
			require.ErrorAs(t, err, &e)
			host, _ := e.Detail["host"].(string)
			require.NotEmpty(t, host, "the conflict names the winner's host")
		}
		require.NotEqual(t, revisions[0], revisions[1])
		// One that begins after another has returned does not conflict.
		_, err := numbered(t, h.ctx, []*client.Client{a, b}[n/2%2], "x", n)
		require.NoError(t, err)
	}
	require.NotZero(t, conflicts, "sets at the same time conflict")

	current, err := numbered(t, h.ctx, a, "x", 1)
	require.NoError(t, err)
	_, err = numbered(t, h.ctx, b, "x", 2, client.Replaces(current-1))
	require.ErrorIs(t, err, protocol.ErrConflict)
	_, err = numbered(t, h.ctx, b, "x", 2, client.Replaces(current))
	require.NoError(t, err)
}

// notSet waits until a name is set nowhere.
func notSet(t *testing.T, ctx context.Context, c *client.Client, name string) {
	t.Helper()
	testkit.Until(t, "the name is not set", func() (bool, string) {
		x, err := c.Get(ctx, name)
		if err == nil {
			x.Release()
			return false, "it is"
		}
		require.ErrorIs(t, err, protocol.ErrNotFound)
		return true, ""
	})
}

func TestNameIsDeletedOnAllHosts(t *testing.T) {
	h := startHosts(t)
	a, b := h.connect()
	first, err := numbered(t, h.ctx, a, "x", 1)
	require.NoError(t, err)
	w, err := b.Watch(h.ctx, "x")
	require.NoError(t, err)
	defer w.Close()
	got, err := w.Next(h.ctx)
	require.NoError(t, err)
	require.EqualValues(t, 1, numberOf(t, got))
	require.NoError(t, b.Delete(h.ctx, "x"))
	notSet(t, h.ctx, a, "x")
	notSet(t, h.ctx, b, "x")
	require.ErrorIs(t, a.Delete(h.ctx, "x"), protocol.ErrNotFound)
	second, err := numbered(t, h.ctx, a, "x", 2)
	require.NoError(t, err)
	require.Greater(t, second, first, "numbers go on")
	got, err = w.Next(h.ctx)
	require.NoError(t, err)
	require.Equal(t, second, got.Revision)
	require.EqualValues(t, 2, numberOf(t, got))
}

func TestEphemeralNameGoesWithItsSessionOnAllHosts(t *testing.T) {
	h := startHosts(t)
	a, b := h.connect()
	setter := h.a.Connect(client.WithNamespace("team"))
	_, err := numbered(t, h.ctx, setter, "run", 1, client.Ephemeral())
	require.NoError(t, err)
	_, err = numbered(t, h.ctx, setter, "kept", 1, client.Ephemeral())
	require.NoError(t, err)
	got, err := b.Get(h.ctx, "run")
	require.NoError(t, err)
	got.Release()
	second, err := numbered(t, h.ctx, b, "kept", 2)
	require.NoError(t, err, "another host has set it since, and it is not ephemeral")
	require.NoError(t, setter.Close())
	notSet(t, h.ctx, b, "run")
	notSet(t, h.ctx, a, "run")
	got, err = a.Get(h.ctx, "kept")
	require.NoError(t, err)
	require.Equal(t, second, got.Revision)
	got.Release()
}

func TestLongNameAndLiveNameOfAnotherHost(t *testing.T) {
	h := startHosts(t)
	a, b := h.connect()
	all := map[string]*client.Tensor{}
	want := map[string][]byte{}
	for i := range 700 {
		name := fmt.Sprintf("layer/%d/weight", i)
		all[name], want[name] = random(t, h.ctx, a, 100+i, uint64(i))
	}
	bundle := client.NewBundle(all)
	revision, err := a.Set(h.ctx, "state", bundle, client.Meta("epoch 3"))
	require.NoError(t, err)
	got, err := b.Get(h.ctx, "state", client.WaitForName(20*time.Second))
	require.NoError(t, err)
	defer got.Release()
	require.Equal(t, revision, got.Revision)
	var meta string
	require.NoError(t, got.Meta(&meta))
	require.Equal(t, "epoch 3", meta)
	for _, x := range all {
		x.Release()
	}
	require.Len(t, got.Names(), len(all))
	for name, bytes := range want {
		have, err := got.Tensor(name).Bytes()
		require.NoError(t, err, name)
		require.Equal(t, bytes, have, name)
	}

	_, err = numbered(t, h.ctx, a, "live", 1, client.Live())
	require.NoError(t, err)
	testkit.Until(t, "the other host knows it", func() (bool, string) {
		_, err = b.Get(h.ctx, "live")
		return protocol.CodeOf(err) != protocol.CodeNotFound, fmt.Sprint(err)
	})
	require.ErrorIs(t, err, protocol.ErrUnsupported)
	require.ErrorContains(t, err, "is live")
}
