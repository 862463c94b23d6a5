package client_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/protocol"
)

// counts asks the broker how full its tables are.
func counts(t testing.TB, c *client.Client) broker.Counts {
	t.Helper()
	var st broker.Status
	require.NoError(t, c.Broker(limited(t), protocol.OpStatus, nil, &st))
	return st.Counts
}

// onlyOne waits until c's session is the only one, and nothing is held.
func onlyOne(t testing.TB, c *client.Client) {
	t.Helper()
	require.Eventually(t, func() bool {
		n := counts(t, c)
		return n.Sessions == 1 && n.Storages == 0 && n.AdoptedLanes == 0
	}, 90*time.Second, 2*time.Millisecond, "nothing is left")
}

// churn has others use what memory is free.
func churn(t testing.TB, c *client.Client) {
	t.Helper()
	for range 50 {
		x := tensor(t, c, make([]float32, 1<<10)...)
		v := values(t, x)
		for i := range v {
			v[i] = -1
		}
		x.Release()
	}
}

func TestHeldBytesOfAClosedClientStayAsTheyAre(t *testing.T) {
	address, ctx := newBroker(t), limited(t)
	other, c := connect(t, address), connect(t, address)
	topic, err := other.Topic(ctx, "t", client.Depth(1))
	require.NoError(t, err)
	in, err := c.Topic(ctx, "t")
	require.NoError(t, err)
	r, err := in.Reader(ctx)
	require.NoError(t, err)
	theirs := tensor(t, other, 1, 2, 3)
	require.NoError(t, topic.Send(ctx, theirs))
	theirs.Release()
	m, err := r.Receive(ctx)
	require.NoError(t, err)
	own := tensor(t, c, 4, 5, 6)
	require.NoError(t, in.Send(ctx, own)) // its lane counts it as well
	exported := tensor(t, c, 7, 8, 9)
	x, err := exported.ToDLPack()
	require.NoError(t, err)
	inside := values(t, exported)
	exported.Release()

	require.NoError(t, c.Close())
	require.Equal(t, 1, counts(t, other).Closed)
	for range 3 {
		churn(t, other)
		require.NoError(t, topic.Send(ctx, nil)) // it does not keep the message
	}
	require.Equal(t, []float32{1, 2, 3}, values(t, m.Tensor()))
	require.Equal(t, []float32{4, 5, 6}, values(t, own))
	require.Equal(t, []float32{7, 8, 9}, inside)
	_, err = own.ToDLPack()
	require.ErrorIs(t, err, protocol.ErrClosed)

	m.Release()
	own.Release()
	require.Equal(t, []float32{7, 8, 9}, inside, "the export still holds it")
	require.NoError(t, dlpack.Release(x))
	for range 2 { // messages of the closed one leave the topic
		require.NoError(t, topic.Send(ctx, nil))
	}
	onlyOne(t, other)
}

// A program that opens and closes again and again, and keeps something each time, has
// one closed session.
func TestClosedClientsThatHoldShareOneSession(t *testing.T) {
	times := 5000
	if testing.Short() {
		times = 300
	}
	address, ctx := newBroker(t), limited(t)
	publisher := connect(t, address)
	x := tensor(t, publisher, 1, 2, 3)
	_, err := publisher.Set(ctx, "weights", x)
	require.NoError(t, err)
	x.Release()
	kept := make([]*client.Bundle, times)
	for i := range kept {
		c, err := client.Connect(ctx, client.WithAddress(address))
		require.NoError(t, err)
		kept[i], err = c.Get(ctx, "weights")
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
	require.Equal(t, 2, counts(t, publisher).Sessions, "the publisher's, and one that keeps")
	require.NoError(t, publisher.Delete(ctx, "weights"))
	churn(t, publisher)
	for _, b := range kept {
		require.Equal(t, []float32{1, 2, 3}, values(t, b.Tensors()[0]))
	}
	for i, b := range kept {
		if i == times-1 {
			require.Equal(t, []float32{1, 2, 3}, values(t, b.Tensors()[0]))
		}
		b.Release()
	}
	onlyOne(t, publisher)
}

// References are dropped beside the moving of their counts: none is lost, none is left.
func TestReleasesBesideClosesLoseNoCount(t *testing.T) {
	address, ctx := newBroker(t), limited(t)
	observer := connect(t, address)
	source := tensor(t, observer, 11)
	_, err := observer.Set(ctx, "n", source)
	require.NoError(t, err)
	source.Release()
	var all sync.WaitGroup
	for range 40 {
		c, err := client.Connect(ctx, client.WithAddress(address))
		require.NoError(t, err)
		var held []*client.Tensor
		var exports []*dlpack.ManagedTensorVersioned
		for i := range 200 {
			x := tensor(t, c, float32(i))
			held = append(held, x)
			if i%4 == 0 {
				e, err := x.ToDLPack()
				require.NoError(t, err)
				exports = append(exports, e)
			}
		}
		for range 20 {
			b, err := c.Get(ctx, "n")
			require.NoError(t, err)
			held = append(held, b.Tensors()[0].Retain())
			b.Release()
		}
		all.Go(func() {
			for i, x := range held {
				v, err := client.Slice[float32](x)
				assert.NoError(t, err)
				want := float32(i)
				if i >= 200 {
					want = 11
				}
				assert.Equal(t, want, v[0])
				x.Release()
			}
		})
		all.Go(func() {
			for _, e := range exports {
				assert.NoError(t, dlpack.Release(e))
			}
		})
		require.NoError(t, c.Close())
	}
	all.Wait()
	require.NoError(t, observer.Delete(ctx, "n"))
	onlyOne(t, observer)
}

// The release of a redelivered item acknowledges it and rings its sender: any goroutine
// may do so, beside the taker, and while the client is closed.
func TestRedeliveredItemsAreReleasedByAnyGoroutine(t *testing.T) {
	address, ctx := newBroker(t), limited(t)
	p, c := connect(t, address), connect(t, address)
	put, err := p.Queue(ctx, "q", client.Depth(4), client.Redeliver(true))
	require.NoError(t, err)
	get, err := c.Queue(ctx, "q")
	require.NoError(t, err)
	const items = 400
	var all sync.WaitGroup
	all.Go(func() {
		for i := range items {
			x, err := p.Alloc(ctx, dlpack.Float32, []int64{1})
			if !assert.NoError(t, err) {
				return
			}
			v, _ := client.Slice[float32](x)
			v[0] = float32(i)
			assert.NoError(t, put.Put(ctx, x))
			x.Release()
		}
	})
	for i := range items {
		m, err := get.Get(ctx)
		require.NoError(t, err)
		require.Equal(t, []float32{float32(i)}, values(t, m.Tensor()))
		all.Go(m.Release)
	}
	require.NoError(t, c.Close()) // some are not acknowledged: they go to another
	all.Wait()
}

func TestCloseTwiceAndFromSeveralGoroutinesEndsOnce(t *testing.T) {
	address := newBroker(t)
	observer, c := connect(t, address), connect(t, address)
	x := tensor(t, c, 1)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { assert.NoError(t, c.Close()) })
	}
	all.Wait()
	require.Equal(t, []float32{1}, values(t, x))
	x.Release()
	onlyOne(t, observer)
	_, err := c.Alloc(context.Background(), dlpack.Float32, []int64{1})
	require.ErrorIs(t, err, protocol.ErrClosed)
}
