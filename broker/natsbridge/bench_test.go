package natsbridge_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker/natsbridge"
)

// benchServer starts a bridge and connects to it as a client does.
func benchServer(b *testing.B) (*natsbridge.Bridge, *nats.Conn) {
	dir := filepath.Join(b.TempDir(), "run")
	bridge, err := natsbridge.Start(b.Context(), natsbridge.Config{RuntimeDir: dir})
	require.NoError(b, err)
	b.Cleanup(func() { bridge.Close(context.Background()) })
	info, err := natsbridge.ReadInfo(dir)
	require.NoError(b, err)
	nc, err := info.Connect()
	require.NoError(b, err)
	b.Cleanup(nc.Close)
	return bridge, nc
}

func benchBridge(b *testing.B, subscriptions int) *natsbridge.Bridge {
	bridge, nc := benchServer(b)
	for i := range subscriptions {
		_, err := nc.Subscribe(fmt.Sprintf("baton.default.topic.t%d", i), func(*nats.Msg) {})
		require.NoError(b, err)
	}
	require.NoError(b, nc.Flush())
	return bridge
}

// BenchmarkPublish is the caller's cost of one message without a subscriber.
func BenchmarkPublish(b *testing.B) {
	bridge := benchBridge(b, 0)
	data := make([]byte, 300)
	b.ReportAllocs()
	refused := 0
	for b.Loop() {
		if bridge.PublishEach("baton.default.topic.x", data) == 0 {
			refused++
			time.Sleep(time.Millisecond) // the queue is full
		}
	}
	b.ReportMetric(float64(refused)/float64(b.N), "refused/op")
}

// BenchmarkDelivered is the time that a message takes on its way to a subscriber,
// when many are under way.
func BenchmarkDelivered(b *testing.B) {
	bridge, nc := benchServer(b)
	var got atomic.Int64
	sub, err := nc.Subscribe("baton.default.topic.x", func(*nats.Msg) { got.Add(1) })
	require.NoError(b, err)
	require.NoError(b, sub.SetPendingLimits(-1, -1))
	require.NoError(b, nc.Flush())
	batch := make([][]byte, 128)
	for i := range batch {
		batch[i] = make([]byte, 430)
	}
	sent := int64(0)
	for b.Loop() {
		if int(sent)%len(batch) == 0 {
			for bridge.Queued() > 256<<10 || sent-got.Load() > 8192 {
				time.Sleep(100 * time.Microsecond)
			}
			require.Equal(b, len(batch), bridge.PublishEach("baton.default.topic.x", batch...))
		}
		sent++
	}
}

func BenchmarkInterest(b *testing.B) {
	for _, n := range []int{0, 1000} {
		b.Run(fmt.Sprint(n, " subscriptions"), func(b *testing.B) {
			bridge := benchBridge(b, n)
			for b.Loop() {
				bridge.Interest("baton.default.topic.batches")
			}
		})
	}
}

func BenchmarkInterestVersion(b *testing.B) {
	for _, n := range []int{0, 1000} {
		b.Run(fmt.Sprint(n, " subscriptions"), func(b *testing.B) {
			bridge := benchBridge(b, n)
			for b.Loop() {
				bridge.InterestVersion()
			}
		})
	}
}
