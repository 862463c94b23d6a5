package client_test

import (
	"context"
	"testing"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/stretchr/testify/require"
)

func BenchmarkAllocRelease(b *testing.B) {
	address, ctx := newBroker(b), limited(b)
	c := connect(b, address)
	b.ReportAllocs()
	for b.Loop() {
		x, err := c.Alloc(ctx, dlpack.Float32, []int64{64})
		if err != nil {
			b.Fatal(err)
		}
		x.Release()
	}
}

func BenchmarkPutGet(b *testing.B) {
	address, ctx := newBroker(b), limited(b)
	a, other := connect(b, address), connect(b, address)
	put, err := a.Queue(ctx, "q", client.Depth(8))
	require.NoError(b, err)
	get, err := other.Queue(ctx, "q")
	require.NoError(b, err)
	x := tensor(b, a, 1, 2, 3, 4)
	defer x.Release()
	b.ReportAllocs()
	for b.Loop() {
		if err := put.Put(ctx, x); err != nil {
			b.Fatal(err)
		}
		m, err := get.Get(ctx)
		if err != nil {
			b.Fatal(err)
		}
		if m.Tensor() == nil {
			b.Fatal("no tensor")
		}
		m.Release()
	}
}

func BenchmarkCall(b *testing.B) {
	ctx, c, p := pair(b)
	_, err := client.Handle(p, "int", func(_ context.Context, x int64) (int64, error) { return x, nil })
	require.NoError(b, err)
	_, err = client.Handle(p, "tensor", func(_ context.Context, x *client.Tensor) (*client.Tensor, error) { return x, nil })
	require.NoError(b, err)
	ctx = context.WithoutCancel(ctx)
	b.Run("int", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := client.Call[int64](ctx, c, "int", int64(1)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("tensor", func(b *testing.B) {
		x := tensor(b, c, 1, 2, 3, 4)
		defer x.Release()
		b.ReportAllocs()
		for b.Loop() {
			y, err := client.Call[*client.Tensor](ctx, c, "tensor", x)
			if err != nil {
				b.Fatal(err)
			}
			y.Release()
		}
	})
}
