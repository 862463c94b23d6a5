package natsbridge_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker/natsbridge"
	"github.com/baton-ipc/baton/protocol"
)

func TestFirstClientFindsTheNamesOfABucketThatIsMadeForIt(t *testing.T) {
	dir := runtimeDir(t)
	b := start(t, natsbridge.Config{RuntimeDir: dir})
	want := map[string]string{}
	for i := range 700 {
		name := fmt.Sprint("n", i)
		require.NoError(t, setName(b, "default", name, 1, []byte("old")))
		require.NoError(t, setName(b, "default", name, 2, []byte(name)))
		want[name] = name
		if i%7 == 0 {
			require.NoError(t, b.DeleteName("default", name))
			delete(want, name)
		}
	}
	require.NoError(t, setName(b, "team", "a", 1, []byte("1")))
	require.NoError(t, b.LeaveOut("team", "b", "it lies on a GPU"))
	require.Zero(t, b.Streams(), "a bucket costs CPU at rest")
	require.Equal(t, 602, b.Known(), "names that have gone are forgotten")
	require.Equal(t, natsbridge.NamesStatus{State: natsbridge.NamesDeferred, Buckets: 2, Names: 602, LeftOut: 1}, b.Status().Names)
	require.Equal(t, "deferred until a client of NATS connects", b.NameState("team", "a"))
	require.Equal(t, "left out: it lies on a GPU", b.NameState("team", "b"))

	nc := client(t, dir)
	require.Equal(t, 2, b.Streams())
	require.Equal(t, map[string]string{"a": "1"}, bucket(t, nc, "team"))
	require.Equal(t, want, bucket(t, nc, "default"))
	require.Equal(t, "mirrored", b.NameState("team", "a"))
}

// Names change all the time while clients come: each finds what was set before it came, or
// something newer.
func TestEachClientFindsWhatWasSetBeforeItConnected(t *testing.T) {
	dir := runtimeDir(t)
	b := start(t, natsbridge.Config{RuntimeDir: dir})
	ctx, stop := context.WithCancel(context.Background())
	var changing sync.WaitGroup
	changing.Go(func() {
		for i := uint64(1); ctx.Err() == nil; i++ {
			_ = setName(b, "default", fmt.Sprint("busy", i%500), i, strconv.AppendUint(nil, i, 10))
		}
	})
	defer changing.Wait()
	defer stop()
	kv := func(nc *nats.Conn) jetstream.KeyValue {
		kv, err := jetStream(t, nc).KeyValue(deadline(t), "baton-default")
		require.NoError(t, err)
		return kv
	}
	for i := range 10 {
		value := strconv.Itoa(i)
		require.NoError(t, setName(b, "default", "seen", uint64(i+1), []byte(value)))
		require.NoError(t, setName(b, "default", "gone", uint64(i+1), []byte(value)))
		require.NoError(t, b.DeleteName("default", "gone"))
		nc := client(t, dir)
		e, err := kv(nc).Get(deadline(t), "seen")
		require.NoError(t, err)
		require.Equal(t, value, string(e.Value()))
		_, err = kv(nc).Get(deadline(t), "gone")
		require.ErrorIs(t, err, jetstream.ErrKeyNotFound)
		nc.Close()
	}
}

// The broker hands names over after they were set: a client waits for those, too.
func TestClientWaitsForNamesThatTheBridgeHasNotBeenTold(t *testing.T) {
	dir := runtimeDir(t)
	var b *natsbridge.Bridge
	begun := make(chan struct{})
	n := 0
	b = start(t, natsbridge.Config{RuntimeDir: dir, Tell: func(context.Context) {
		<-begun
		n++
		_ = setName(b, "default", "a", uint64(n), []byte(strconv.Itoa(n)))
	}})
	close(begun)
	for i := range 3 {
		require.Equal(t, map[string]string{"a": strconv.Itoa(i + 1)}, bucket(t, client(t, dir), "default"))
	}
}

func TestClientThatIsRefusedMakesNoBucket(t *testing.T) {
	dir := runtimeDir(t)
	b := start(t, natsbridge.Config{RuntimeDir: dir})
	require.NoError(t, setName(b, "default", "a", 1, []byte("1")))
	info, err := natsbridge.ReadInfo(dir)
	require.NoError(t, err)
	ours, err := nats.NkeyOptionFromSeed(info.Seed)
	require.NoError(t, err)
	var o nats.Options
	require.NoError(t, ours(&o))
	other, err := nkeys.CreateUser()
	require.NoError(t, err)
	for what, opt := range map[string]nats.Option{
		"no key":                nats.Name("x"),
		"another's signature":   nats.Nkey(o.Nkey, other.Sign),
		"no signature":          nats.Nkey(o.Nkey, func([]byte) ([]byte, error) { return nil, nil }),
		"a signature of no use": nats.Nkey(o.Nkey, func([]byte) ([]byte, error) { return o.SignatureCB([]byte("another nonce")) }),
	} {
		_, err = nats.Connect(info.URL, nats.Timeout(patience), opt)
		require.ErrorIs(t, err, nats.ErrAuthorization, what)
	}
	require.Zero(t, b.Streams())
	require.Equal(t, natsbridge.NamesDeferred, b.Status().Names.State)
	require.Equal(t, map[string]string{"a": "1"}, bucket(t, client(t, dir), "default"))
}

func TestClientIsAdmittedWhereNamesCannotBeMirrored(t *testing.T) {
	dir := runtimeDir(t)
	b := start(t, natsbridge.Config{RuntimeDir: dir})
	_, err := jetStream(t, client(t, dir)).CreateStream(deadline(t), jetstream.StreamConfig{Name: "in-the-way", Subjects: []string{"$KV.baton-default.>"}})
	require.NoError(t, err)
	require.NoError(t, b.Close(deadline(t)))
	b = start(t, natsbridge.Config{RuntimeDir: dir})
	require.NoError(t, setName(b, "default", "a", 1, []byte("1")))
	sub := subscribe(t, client(t, dir), "a")
	require.Equal(t, 1, b.PublishEach("a", nil), "tuples do not need them")
	next(t, sub)
	s := b.Status()
	require.Equal(t, natsbridge.NamesUnavailable, s.Names.State)
	require.Contains(t, s.Names.Error, "overlap")
}

// A bridge may end while a client waits for names, and the client then comes to the next one.
func TestClientThatWaitsWhenTheBridgeEndsComesToTheNextOne(t *testing.T) {
	dir := runtimeDir(t)
	waits := make(chan struct{}, 1)
	b := start(t, natsbridge.Config{RuntimeDir: dir, Tell: func(ctx context.Context) {
		waits <- struct{}{}
		<-ctx.Done()
	}})
	info, err := natsbridge.ReadInfo(dir)
	require.NoError(t, err)
	connected := make(chan *nats.Conn, 1)
	go func() {
		nc, err := info.Connect(nats.Timeout(patience), nats.MaxReconnects(-1), nats.ReconnectWait(time.Millisecond), nats.RetryOnFailedConnect(true),
			nats.ConnectHandler(func(nc *nats.Conn) { connected <- nc }))
		if err != nil {
			connected <- nc
		}
	}()
	<-waits
	require.NoError(t, b.Close(deadline(t)))
	var next *natsbridge.Bridge
	begun := make(chan struct{})
	next = start(t, natsbridge.Config{RuntimeDir: dir, Tell: func(context.Context) {
		<-begun
		_ = setName(next, "default", "a", 1, []byte("of the next one"))
	}})
	close(begun)
	nc := <-connected
	require.NotNil(t, nc)
	defer nc.Close()
	require.Equal(t, map[string]string{"a": "of the next one"}, bucket(t, nc, "default"))
}

// A client that goes on watching begins after the last sequence that it has seen.
func TestSequencesGoOnWithTheNextBucket(t *testing.T) {
	dir := runtimeDir(t)
	b := start(t, natsbridge.Config{RuntimeDir: dir})
	for i := range 100 {
		require.NoError(t, setName(b, "default", fmt.Sprint("n", i), 1, []byte("1")))
	}
	last := func() uint64 {
		stream, err := jetStream(t, client(t, dir)).Stream(deadline(t), "KV_baton-default")
		require.NoError(t, err)
		return stream.CachedInfo().State.LastSeq
	}
	seen := last()
	require.NoError(t, b.Close(deadline(t)))
	b = start(t, natsbridge.Config{RuntimeDir: dir})
	require.NoError(t, setName(b, "default", "a", 1, []byte("1")))
	require.Greater(t, last(), seen)
	require.Less(t, seen, uint64(protocol.MaxSafeInt), "readers of JSON lose larger ones")
}

// nats-server pings a new client after two seconds, and one that is still connecting takes
// that for a wrong answer.
func TestClientMayWaitLongerThanTheServersFirstPing(t *testing.T) {
	dir := runtimeDir(t)
	late := time.NewTimer(3 * time.Second)
	start(t, natsbridge.Config{RuntimeDir: dir, Tell: func(context.Context) { <-late.C }})
	client(t, dir)
}
