package natsbridge_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker/natsbridge"
	"github.com/baton-ipc/baton/protocol"
)

func jetStream(t *testing.T, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	return js
}

// bucket is what a NATS client reads: key → value.
func bucket(t *testing.T, nc *nats.Conn, ns string) map[string]string {
	t.Helper()
	kv, err := jetStream(t, nc).KeyValue(deadline(t), "baton-"+ns)
	require.NoError(t, err)
	out := map[string]string{}
	keys, err := kv.Keys(deadline(t))
	if errors.Is(err, jetstream.ErrNoKeysFound) {
		return out
	}
	require.NoError(t, err)
	for _, k := range keys {
		e, err := kv.Get(deadline(t), k)
		require.NoError(t, err)
		out[k] = string(e.Value())
	}
	return out
}

func TestNamesAreMirroredFromTheFirstOneOn(t *testing.T) {
	dir := runtimeDir(t)
	b := start(t, natsbridge.Config{RuntimeDir: dir, Owner: "host-1"})
	nc := client(t, dir)
	require.Equal(t, natsbridge.NamesUnused, b.Status().Names.State)
	info, err := jetStream(t, nc).AccountInfo(deadline(t))
	require.NoError(t, err)
	require.Zero(t, info.Streams, "a bucket costs CPU at rest")

	value := []byte(`{"r":7}`)
	require.NoError(t, setName(b, "default", "weights/actor", 7, value))
	copy(value, "xxxxxxx")
	require.NoError(t, setName(b, "default", "a", 1, []byte("1")))
	require.NoError(t, setName(b, "team", "a", 1, []byte("2")))
	s := wait(t, b, mirrored)
	require.Equal(t, natsbridge.NamesStatus{State: natsbridge.NamesMirrored, Buckets: 2, Names: 3, Mirrored: 3}, s.Names)
	require.Equal(t, map[string]string{"weights.actor": `{"r":7}`, "a": "1"}, bucket(t, nc, "default"))
	require.Equal(t, map[string]string{"a": "2"}, bucket(t, nc, "team"))

	stream, err := jetStream(t, nc).Stream(deadline(t), "KV_baton-default")
	require.NoError(t, err)
	m, err := stream.GetLastMsgForSubject(deadline(t), "$KV.baton-default.weights.actor")
	require.NoError(t, err)
	require.Equal(t, "7", m.Header.Get("Baton-Revision"))
	require.Equal(t, "host-1", m.Header.Get("Baton-Owner"))

	require.NoError(t, b.DeleteName("default", "weights/actor"))
	require.NoError(t, b.DeleteName("default", "never/set"))
	wait(t, b, mirrored)
	require.Equal(t, map[string]string{"a": "1"}, bucket(t, nc, "default"))
	m, err = stream.GetLastMsgForSubject(deadline(t), "$KV.baton-default.weights.actor")
	require.NoError(t, err)
	require.Equal(t, "10m0s", m.Header.Get("Nats-TTL"), "the marker goes by itself")

	require.NoError(t, setName(b, "default", "weights/actor", 1, []byte("again")))
	wait(t, b, mirrored)
	require.Equal(t, map[string]string{"a": "1", "weights.actor": "again"}, bucket(t, nc, "default"))
}

func TestWatcherSeesTheNewestValueLast(t *testing.T) {
	dir := runtimeDir(t)
	b := start(t, natsbridge.Config{RuntimeDir: dir})
	require.NoError(t, setName(b, "default", "a", 0, []byte("0")))
	kv, err := jetStream(t, client(t, dir)).KeyValue(deadline(t), "baton-default")
	require.NoError(t, err)
	w, err := kv.WatchAll(deadline(t))
	require.NoError(t, err)
	defer w.Stop()
	const last = 5000
	for i := range last {
		require.NoError(t, setName(b, "default", "a", uint64(i+1), strconv.AppendInt(nil, int64(i+1), 10)))
	}
	before, seen := -1, 0
	for before != last {
		e := <-w.Updates()
		if e == nil {
			continue // what was there has been told
		}
		n, err := strconv.Atoi(string(e.Value()))
		require.NoError(t, err)
		require.Greater(t, n, before)
		before, seen = n, seen+1
	}
	t.Logf("%d of %d values were written", seen, last)
}

func TestNamesIgnoreOvertakenRevision(t *testing.T) {
	dir := runtimeDir(t)
	b := start(t, natsbridge.Config{RuntimeDir: dir})
	require.NoError(t, setName(b, "default", "a", 3, []byte("three")))
	require.NoError(t, setName(b, "default", "a", 2, []byte("two")))
	require.Equal(t, map[string]string{"a": "three"}, bucket(t, client(t, dir), "default"))
}

func TestNamesRefuseWhatCannotBeAKey(t *testing.T) {
	b := start(t, natsbridge.Config{})
	for _, c := range [][2]string{{"a b", "x"}, {"", "x"}, {"a/b", "x"}, {"*", "x"}, {"default", ""}, {"default", "a..b"},
		{"default", "a.b"}, {"default", "a/"}, {"default", "*"}, {"default", ">"}, {"default", "a\r\n"}} {
		require.ErrorIs(t, setName(b, c[0], c[1], 1, nil), protocol.ErrInvalid, "%q", c)
		require.ErrorIs(t, b.DeleteName(c[0], c[1]), protocol.ErrInvalid, "%q", c)
	}
	for _, ns := range []string{"hosts", "span-a"} { // whose buckets are others
		require.ErrorIs(t, setName(b, ns, "a", 1, nil), protocol.ErrUnsupported)
		require.Contains(t, b.NameState(ns, "a"), "left out: names of namespace "+ns+" are not mirrored")
	}
	require.Equal(t, natsbridge.NamesUnused, b.Status().Names.State)
}

func TestManyNamesAreMirrored(t *testing.T) {
	dir := runtimeDir(t)
	b := start(t, natsbridge.Config{RuntimeDir: dir})
	want := map[string]string{}
	for i := range 2000 {
		name := fmt.Sprintf("n%d", i)
		require.NoError(t, setName(b, "default", name, 1, []byte(name)))
		if i%3 == 0 {
			require.NoError(t, b.DeleteName("default", name))
		} else {
			want[name] = name
		}
	}
	nc := client(t, dir)
	require.Equal(t, want, bucket(t, nc, "default"))
	for name := range want {
		require.NoError(t, b.DeleteName("default", name))
	}
	s := wait(t, b, mirrored)
	require.Zero(t, s.Names.Names)
	require.Empty(t, bucket(t, nc, "default"))
}

// A bucket that a NATS client deletes comes back by itself, whatever else the broker may see there.
func TestDeletedBucketIsRebuilt(t *testing.T) {
	o := startOperator(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "admin", Password: "p"}, {Username: "baton", Password: "p",
			Permissions: &server.Permissions{
				Publish:   &server.SubjectPermission{Allow: []string{"baton.>", "$KV.baton-default.>", "$JS.API.>"}},
				Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}}}}}
	})
	joined := func() *natsbridge.Bridge {
		return start(t, natsbridge.Config{Join: &natsbridge.JoinConfig{URLs: []string{o.ClientURL()}, User: "baton", Password: "p"}})
	}
	dir := runtimeDir(t)
	for _, of := range []struct {
		b  *natsbridge.Bridge
		nc *nats.Conn
	}{{joined(), o.client(nats.UserInfo("admin", "p"))}, {start(t, natsbridge.Config{RuntimeDir: dir}), client(t, dir)}} {
		require.NoError(t, setName(of.b, "default", "a", 1, []byte("1")))
		require.NoError(t, setName(of.b, "default", "b", 1, []byte("2")))
		require.Empty(t, wait(t, of.b, mirrored).LastError)
		back := subscribe(t, of.nc, "$JS.EVENT.ADVISORY.STREAM.CREATED.KV_baton-default")
		require.NoError(t, jetStream(t, of.nc).DeleteKeyValue(deadline(t), "baton-default"))
		next(t, back)
		wait(t, of.b, mirrored)
		require.Equal(t, map[string]string{"a": "1", "b": "2"}, bucket(t, of.nc, "default"))
	}
}

// A broker that is killed and starts anew is another one to NATS, if nothing has kept its instance. It knows by the
// directory that no broker has the keys of the previous one: it takes those that it wants, and removes the others.
func TestKeysOfThePreviousBrokerAreTakenAndRemoved(t *testing.T) {
	for _, sets := range []bool{true, false} {
		o := startOperator(t, nil)
		dir := runtimeDir(t)
		startChild(t, dir, childJoin+"="+o.ClientURL())()
		nc := o.client()
		require.Equal(t, map[string]string{"a": "theirs"}, bucket(t, nc, "default"))

		elsewhere := joined(t, o, "host-3")
		elsewhere.NamesTold()
		require.NoError(t, setName(elsewhere, "default", "b", 1, []byte("elsewhere")))
		wait(t, elsewhere, mirrored)
		require.Equal(t, map[string]string{"a": "theirs", "b": "elsewhere"}, bucket(t, nc, "default"))

		writes := subscribe(t, nc, "$KV.baton-default.a")
		b := start(t, natsbridge.Config{RuntimeDir: dir, Owner: "host-2", Join: &natsbridge.JoinConfig{URLs: []string{o.ClientURL()}}})
		want := map[string]string{"b": "elsewhere"}
		if sets {
			require.NoError(t, setName(b, "default", "a", 1, []byte("again")))
			want["a"] = "again"
		}
		b.NamesTold()
		next(t, writes)
		require.Zero(t, wait(t, b, func(s natsbridge.Status) bool { return s.Names.Pending == 0 }).Names.Foreign)
		require.Equal(t, want, bucket(t, nc, "default"))
	}
}

func TestNamesAreRebuiltAfterServerRestartWithoutStore(t *testing.T) {
	o := startOperator(t, nil)
	b := start(t, natsbridge.Config{Join: &natsbridge.JoinConfig{URLs: []string{o.ClientURL()}}})
	for _, n := range []string{"a", "b", "c"} {
		require.NoError(t, setName(b, "default", n, 1, []byte(n)))
	}
	wait(t, b, mirrored)
	o.stop()
	wait(t, b, disconnected)
	require.NoError(t, b.DeleteName("default", "b"))
	require.NoError(t, setName(b, "default", "c", 2, []byte("C")))
	require.Equal(t, natsbridge.NamesBehind, b.Status().Names.State)
	o.opts.StoreDir = t.TempDir()
	o.start()
	wait(t, b, mirrored)
	require.Equal(t, map[string]string{"a": "a", "c": "C"}, bucket(t, o.client(), "default"))
}

func TestNamesAreComparedAfterReconnectAndNotWrittenTwice(t *testing.T) {
	o := startOperator(t, nil)
	b := start(t, natsbridge.Config{Join: &natsbridge.JoinConfig{URLs: []string{o.ClientURL()}}})
	for _, n := range []string{"a", "b", "c"} {
		require.NoError(t, setName(b, "default", n, 1, []byte(n)))
	}
	wait(t, b, mirrored)
	o.stop()
	wait(t, b, disconnected)
	require.NoError(t, b.DeleteName("default", "b"))
	require.NoError(t, setName(b, "default", "c", 2, []byte("C")))
	o.start()
	wait(t, b, mirrored)
	nc := o.client()
	require.Equal(t, map[string]string{"a": "a", "c": "C"}, bucket(t, nc, "default"))
	stream, err := jetStream(t, nc).Stream(deadline(t), "KV_baton-default")
	require.NoError(t, err)
	require.Equal(t, uint64(5), stream.CachedInfo().State.LastSeq, "three names, one deletion, one change")
}

// life runs a bridge of an owner to its end; with keep its names stay behind, as if it
// had been killed.
func life(t *testing.T, o *operator, owner string, keep bool, names map[string]string) {
	t.Helper()
	b := start(t, natsbridge.Config{Owner: owner, Names: natsbridge.NamesConfig{Keep: keep},
		Join: &natsbridge.JoinConfig{URLs: []string{o.ClientURL()}}})
	for k, v := range names {
		require.NoError(t, setName(b, "default", k, 1, []byte(v)))
	}
	b.NamesTold()
	wait(t, b, mirrored)
	require.NoError(t, b.Close(deadline(t)))
}

func TestKeysOfAnEarlierLifeGoAndThoseOfOthersStay(t *testing.T) {
	o := startOperator(t, nil)
	life(t, o, "host-1", true, map[string]string{"old/x": "1", "kept": "1"})
	life(t, o, "host-2", true, map[string]string{"other": "2"})
	nc := o.client()
	require.Equal(t, map[string]string{"old.x": "1", "kept": "1", "other": "2"}, bucket(t, nc, "default"))
	life(t, o, "host-1", true, map[string]string{"kept": "3"})
	require.Equal(t, map[string]string{"kept": "3", "other": "2"}, bucket(t, nc, "default"))
}

// A watcher of the bucket must not see names go and come when another broker takes over.
func TestKeysOfAnEarlierLifeStayUntilItsNamesWereSetAgain(t *testing.T) {
	o := startOperator(t, nil)
	life(t, o, "host-1", true, map[string]string{"a": "1", "b/c": "1", "d": "1"})
	kv, err := jetStream(t, o.client()).KeyValue(deadline(t), "baton-default")
	require.NoError(t, err)
	w, err := kv.WatchAll(deadline(t), jetstream.UpdatesOnly())
	require.NoError(t, err)
	defer w.Stop()
	b := start(t, natsbridge.Config{Owner: "host-1", Join: &natsbridge.JoinConfig{URLs: []string{o.ClientURL()}}})
	require.NoError(t, setName(b, "default", "a", 1, []byte("2")))
	wait(t, b, func(s natsbridge.Status) bool { return s.Names.Mirrored == 1 && s.Names.Pending == 2 })
	require.NoError(t, setName(b, "default", "b/c", 1, []byte("2")))
	wait(t, b, func(s natsbridge.Status) bool { return s.Names.Mirrored == 2 && s.Names.Pending == 1 })
	b.NamesTold()
	wait(t, b, mirrored)
	var seen []string
	for len(seen) < 3 {
		if e := <-w.Updates(); e != nil {
			seen = append(seen, e.Operation().String()+" "+e.Key())
		}
	}
	require.Equal(t, []string{"KeyValuePutOp a", "KeyValuePutOp b.c", "KeyValuePurgeOp d"}, seen)
}

func TestCloseRemovesNamesUnlessTheyAreKept(t *testing.T) {
	o := startOperator(t, nil)
	life(t, o, "host-1", true, map[string]string{"a": "1"})
	nc := o.client()
	require.Equal(t, map[string]string{"a": "1"}, bucket(t, nc, "default"))
	life(t, o, "host-2", false, map[string]string{"b": "1"})
	require.Equal(t, map[string]string{"a": "1"}, bucket(t, nc, "default"))
}

func TestOperatorsBucketIsUsedAsItIs(t *testing.T) {
	o := startOperator(t, nil)
	nc := o.client()
	_, err := jetStream(t, nc).CreateKeyValue(deadline(t), jetstream.KeyValueConfig{Bucket: "baton-default", MaxValueSize: 300, History: 5})
	require.NoError(t, err)
	b := start(t, natsbridge.Config{HostName: "h", Machine: "m", Join: &natsbridge.JoinConfig{URLs: []string{o.ClientURL()}}})
	require.NoError(t, setName(b, "default", "a", 1, []byte("1")))
	require.NoError(t, setName(b, "default", "b", 1, make([]byte, 1000)))
	s := wait(t, b, func(s natsbridge.Status) bool { return s.Names.State == natsbridge.NamesPartly })
	require.Equal(t, 2, s.Names.Names)
	require.Equal(t, 1, s.Names.Mirrored)
	require.Equal(t, 1, s.Names.LeftOut, "what stands for it is too large as well")
	require.Contains(t, b.NameState("default", "b"), "left out: its bucket takes messages of 300 bytes")
	require.Equal(t, map[string]string{"a": "1"}, bucket(t, nc, "default"))
	require.NoError(t, b.DeleteName("default", "a"))
	require.NoError(t, setName(b, "default", "b", 2, []byte("2")))
	wait(t, b, mirrored)
	require.Equal(t, map[string]string{"b": "2"}, bucket(t, nc, "default"))
}

func TestServerWithoutJetStreamMirrorsNoNamesAndSaysSo(t *testing.T) {
	o := startOperator(t, func(o *server.Options) { o.JetStream = false })
	b := start(t, natsbridge.Config{Join: &natsbridge.JoinConfig{URLs: []string{o.ClientURL()}}})
	require.NoError(t, setName(b, "default", "a", 1, []byte("1")))
	s := wait(t, b, func(s natsbridge.Status) bool { return s.Names.State == natsbridge.NamesUnavailable })
	require.Contains(t, s.Names.Error, "has no JetStream")
	require.Equal(t, 1, b.PublishEach("a", nil), "tuples do not need it")

	o.stop()
	o.opts.JetStream = true
	o.start()
	wait(t, b, mirrored)
	require.Equal(t, map[string]string{"a": "1"}, bucket(t, o.client(), "default"))
}

func TestCloseThatCannotRemoveNamesSaysSo(t *testing.T) {
	o := startOperator(t, nil)
	b := start(t, natsbridge.Config{Join: &natsbridge.JoinConfig{URLs: []string{o.ClientURL()}}})
	require.NoError(t, setName(b, "default", "a", 1, []byte("1")))
	wait(t, b, mirrored)
	ctx, cancel := context.WithDeadline(context.Background(), time.Now())
	defer cancel()
	require.ErrorIs(t, b.Close(ctx), context.DeadlineExceeded)
}
