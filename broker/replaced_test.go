package broker_test

import (
	"context"
	"encoding/binary"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
)

// TestClientsHandOverWhileBrokersAreKilled has real clients put and get while one
// broker after the other is killed under them.
func TestClientsHandOverWhileBrokersAreKilled(t *testing.T) {
	const brokers = 3
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	old, socket, instance := first(t, "")
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
		old = start(t, socket, "broker")
		var id string
		old.hear(&id)
		require.Equal(t, instance, id)
		take(500)
	}
	b := next(t, socket, nil)()
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
}
