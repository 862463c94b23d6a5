package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker/natsbridge"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// The embedded server has no bucket before a client of NATS comes, and no client notices.
func TestNATSClientFindsAtOnceWhatWasSetBeforeItConnected(t *testing.T) {
	b := testkit.StartBroker(t, withNATS)
	ctx := testkit.Context(t)
	c := b.Connect()
	setName(t, ctx, c, "kept")
	setName(t, ctx, c, "deleted")
	require.NoError(t, c.Delete(ctx, "deleted"))
	untilNATS(t, ctx, c, "the broker has NATS", func(s natsbridge.Status) bool { return s.Connected && s.Names.State == natsbridge.NamesDeferred })
	testkit.Until(t, "the mirror has looked", func() (bool, string) {
		s := onNATS(t, ctx, c, "kept")
		return s == "deferred until a client of NATS connects", s
	})
	for i := range 20 {
		setName(t, ctx, c, "weights/actor")
		nc := plainNATS(t, b)
		require.EqualValues(t, i+1, revisionOnNATS(t, nc, b, "weights.actor")())
		require.EqualValues(t, 1, revisionOnNATS(t, nc, b, "kept")())
		require.Nil(t, valueOnNATS(t, nc, b.Namespace, "deleted"))
		nc.Close()
	}
	require.Equal(t, "mirrored", onNATS(t, ctx, c, "kept"))
}

// lookingAgain connects a client of NATS that looks up a name whenever it is connected
// anew, before it does anything else.
func lookingAgain(t *testing.T, b *testkit.Broker, key string) (nc *nats.Conn, revisions <-chan uint64) {
	t.Helper()
	seen := make(chan uint64, 8)
	info, err := natsbridge.ReadInfo(b.Dir)
	require.NoError(t, err)
	nc, err = info.Connect(nats.Timeout(testkit.Patience), nats.MaxReconnects(-1), nats.ReconnectWait(time.Millisecond), nats.ReconnectHandler(func(nc *nats.Conn) {
		seen <- revisionOnNATS(t, nc, b, key)()
	}))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc, seen
}

func TestNATSClientFindsTheNamesOfABrokerThatReplacedAnother(t *testing.T) {
	b := testkit.StartBroker(t, withNATS)
	ctx := testkit.Context(t)
	c := b.Connect()
	setName(t, ctx, c, "weights/actor")
	plainNATS(t, b)
	_, revisions := lookingAgain(t, b, "weights.actor")
	setName(t, ctx, c, "weights/actor")
	b.Replace()
	require.EqualValues(t, 2, <-revisions)
}

// A watch of nats.go asks for what is after the last sequence that it has seen, once it
// misses the server's heartbeats.
func TestNATSWatchGoesOnWithTheBucketOfTheNextBroker(t *testing.T) {
	b := testkit.StartBroker(t, withNATS)
	ctx := testkit.Context(t)
	c := b.Connect()
	for i := range 30 {
		setName(t, ctx, c, fmt.Sprint("other/", i))
	}
	setName(t, ctx, c, "weights/actor")
	plainNATS(t, b)
	nc, revisions := lookingAgain(t, b, "weights.actor")
	js, err := nc.JetStream()
	require.NoError(t, err)
	kv, err := js.KeyValue("baton-" + b.Namespace)
	require.NoError(t, err)
	w, err := kv.Watch("weights.actor")
	require.NoError(t, err)
	defer w.Stop()
	await := func(revision uint64) {
		for {
			var e nats.KeyValueEntry
			select {
			case e = <-w.Updates():
			case <-ctx.Done():
				require.NoError(t, ctx.Err(), "no word of revision %d", revision)
			}
			if e == nil {
				continue // what was there has been told
			}
			tuple, err := protocol.ParseTuple(e.Value())
			require.NoError(t, err)
			if tuple.Sequence == revision {
				return
			}
		}
	}
	await(1)
	setName(t, ctx, c, "weights/actor")
	await(2)
	b.Kill()
	b.Restart()
	require.EqualValues(t, 2, <-revisions, "it looked as soon as it was connected")
	setName(t, ctx, c, "weights/actor")
	await(3)
}
