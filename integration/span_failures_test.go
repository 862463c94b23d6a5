package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/broker/machines/names"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// jetstream is that of the server, as its operator has it.
func (h *hostsOf) jetstream() jetstream.JetStream {
	nc, err := nats.Connect(fmt.Sprintf("nats://127.0.0.1:%d", h.nats.config.Port), nats.Timeout(testkit.Patience))
	require.NoError(h.t, err)
	h.t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(h.t, err)
	return js
}

// comes waits until a name has a revision, or a later one, at a host.
func comes(t *testing.T, ctx context.Context, c *client.Client, name string, revision uint64) (number int64) {
	t.Helper()
	testkit.Until(t, "the revision is there", func() (bool, string) {
		x, err := c.Get(ctx, name)
		if err != nil {
			return false, err.Error()
		}
		at := x.Revision
		number = numberOf(t, x)
		return at >= revision, fmt.Sprintf("revision %d", at)
	})
	return number
}

// stale waits until a name is said to be stale, or not to be.
func stale(t *testing.T, ctx context.Context, c *client.Client, name string, want bool) {
	t.Helper()
	testkit.Until(t, fmt.Sprintf("the name is stale: %v", want), func() (bool, string) {
		x, err := c.Get(ctx, name)
		if err != nil {
			return false, err.Error()
		}
		defer x.Release()
		return x.Stale == want, fmt.Sprint(x.Stale)
	})
}

// briefly is for what does not come to an end otherwise.
func briefly(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(testkit.Context(t), 5*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestNamesWithoutJetStream(t *testing.T) {
	h := startHosts(t, "--span=team")
	a, b := h.connect()
	first, err := numbered(t, h.ctx, a, "x", 1)
	require.NoError(t, err)
	require.EqualValues(t, 1, comes(t, h.ctx, b, "x", first))
	stale(t, h.ctx, b, "x", false)
	h.server.Kill()
	for _, c := range []*client.Client{a, b} {
		stale(t, h.ctx, c, "x", true)
		require.EqualValues(t, 1, comes(t, h.ctx, c, "x", first))
	}
	other := h.b.Connect(client.WithNamespace("other"))
	_, err = numbered(t, h.ctx, other, "x", 1)
	require.NoError(t, err, "names of other namespaces are set as ever")
	_, err = b.Get(h.ctx, "unknown")
	require.ErrorIs(t, err, protocol.ErrUnreachable)
	_, err = numbered(t, briefly(t), b, "x", 2)
	require.ErrorIs(t, err, protocol.ErrUnreachable)
	require.EqualValues(t, 1, comes(t, h.ctx, b, "x", first))
	h.server = h.nats.start(h.a)
	stale(t, h.ctx, b, "x", false)
	second, err := numbered(t, h.ctx, b, "x", 3)
	require.NoError(t, err)
	require.EqualValues(t, 3, comes(t, h.ctx, a, "x", second))
}

func TestNameOfAHostThatIsGone(t *testing.T) {
	var third *testkit.Broker
	h := startHostsWith(t, func(h *hostsOf) []*testkit.Broker {
		third = testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.JoinNATS = h.nats.spanning("--span") })
		return []*testkit.Broker{third}
	})
	a, b := h.connect()
	c := third.Connect(client.WithNamespace("team"))
	both, err := numbered(t, h.ctx, a, "both", 1)
	require.NoError(t, err)
	require.EqualValues(t, 1, comes(t, h.ctx, b, "both", both))
	_, err = numbered(t, h.ctx, a, "alone", 2)
	require.NoError(t, err)
	h.a.Kill()
	got, err := c.Get(h.ctx, "both")
	require.NoError(t, err, "another host has it")
	require.Equal(t, both, got.Revision)
	require.EqualValues(t, 1, numberOf(t, got))
	_, err = b.Get(h.ctx, "alone")
	require.ErrorIs(t, err, protocol.ErrHostLost)
	require.ErrorContains(t, err, a.Instance())
	next, err := numbered(t, h.ctx, c, "alone", 3)
	require.NoError(t, err)
	require.EqualValues(t, 3, comes(t, h.ctx, b, "alone", next), "until the next set")
	h.a.Restart()
}

// A broker that dies when a set is agreed on, and not visible yet, leaves it to the next one: nothing is set twice.
func TestBrokerThatDiesBetweenAgreementAndVisibility(t *testing.T) {
	var third *testkit.Broker
	h := startHostsWith(t, func(h *hostsOf) []*testkit.Broker {
		third = testkit.StartBroker(t, func(c *testkit.BrokerConfig) {
			c.JoinNATS, c.CrashPoint = h.nats.spanning("--span"), crashpoint.HostPoints[0].Name
		})
		return []*testkit.Broker{third}
	})
	_, b := h.connect()
	c := third.Connect(client.WithNamespace("team"))
	w, err := b.Watch(h.ctx, "x")
	require.NoError(t, err)
	defer w.Close()
	set := make(chan uint64, 1)
	go func() {
		revision, err := numbered(t, h.ctx, c, "x", 7)
		if err != nil {
			t.Error(err)
		}
		set <- revision
	}()
	third.Crashed()
	third.Restart()
	revision := <-set
	got, err := w.Next(h.ctx)
	require.NoError(t, err)
	require.Equal(t, revision, got.Revision, "it was set once")
	require.EqualValues(t, 7, numberOf(t, got))
	got, err = c.Get(h.ctx, "x")
	require.NoError(t, err)
	require.Equal(t, revision, got.Revision)
	got.Release()
	js := h.jetstream()
	stream, err := js.Stream(h.ctx, "KV_"+names.BucketName("team"))
	require.NoError(t, err)
	require.EqualValues(t, 1, stream.CachedInfo().State.LastSeq)
}

func TestNamesGoOnAfterTheirBucketWasLost(t *testing.T) {
	h := startHosts(t)
	a, b := h.connect()
	var last uint64
	for n := range int64(20) {
		var err error
		last, err = numbered(t, h.ctx, a, "x", n)
		require.NoError(t, err)
	}
	require.EqualValues(t, 19, comes(t, h.ctx, b, "x", last))
	_, err := numbered(t, h.ctx, b, "y", 5)
	require.NoError(t, err)
	js := h.jetstream()
	require.NoError(t, js.DeleteStream(h.ctx, "KV_"+names.BucketName("team")))
	for _, c := range []*client.Client{a, b} { // it is put back, and above what it was
		require.EqualValues(t, 19, comes(t, h.ctx, c, "x", last+1))
		stale(t, h.ctx, c, "x", false)
	}
	next, err := numbered(t, h.ctx, b, "x", 100)
	require.NoError(t, err)
	require.Greater(t, next, last)
	require.EqualValues(t, 100, comes(t, h.ctx, a, "x", next))
	require.EqualValues(t, 5, comes(t, h.ctx, a, "y", 1))
}

func TestBucketWithOtherSettingsIsRefused(t *testing.T) {
	h := startHosts(t)
	a, _ := h.connect()
	js := h.jetstream()
	_, err := js.CreateKeyValue(h.ctx, jetstream.KeyValueConfig{Bucket: names.BucketName("team"), Storage: jetstream.MemoryStorage})
	require.NoError(t, err)
	_, err = numbered(t, h.ctx, a, "x", 1)
	require.ErrorIs(t, err, protocol.ErrUnsupported)
	require.ErrorContains(t, err, "its storage is not file")
	require.ErrorContains(t, err, "nats stream edit")
	require.NoError(t, js.DeleteKeyValue(h.ctx, names.BucketName("team")))
	testkit.Until(t, "it is made anew", func() (bool, string) {
		_, err := numbered(t, h.ctx, a, "x", 1)
		return err == nil, fmt.Sprint(err)
	})
}

// A set of which nothing is known is held until it is.
func TestSetThatIsNotAnsweredIsHeldUntilItIsKnown(t *testing.T) {
	h := startHosts(t)
	a, b := h.connect()
	first, err := numbered(t, h.ctx, a, "x", 1)
	require.NoError(t, err)
	require.EqualValues(t, 1, comes(t, h.ctx, b, "x", first))
	h.server.Stop()
	_, err = numbered(t, briefly(t), a, "x", 2)
	require.ErrorIs(t, err, protocol.ErrUnreachable)
	h.server.Cont()
	third, err := numbered(t, h.ctx, a, "x", 3)
	require.NoError(t, err, "it waits until the one before is known")
	require.EqualValues(t, 3, comes(t, h.ctx, b, "x", third))
}

// A broker that is replaced, or ends and is followed by another one, loses no set, and its names stay as they are.
func TestSetsGoOnWhileBrokersAreReplaced(t *testing.T) {
	h := startHosts(t)
	a, b := h.connect()
	w, err := b.Watch(h.ctx, "x")
	require.NoError(t, err)
	defer w.Close()
	last := uint64(0)
	for n := range int64(30) {
		switch n {
		case 10:
			h.a.Replace()
		case 20:
			h.b.Term()
			h.b.Restart()
		}
		revision, err := numbered(t, h.ctx, a, "x", n)
		require.NoError(t, err)
		require.Greater(t, revision, last)
		last = revision
		for got := uint64(0); got < revision; {
			x, err := w.Next(h.ctx)
			require.NoError(t, err)
			got = x.Revision
			numberOf(t, x)
		}
	}
	stale(t, h.ctx, b, "x", false)
}

// Revisions that were replaced make room for those that follow: a watcher goes on with little remote memory.
func TestWatcherGoesOnWithLittleRemoteMemory(t *testing.T) {
	h := startHosts(t, "--span", "--remote-memory=64M")
	a, b := h.connect()
	w, err := b.Watch(h.ctx, "x")
	require.NoError(t, err)
	defer w.Close()
	for n := range uint64(40) {
		x, want := random(t, h.ctx, a, 16<<20, n)
		revision, err := a.Set(h.ctx, "x", x)
		require.NoError(t, err)
		for got := uint64(0); got < revision; {
			y, err := w.Next(h.ctx)
			require.NoError(t, err)
			if got = y.Revision; got == revision {
				have, err := y.Tensors()[0].Bytes()
				require.NoError(t, err)
				require.True(t, bytes.Equal(want, have))
			}
			y.Release()
		}
		x.Release()
	}
	s := hostStatus(t, h.ctx, b)
	require.LessOrEqual(t, s.Kept.Bytes, uint64(64<<20))
	require.LessOrEqual(t, s.Fetched, uint64(40))
}

// What no program has open makes room.
func TestNamesThatAreNotOpenMakeRoom(t *testing.T) {
	h := startHosts(t, "--span", "--remote-memory=64M")
	a, _ := h.connect()
	for _, name := range []string{"one", "two", "one"} {
		x, want := random(t, h.ctx, a, 40<<20, uint64(len(name)))
		revision, err := a.Set(h.ctx, name, x)
		require.NoError(t, err)
		x.Release()
		reader := h.b.Connect(client.WithNamespace("team"))
		got, err := reader.Get(h.ctx, name)
		require.NoError(t, err)
		require.Equal(t, revision, got.Revision)
		have, err := got.Tensors()[0].Bytes()
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, have))
		got.Release()
		require.NoError(t, reader.Close())
	}
}

// What came by itself, and no program has opened since, makes room before what a program has asked for.
func TestWhatCameAheadMakesRoomFirst(t *testing.T) {
	h := startHosts(t, "--span", "--remote-memory=80M")
	a, _ := h.connect()
	set := func(name string, size int, seed uint64) uint64 {
		x, _ := random(t, h.ctx, a, size, seed)
		defer x.Release()
		revision, err := a.Set(h.ctx, name, x)
		require.NoError(t, err)
		return revision
	}
	read := func(c *client.Client, name string) {
		got, err := c.Get(h.ctx, name)
		require.NoError(t, err)
		got.Release()
	}
	for round := range uint64(4) { // the order of names is any
		ahead, asked, more := fmt.Sprintf("ahead%d", round), fmt.Sprintf("asked%d", round), fmt.Sprintf("more%d", round)
		set(ahead, 24<<20, 1)
		set(asked, 24<<20, 2)
		set(more, 40<<20, 3)
		first := h.b.Connect(client.WithNamespace("team"))
		read(first, asked)
		require.NoError(t, first.Close())
		second := h.b.Connect(client.WithNamespace("team"))
		w, err := second.Watch(h.ctx, ahead)
		require.NoError(t, err)
		newest := set(ahead, 24<<20, 4)
		farNames(t, h.ctx, second, "the newest has come by itself", func(rows []broker.NameRow) bool {
			for _, r := range rows {
				if r.Name == ahead {
					return !r.Far && r.Revision == newest
				}
			}
			return false
		})
		require.NoError(t, w.Close())
		require.NoError(t, second.Close())
		third := h.b.Connect(client.WithNamespace("team"))
		read(third, more)
		far := map[string]bool{}
		farNames(t, h.ctx, third, "names are listed", func(rows []broker.NameRow) bool {
			for _, r := range rows {
				far[r.Name] = r.Far
			}
			return true
		})
		require.True(t, far[ahead], "it made room")
		require.False(t, far[asked])
		for _, name := range []string{ahead, asked, more} {
			require.NoError(t, third.Delete(h.ctx, name))
		}
		require.NoError(t, third.Close())
	}
}

// farNames waits until the names of a host are so.
func farNames(t *testing.T, ctx context.Context, c *client.Client, what string, so func([]broker.NameRow) bool) {
	t.Helper()
	testkit.Until(t, what, func() (bool, string) {
		var reply struct{ Rows []broker.NameRow }
		require.NoError(t, c.Broker(ctx, protocol.OpList, protocol.List{What: protocol.ListNames}, &reply))
		text, _ := json.Marshal(reply)
		return so(reply.Rows), string(text)
	})
}
