package natsbridge

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// piped starts a bridge with a server of its own, and a subscriber of everything.
func piped(t *testing.T) (*Bridge, *nats.Subscription, context.Context) {
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	t.Cleanup(cancel)
	dir := filepath.Join(t.TempDir(), "run")
	b, err := Start(ctx, Config{RuntimeDir: dir, QueueBytes: 64 << 20})
	require.NoError(t, err)
	t.Cleanup(func() { b.Close(ctx) })
	info, err := ReadInfo(dir)
	require.NoError(t, err)
	nc, err := info.Connect(nats.Timeout(time.Minute))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	sub, err := nc.SubscribeSync("t.>")
	require.NoError(t, err)
	require.NoError(t, sub.SetPendingLimits(-1, -1))
	require.NoError(t, nc.Flush())
	return b, sub, ctx
}

func TestPipeCarriesWholeMessagesBesideThoseOfNatsGo(t *testing.T) {
	b, sub, ctx := piped(t)
	nc, pipe := b.link.current()
	require.NotNil(t, pipe)
	names := make(chan error, 1)
	go func() { // writes into the same pipe meanwhile, in pieces of any size
		for i := range 2000 {
			if err := nc.Publish("other", bytes.Repeat([]byte("PUB t.x 1\r\n"), i)); err != nil {
				names <- err
				return
			}
		}
		names <- nc.FlushWithContext(ctx)
	}()
	random := rand.New(rand.NewPCG(1, 2))
	sizes := []int{0, 1, batchBytes - 20, batchBytes, batchBytes + 1, 1 << 20}
	for range 3000 {
		sizes = append(sizes, random.IntN(2000))
	}
	for i, n := range sizes {
		require.Equal(t, 1, b.PublishEach(fmt.Sprintf("t.%d", i), bytes.Repeat([]byte{byte(i)}, n)))
	}
	for i, n := range sizes {
		m, err := sub.NextMsgWithContext(ctx)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("t.%d", i), m.Subject)
		require.True(t, bytes.Equal(bytes.Repeat([]byte{byte(i)}, n), m.Data), "%d bytes", n)
	}
	require.NoError(t, <-names)
	require.NoError(t, b.Flush(ctx))
	require.EqualValues(t, len(sizes), b.Status().Published)
	require.EqualValues(t, 1, b.link.upCount(), "the server had nothing to say against any of it")
}

func TestPipeOfALostConnectionIsNotWrittenAgain(t *testing.T) {
	b, sub, ctx := piped(t)
	for lost := range 5 {
		nc, pipe := b.link.current()
		require.NotNil(t, pipe)
		id, err := nc.GetClientID()
		require.NoError(t, err)
		require.NoError(t, b.server.srv.DisconnectClientByID(id))
		// Until the next connection is up they are dropped, and none goes before its greeting.
		sent := 0
		for b.link.upCount() == uint64(lost+1) && ctx.Err() == nil {
			sent += b.PublishEach("t.lost", []byte("x"))
			_ = b.outbox.wait(ctx)
		}
		require.NoError(t, b.Wait(ctx, func(s Status) bool { return s.Connected }))
		require.Equal(t, 1, b.PublishEach("t.again", []byte{byte(lost)}))
		for {
			m, err := sub.NextMsgWithContext(ctx)
			require.NoError(t, err)
			if m.Subject == "t.again" {
				require.Equal(t, []byte{byte(lost)}, m.Data)
				break
			}
			sent--
		}
		require.GreaterOrEqual(t, sent, 0)
		_, next := b.link.current()
		require.NotNil(t, next)
		require.NotSame(t, pipe, next)
	}
	require.EqualValues(t, 6, b.link.upCount(), "each loss was ours")
}
