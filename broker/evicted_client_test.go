package broker_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/protocol"
)

// No client comes back for an evicted session, whose process may live on with another one. A
// broker that takes over does not wait for it, keeps what the process holds, and ends the session
// when the process drops that.
func TestTakeoverDoesNotWaitForAnEvictedSession(t *testing.T) {
	for _, kind := range kindsOfMemory {
		t.Run(kind, func(t *testing.T) {
			memory := memoryOf(t, kind)
			old, socket, _ := first(t, memory)
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			worker, err := client.Connect(ctx, client.WithAddress(socket), client.WithStart(false), client.WithName("worker"))
			require.NoError(t, err)
			defer worker.Close()
			x, err := filled(ctx, worker, 7)
			require.NoError(t, err)
			evicted := worker.Session()
			op := operator(t, socket)
			var reply protocol.EvictReply
			op.must(protocol.OpEvict, protocol.Evict{Serial: evicted}, &reply)
			require.Equal(t, protocol.EvictedClosed, reply.State)
			again, err := client.Connect(ctx, client.WithAddress(socket), client.WithStart(false), client.WithName("again"))
			require.NoError(t, err)
			defer again.Close()

			old.kill()
			b := next(t, socket, func(c *broker.Config) { c.MemoryDir = memory })() // RecoverWait is patience
			y, err := filled(ctx, again, 8)
			require.NoError(t, err, "the new session is back")
			y.Release()
			sessions := func() (closed, all int) { n := b.Status().Counts; return n.Closed, n.Sessions }
			closed, all := sessions()
			require.Equal(t, [2]int{1, 2}, [2]int{closed, all})
			require.EqualValues(t, 7, value(t, x))
			x.Release()
			eventually(t, "the evicted session is over", func() bool {
				closed, all := sessions()
				return closed == 0 && all == 1
			})
		})
	}
}

// What an evicted session holds keeps its refcounts. No client comes back for it, so it is not missing.
func TestEvictedSessionIsNotAwaited(t *testing.T) {
	old, socket, _ := first(t, "")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	worker, err := client.Connect(ctx, client.WithAddress(socket), client.WithStart(false), client.WithName("worker"))
	require.NoError(t, err)
	defer worker.Close()
	x, err := filled(ctx, worker, 7)
	require.NoError(t, err)
	defer x.Release()
	operator(t, socket).must(protocol.OpEvict, protocol.Evict{Serial: worker.Session()}, nil)
	c, _ := holding(t, socket, "stopped") // which is missing
	old.kill()
	b := next(t, socket, func(c *broker.Config) { c.RecoverWait = 10 * time.Millisecond })()
	require.Equal(t, 2, b.Status().Counts.Sessions)
	missing := func() int { t := b.Status().Takeover; return t.Missing }
	eventually(t, "it is counted which sessions are not back", func() bool { return missing() > 0 })
	require.Equal(t, 1, missing())
	c.kill()
}

// The reason of a session's end outlives it, and the broker that ended it.
func TestResumeOfAnEvictedSessionSaysWhy(t *testing.T) {
	old, socket, _ := first(t, "")
	p, q := connect(t, socket, "a"), connect(t, socket, "b")
	answer := evictBehind(t, socket, p.hello.Serial)
	require.Equal(t, protocol.EventEvicted, nextOf(p, protocol.EventEvicted))
	require.NoError(t, p.w.CloseWrite())
	answer()
	refused := func() {
		t.Helper()
		h := helloOf("a")
		h.Resume = &protocol.Resume{Instance: p.hello.Instance, Serial: p.hello.Serial, Secret: p.hello.Secret}
		_, err := (&peer{t: t, w: dial(t, socket)}).call(protocol.OpHello, h, nil)
		require.ErrorIs(t, err, protocol.ErrExpired)
		require.ErrorContains(t, err, "an operator evicted it")
		var e *protocol.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, protocol.ReasonEvicted, e.Detail["reason"])
	}
	refused()
	old.kill()
	takenOver(t, socket, nil, q)
	refused()
}
