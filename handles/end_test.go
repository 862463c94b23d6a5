package handles

import (
	"context"
	"sync"
	"testing"

	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// noticed is a context that tells when a goroutine is about to wait for its end.
type noticed struct {
	context.Context
	once    sync.Once
	awaited chan struct{}
}

func (n *noticed) Done() <-chan struct{} {
	n.once.Do(func() { close(n.awaited) })
	return n.Context.Done()
}

func notice(t *testing.T) *noticed {
	return &noticed{Context: t.Context(), awaited: make(chan struct{})}
}

// slowSource grants when it is told to.
type slowSource struct {
	*fakeSource
	asked, answer chan struct{}
}

func (s *slowSource) Grant(ctx context.Context, bytes uint64, chunks int, fallback bool) (Grant, error) {
	close(s.asked)
	<-s.answer
	return s.fakeSource.Grant(ctx, bytes, chunks, fallback)
}

func TestPoolEndedWhileSomeWaitForTheirTurnLetsAllGo(t *testing.T) {
	w := newWorld(t, 3, 1<<30)
	source := &slowSource{w.source, make(chan struct{}), make(chan struct{})}
	w.pool.source = source
	var all sync.WaitGroup
	all.Go(func() { w.pool.Alloc(t.Context(), 1000) })
	<-source.asked
	collecting, allocating := notice(t), notice(t)
	all.Go(func() { w.pool.Reclaim(collecting) })
	<-collecting.awaited
	all.Go(func() {
		_, err := w.pool.Alloc(allocating, 1000)
		require.ErrorIs(t, err, protocol.ErrSessionLost)
	})
	<-allocating.awaited
	w.pool.End(protocol.ErrSessionLost)
	close(source.answer)
	all.Wait()
}
