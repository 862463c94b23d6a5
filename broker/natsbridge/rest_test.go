package natsbridge_test

import (
	"fmt"
	"strconv"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker/natsbridge"
	"github.com/baton-ipc/baton/internal/testkit"
)

// leave closes a client and waits until the server knows.
func leave(t *testing.T, b *natsbridge.Bridge, nc *nats.Conn) {
	t.Helper()
	nc.Close()
	testkit.Until(t, "the client has left", func() (bool, string) { return !b.InterestMayChange(), "" })
}

// atRest waits until there is no bucket.
func atRest(t *testing.T, b *natsbridge.Bridge) {
	t.Helper()
	wait(t, b, func(s natsbridge.Status) bool { return s.Names.State == natsbridge.NamesDeferred && b.Streams() == 0 })
}

func TestBucketsAreRemovedWhenNoClientHasBeenThereForLong(t *testing.T) {
	dir := runtimeDir(t)
	b := start(t, natsbridge.Config{RuntimeDir: dir})
	for _, name := range []string{"a", "b", "c"} {
		require.NoError(t, setName(b, "default", name, 1, []byte(name)))
	}
	want := map[string]string{"b": "B", "c": "C", "d": "d"}
	for i := range 600 { // more than are written at a time
		name := fmt.Sprint("n", i)
		require.NoError(t, setName(b, "default", name, 1, []byte(name)))
		want[name] = name
	}
	require.NoError(t, setName(b, "team", "a", 1, large(2<<20)))
	require.False(t, b.InterestMayChange())
	nc := client(t, dir)
	require.True(t, b.InterestMayChange())
	b.PassQuietTime()
	require.NoError(t, setName(b, "default", "b", 2, []byte("B")))
	wait(t, b, mirrored)
	require.Equal(t, 2, b.Streams())
	leave(t, b, nc)
	b.PassQuietTime()
	atRest(t, b)
	require.Equal(t, natsbridge.NamesStatus{State: natsbridge.NamesDeferred, Buckets: 2, Names: 604}, b.Status().Names)

	require.NoError(t, b.DeleteName("default", "a"))
	require.NoError(t, setName(b, "default", "c", 2, []byte("C")))
	require.NoError(t, setName(b, "default", "d", 1, []byte("d")))
	nc = client(t, dir)
	require.Equal(t, want, bucket(t, nc, "default"))
	require.Len(t, bucket(t, nc, "team"), 1)
	require.Equal(t, natsbridge.NamesStatus{State: natsbridge.NamesMirrored, Buckets: 2, Names: 604, Mirrored: 604, References: 1}, b.Status().Names)

	leave(t, b, nc) // and nothing changes
	b.PassQuietTime()
	atRest(t, b)
	require.Equal(t, want, bucket(t, client(t, dir), "default"))
}

// What others have there would be lost, or has the server tick in any case.
func TestBucketsStayWhereTheyAreOfUseWithoutAClient(t *testing.T) {
	for what, use := range map[string]func(t *testing.T, js jetstream.JetStream){
		"a stream of a user": func(t *testing.T, js jetstream.JetStream) {
			_, err := js.CreateStream(deadline(t), jetstream.StreamConfig{Name: "theirs", Subjects: []string{"theirs"}})
			require.NoError(t, err)
		},
		"a key of another": func(t *testing.T, js jetstream.JetStream) {
			kv, err := js.KeyValue(deadline(t), "baton-default")
			require.NoError(t, err)
			_, err = kv.Put(deadline(t), "theirs", nil)
			require.NoError(t, err)
		},
		"a durable consumer": func(t *testing.T, js jetstream.JetStream) {
			_, err := js.CreateConsumer(deadline(t), "KV_baton-default", jetstream.ConsumerConfig{Durable: "theirs"})
			require.NoError(t, err)
		},
	} {
		t.Run(what, func(t *testing.T) {
			dir := runtimeDir(t)
			b := start(t, natsbridge.Config{RuntimeDir: dir})
			require.NoError(t, setName(b, "default", "a", 1, []byte("1")))
			nc := client(t, dir)
			use(t, jetStream(t, nc))
			streams := b.Streams()
			leave(t, b, nc)
			b.PassQuietTime()
			// What is set afterwards is written after that.
			require.NoError(t, setName(b, "default", "a", 2, []byte("2")))
			wait(t, b, mirrored)
			require.Equal(t, streams, b.Streams())
			require.Equal(t, "2", bucket(t, client(t, dir), "default")["a"])
		})
	}
}

// Clients come at any moment of a removal.
func TestClientFindsNamesWhileBucketsAreRemoved(t *testing.T) {
	dir := runtimeDir(t)
	b := start(t, natsbridge.Config{RuntimeDir: dir})
	for i := range 40 {
		require.NoError(t, setName(b, "default", fmt.Sprint("n", i), 1, []byte("n")))
	}
	nc := client(t, dir)
	for i := range 40 {
		leave(t, b, nc)
		value := strconv.Itoa(i)
		require.NoError(t, setName(b, "default", "n0", uint64(i+2), []byte(value)))
		var quiet sync.WaitGroup
		quiet.Go(b.PassQuietTime)
		nc = client(t, dir)
		quiet.Wait()
		kv, err := jetStream(t, nc).KeyValue(deadline(t), "baton-default")
		require.NoError(t, err)
		e, err := kv.Get(deadline(t), "n0")
		require.NoError(t, err)
		require.Equal(t, value, string(e.Value()))
	}
}
