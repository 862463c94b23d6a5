package main_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/protocol"
)

// Which process has an item is known to the next broker: others that have its bytes too, as its sender does, keep it
// from no taker.
func TestQueueOfAnEvictedTakerGoesOnAtTheNextBroker(t *testing.T) {
	for _, killed := range []string{"later", "first"} {
		t.Run(killed, func(t *testing.T) {
			p := newPlace(t)
			former := p.serve()
			c := p.client()
			_, err := c.Set(p.ctx(), "held", p.tensor(c, 1))
			require.NoError(t, err)
			q, err := c.Queue(p.ctx(), "work", client.Redeliver(true))
			require.NoError(t, err)
			for range 2 {
				require.NoError(t, q.Put(p.ctx(), p.tensor(c, 1)))
			}
			holder := p.holder("item")
			p.must("evict", fmt.Sprint(p.sessionsOf("holder")[0].Serial), "--yes")
			require.NoError(t, former.cmd.Process.Kill())
			former.wait()
			p.serve()
			if killed == "first" {
				require.NoError(t, holder.Process.Kill())
			}
			var got []uint64
			for range 2 {
				m, err := q.Get(p.ctx())
				require.NoError(t, err, p.must("why", "queue", "work"))
				got = append(got, m.Sequence)
				m.Release()
				if killed == "later" && len(got) == 1 {
					require.NoError(t, holder.Process.Kill())
				}
			}
			assert.ElementsMatch(t, []uint64{1, 2}, got)
		})
	}
}

// A call that runs at a provider which is evicted ends, though the process of that lives.
func TestCallOfAnEvictedProviderEnds(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c, provider := p.client(), p.client()
	begun, go_ := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(go_) })
	_, err := client.Handle(provider, "slow", func(ctx context.Context, x int64) (int64, error) {
		close(begun)
		<-go_
		return x, nil
	})
	require.NoError(t, err)
	f, err := c.Function(p.ctx(), "slow")
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() {
		_, err := f.Call(p.ctx(), 1)
		ended <- err
	}()
	<-begun
	p.must("evict", fmt.Sprint(provider.Session()), "--yes")
	err = <-ended
	require.ErrorIs(t, err, protocol.ErrProviderDied)
	assert.ErrorContains(t, err, "was evicted")
}
