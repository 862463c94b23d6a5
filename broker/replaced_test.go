package broker_test

import (
	"context"
	"encoding/binary"
	"os/exec"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
)

// TestClientsHandOverWhileBrokersAreKilled has real clients put and get while one
// broker after the other is killed under them.
func TestClientsHandOverWhileBrokersAreKilled(t *testing.T) {
	t.Run("memfds", func(t *testing.T) { handOverWhileBrokersAreKilled(t, "") })
	t.Run("files", func(t *testing.T) { handOverWhileBrokersAreKilled(t, t.TempDir()) })
}

func handOverWhileBrokersAreKilled(t *testing.T, memory string) {
	const brokers = 3
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	old, socket, instance := first(t, memory)
	dial := func(name string) *client.Client {
		c, err := client.Connect(ctx, client.WithAddress(socket), client.WithStart(false), client.WithName(name))
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	put, get := dial("put"), dial("get")
	out, err := put.Queue(ctx, "work", client.Depth(16))
	require.NoError(t, err)
	in, err := get.Queue(ctx, "work")
	require.NoError(t, err)

	var wg sync.WaitGroup
	stop := make(chan struct{})
	var sent uint64
	wg.Go(func() {
		defer out.End(ctx)
		for {
			select {
			case <-stop:
				return
			default:
			}
			x, err := put.Alloc(ctx, dlpack.Uint64, []int64{512})
			if !assert.NoError(t, err) {
				return
			}
			s, err := client.Slice[uint64](x)
			if !assert.NoError(t, err) {
				return
			}
			sent++
			s[0], s[511] = sent, sent
			if !assert.NoError(t, out.Put(ctx, x)) {
				return
			}
			x.Release()
		}
	})
	var got uint64
	received := make(chan uint64) // unbuffered: what is taken here was handed over just now
	wg.Go(func() {
		defer close(received)
		for {
			m, err := in.Get(ctx)
			if err != nil {
				return
			}
			b, err := m.Tensor().Bytes()
			if !assert.NoError(t, err) {
				return
			}
			received <- binary.NativeEndian.Uint64(b)
			m.Release()
		}
	})
	take := func(n int) {
		for range n {
			v, ok := <-received
			require.True(t, ok)
			got++
			require.Equal(t, got, v)
		}
	}
	take(1000)
	kept, err := put.Alloc(ctx, dlpack.Uint64, []int64{8})
	require.NoError(t, err)
	_, err = put.Set(ctx, "kept", kept)
	require.NoError(t, err)
	for i := range brokers {
		old.kill()
		take(500) // without any broker
		if i == brokers-1 {
			break
		}
		old = start(t, socket, "broker", func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, memoryVariable+"="+memory) })
		var id string
		old.hear(&id)
		require.Equal(t, instance, id)
		take(500)
	}
	b := next(t, socket, func(c *broker.Config) { c.MemoryDir = memory })()
	require.Equal(t, instance, b.ID())
	take(500)
	close(stop)
	for v := range received {
		got++
		require.Equal(t, got, v)
	}
	wg.Wait()
	require.Equal(t, sent, got)
	require.Equal(t, 1, b.Status().Counts.Names)
	ws, err := get.Get(ctx, "kept")
	require.NoError(t, err)
	ws.Release()
	kept.Release()
	require.NoError(t, get.Delete(ctx, "kept"))
	require.NoError(t, in.Close())
	require.NoError(t, out.Close())
	require.NoError(t, put.Close())
	require.NoError(t, get.Close())
	eventually(t, "nothing is held or lost", func() bool {
		st := b.Status()
		return freed(st) && st.Counts.Sessions == 0 && st.Counts.AdoptedLanes == 0
	})
}

func init() {
	// feeder puts ten items with a real client and stays.
	parts["feeder"] = func(c *played) {
		ctx := context.Background()
		cl, err := client.Connect(ctx, client.WithAddress(c.socket), client.WithStart(false), client.WithName("feeder"))
		require.NoError(c, err)
		q, err := cl.Queue(ctx, "work")
		require.NoError(c, err)
		for i := range uint64(10) {
			x, err := cl.Alloc(ctx, dlpack.Uint64, []int64{512})
			require.NoError(c, err)
			s, err := client.Slice[uint64](x)
			require.NoError(c, err)
			s[0] = i
			require.NoError(c, q.Put(ctx, x))
			x.Release()
		}
		c.tell("sent")
		c.hear()
	}
}

func TestSenderKilledWhileNoBrokerRanIsStillReceived(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	old, socket, instance := first(t, "")
	c, err := client.Connect(ctx, client.WithAddress(socket), client.WithStart(false), client.WithName("taker"))
	require.NoError(t, err)
	defer c.Close()
	q, err := c.Queue(ctx, "work")
	require.NoError(t, err)
	feeder := start(t, socket, "feeder")
	var said string
	feeder.hear(&said)
	for i := range uint64(10) {
		if i == 1 {
			old.kill()
			feeder.kill()
			b := next(t, socket, nil)()
			require.Equal(t, instance, b.ID())
			eventually(t, "the feeder has ended", func() bool { return b.Status().Counts.Sessions == 1 })
			require.Equal(t, 1, b.Status().Counts.AdoptedLanes)
			defer func() {
				eventually(t, "its memory goes when all is taken", func() bool {
					st := b.Status()
					return freed(st) && st.Counts.AdoptedLanes == 0
				})
			}()
		}
		m, err := q.Get(ctx)
		require.NoError(t, err)
		bytes, err := m.Tensor().Bytes()
		require.NoError(t, err)
		require.Equal(t, i, binary.NativeEndian.Uint64(bytes))
		m.Release()
	}
}
