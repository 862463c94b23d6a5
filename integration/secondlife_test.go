package integration

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// No session waits for a process that has ended while another one, which has nothing of it, stands
// still.
func TestDeadReaderIsNotWaitedForWhileAnotherStandsStill(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	topic, err := c.Topic(ctx, "t", client.Overwrite(false), client.Depth(1), client.Linger(time.Millisecond))
	require.NoError(t, err)
	still := ready(b, sendConfig{channel: channel{Topic: "other", Linger: time.Millisecond}, From: "still", Count: 1, Words: 64, Stay: true})
	reader := join(b, receiveConfig{channel: channel{Topic: "t"}, Count: 10})
	still.Stop()
	b.Kill()
	reader.Kill()
	b.Restart()
	testkit.Gone(t, b, reader.PID())
	x, err := c.Alloc(ctx, dlpack.Uint8, []int64{1})
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, topic.Send(ctx, x))
	}
	x.Release()
	still.Cont()
	still.Tell("go")
	still.Next(new(int))
	still.Done()
	require.NoError(t, topic.Close())
	testkit.AuditEmpty(t, b, c)
}

// A session whose process has ended, and whose file may still come with a process that stands
// still, is over at the next broker as well: no session waits for it when all are back, or when it
// was evicted.
func TestDeadReaderStaysDeadThroughTwoBrokers(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	brief := client.Linger(time.Millisecond)
	topic, err := c.Topic(ctx, "t", client.Overwrite(false), client.Depth(1), brief)
	require.NoError(t, err)
	still := ready(b, sendConfig{channel: channel{Topic: "other", Linger: time.Millisecond}, From: "still", Count: 1, Words: 64, Stay: true})
	reader := join(b, receiveConfig{channel: channel{Topic: "t"}, Count: 10})
	still.Stop()
	b.Kill()
	reader.Kill()
	testkit.Elsewhere(t, b.Socket)
	for range 2 {
		b.Restart()
		states := map[int]string{} // the broker answers when it has waited for those that are suspended
		for _, s := range testkit.Look(t, b).Sessions {
			states[s.PID] = s.State
		}
		require.Equal(t, map[int]string{os.Getpid(): "live", still.PID(): "disconnected", reader.PID(): "ended"}, states)
		b.Kill()
		testkit.Elsewhere(t, b.Socket)
	}
	b.Restart()
	for _, s := range testkit.Look(t, b).Sessions {
		if s.PID == reader.PID() {
			require.NoError(t, c.Broker(ctx, protocol.OpEvict, protocol.Evict{Serial: s.Serial}, &struct{}{}))
		}
	}
	testkit.Gone(t, b, reader.PID())
	still.Cont()
	x, err := c.Alloc(ctx, dlpack.Uint8, []int64{1})
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, topic.Send(ctx, x), "no reader is waited for")
	}
	x.Release()
	still.Tell("go")
	still.Next(new(int))
	still.Done()
	require.NoError(t, topic.Close())
	testkit.AuditEmpty(t, b, c)
}
