package client_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/shortdir"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/stretchr/testify/require"
)

// newBroker runs a broker in this process and returns its address.
func newBroker(t testing.TB) string {
	t.Helper()
	return newBrokerWith(t, 1<<30)
}

func newBrokerWith(t testing.TB, memory uint64) string {
	t.Helper()
	b, err := broker.New(context.Background(), broker.Config{Dir: filepath.Join(shortdir.New(t), "r"), Memory: memory})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	return b.Socket()
}

func connect(t testing.TB, address string) *client.Client {
	t.Helper()
	c, err := client.Connect(context.Background(), client.WithAddress(address))
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func limited(t testing.TB) context.Context {
	return testkit.Context(t)
}

func TestSendHandsTheSameMemoryToAReader(t *testing.T) {
	address, ctx := newBroker(t), limited(t)
	a, b := connect(t, address), connect(t, address)
	out, err := a.Topic(ctx, "batches")
	require.NoError(t, err)
	in, err := b.Topic(ctx, "batches")
	require.NoError(t, err)
	r, err := in.Reader(ctx)
	require.NoError(t, err)
	for i := 0; i < 100; i++ {
		x, err := a.Alloc(ctx, dlpack.Float32, []int64{3, 5})
		require.NoError(t, err)
		v, err := client.Slice[float32](x)
		require.NoError(t, err)
		for k := range v {
			v[k] = float32(i*100 + k)
		}
		require.NoError(t, out.Send(ctx, x, client.Meta(map[string]int{"i": i})))
		x.Release()

		m, err := r.Receive(ctx)
		require.NoError(t, err)
		require.EqualValues(t, i+1, m.Sequence)
		got, err := client.Slice[float32](m.Tensor())
		require.NoError(t, err)
		require.Len(t, got, 15)
		for k := range got {
			require.EqualValues(t, i*100+k, got[k])
		}
		var meta map[string]int
		require.NoError(t, m.Meta(&meta))
		require.Equal(t, i, meta["i"])
		m.Release()
	}
}

func BenchmarkSendReceive(b *testing.B) {
	address, ctx := newBroker(b), context.Background()
	c, d := connect(b, address), connect(b, address)
	out, _ := c.Topic(ctx, "batches")
	in, _ := d.Topic(ctx, "batches")
	r, err := in.Reader(ctx)
	require.NoError(b, err)
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i++ {
		x, err := c.Alloc(ctx, dlpack.Float32, []int64{1024})
		if err != nil {
			b.Fatal(err)
		}
		if err := out.Send(ctx, x); err != nil {
			b.Fatal(err)
		}
		x.Release()
		m, err := r.TryReceive(ctx)
		if m == nil || err != nil {
			b.Fatal(err)
		}
		m.Release()
	}
}

func TestSmallQuotaServesManySessions(t *testing.T) {
	address, ctx := newBrokerWith(t, 8<<20), t.Context()
	for range 32 {
		c := connect(t, address)
		x, err := c.Alloc(ctx, dlpack.Float32, []int64{1000})
		require.NoError(t, err)
		t.Cleanup(x.Release)
	}
}
