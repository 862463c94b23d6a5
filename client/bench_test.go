package client_test

import (
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
