package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker/natsbridge"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

func withNATS(c *testkit.BrokerConfig) { c.NATS = true }

// plainNATS connects to a broker's NATS as any client of it does.
func plainNATS(t *testing.T, b *testkit.Broker) *nats.Conn {
	t.Helper()
	var info natsbridge.Info
	testkit.Until(t, "the broker has NATS", func() (bool, string) { // it serves clients before
		var err error
		info, err = natsbridge.ReadInfo(b.Dir)
		return err == nil, fmt.Sprint(err)
	})
	nc, err := info.Connect(nats.Timeout(testkit.Patience))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc
}

func subscribe(t *testing.T, nc *nats.Conn, subject string) *nats.Subscription {
	t.Helper()
	s, err := nc.SubscribeSync(subject)
	require.NoError(t, err)
	require.NoError(t, s.SetPendingLimits(-1, -1))
	require.NoError(t, nc.Flush())
	return s
}

// nextTuple waits for a tuple and reads it.
func nextTuple(t *testing.T, ctx context.Context, s *nats.Subscription) (tuple protocol.Tuple, subject string) {
	t.Helper()
	m, err := s.NextMsgWithContext(ctx)
	require.NoError(t, err)
	tuple, err = protocol.ParseTuple(m.Data)
	require.NoError(t, err)
	return tuple, m.Subject
}

// sendFilled sends a tensor of the seed 1, in memory of its own.
func sendFilled(t *testing.T, ctx context.Context, c *client.Client, to *client.Topic, opts ...client.SendOption) {
	t.Helper()
	x, err := filled(ctx, c, 512, 1)
	require.NoError(t, err)
	require.NoError(t, to.Send(ctx, x, opts...))
	x.Release()
}

func TestTupleIsSeenOnNATSAndClaimedInAnotherProcess(t *testing.T) {
	b := testkit.StartBroker(t, withNATS)
	ctx := testkit.Context(t)
	s := subscribe(t, plainNATS(t, b), "baton."+b.Namespace+".topic.batches.train")
	c := b.Connect()
	topic, err := c.Topic(ctx, "batches/train", client.Depth(16))
	require.NoError(t, err)
	claimer := b.Start("open", nil)
	var first protocol.Handle
	for i := range 16 {
		sendFilled(t, ctx, c, topic, client.Meta(map[string]int{"step": i}))
		tuple, _ := nextTuple(t, ctx, s)
		assert.Equal(t, "batches/train", tuple.Topic)
		assert.EqualValues(t, i+1, tuple.Sequence)
		assert.Zero(t, tuple.Lost)
		assert.JSONEq(t, fmt.Sprintf(`{"step":%d}`, i), string(tuple.Meta))
		require.Len(t, tuple.Tensors, 1)
		h := tuple.Tensors[0].Handle
		if i == 0 {
			first = h
		}
		claimer.Tell(h)
		var got opened
		claimer.Next(&got)
		require.Equal(t, opened{ReadOnly: true}, got, "what was sent, which the topic still keeps")
		claimer.Tell("release it")
		claimer.Next(new(string))
	}
	for range 16 {
		sendFilled(t, ctx, c, topic) // in place of the others
	}
	testkit.Until(t, "its memory has been recycled", func() (bool, string) {
		c.Collect()
		x, err := c.Open(ctx, first)
		if err == nil {
			x.Release()
		}
		return errors.Is(err, protocol.ErrExpired), fmt.Sprint(err)
	})
	claimer.Tell(first)
	var got opened
	claimer.Next(&got)
	require.Contains(t, got.Error, "no longer kept")
	claimer.Done()
}

func TestTuplesTellHowManyWentByBetweenThem(t *testing.T) {
	b := testkit.StartBroker(t, withNATS)
	ctx := testkit.Context(t)
	s := subscribe(t, plainNATS(t, b), "baton."+b.Namespace+".topic.fast")
	const count = 5000
	p := b.Start("send", sendConfig{channel: channel{Topic: "fast", Depth: 2}, From: "fast", Count: count, Words: 64, Stay: true})
	p.Next(new(string))
	p.Tell("go")
	p.Next(new(int))
	seen, lost := 0, uint64(0)
	for last := uint64(0); last < count; seen++ {
		tuple, _ := nextTuple(t, ctx, s)
		require.Equal(t, last+tuple.Lost+1, tuple.Sequence)
		last, lost = tuple.Sequence, lost+tuple.Lost
	}
	assert.EqualValues(t, count, uint64(seen)+lost)
	untilNATS(t, ctx, b.Connect(), "what is lost is counted as dropped, once", func(s natsbridge.Status) bool {
		return s.Published == uint64(seen) && s.Dropped == lost
	})
	p.Done()
}

func TestPrivateTopicsAndOtherNamespacesStayWhereTheyAre(t *testing.T) {
	b := testkit.StartBroker(t, withNATS)
	ctx := testkit.Context(t)
	nc := plainNATS(t, b)
	all := subscribe(t, nc, "baton.>")
	own := subscribe(t, nc, "baton."+b.Namespace+".>")
	c, other := b.Connect(), b.Connect(client.WithNamespace("elsewhere"))
	private, err := c.Topic(ctx, "")
	require.NoError(t, err)
	sendFilled(t, ctx, c, private)
	foreign, err := other.Topic(ctx, "same")
	require.NoError(t, err)
	sendFilled(t, ctx, other, foreign)
	tuple, subject := nextTuple(t, ctx, all)
	require.Equal(t, "baton.elsewhere.topic.same", subject, "and nothing of the private one before it")
	require.Equal(t, "same", tuple.Topic)
	topic, err := c.Topic(ctx, "same")
	require.NoError(t, err)
	sendFilled(t, ctx, c, private)
	sendFilled(t, ctx, c, topic)
	_, subject = nextTuple(t, ctx, own)
	require.Equal(t, "baton."+b.Namespace+".topic.same", subject)
	_, subject = nextTuple(t, ctx, all)
	require.Equal(t, "baton."+b.Namespace+".topic.same", subject)
}

// natsStatus asks the broker how its NATS does.
func natsStatus(t *testing.T, ctx context.Context, c *client.Client) natsbridge.Status {
	t.Helper()
	var status struct {
		Extra struct{ NATS natsbridge.Status }
	}
	require.NoError(t, c.Broker(ctx, protocol.OpStatus, nil, &status))
	return status.Extra.NATS
}

func untilNATS(t *testing.T, ctx context.Context, c *client.Client, what string, ok func(natsbridge.Status) bool) {
	t.Helper()
	testkit.Until(t, what, func() (bool, string) {
		s := natsStatus(t, ctx, c)
		return ok(s), fmt.Sprintf("%+v", s)
	})
}

// revisionOnNATS reads a name's revision from the bucket of its namespace.
func revisionOnNATS(t *testing.T, nc *nats.Conn, b *testkit.Broker, name string) func() uint64 {
	js, err := nc.JetStream()
	require.NoError(t, err)
	return func() uint64 {
		kv, err := js.KeyValue("baton-" + b.Namespace)
		if err != nil {
			return 0
		}
		e, err := kv.Get(name)
		if err != nil {
			return 0
		}
		tuple, err := protocol.ParseTuple(e.Value())
		require.NoError(t, err)
		return tuple.Sequence
	}
}

func TestOperatorsNATSMayGoAndComeBack(t *testing.T) {
	o := newOperatorsNATS(t)
	b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.JoinNATS = o.flags() })
	ctx := testkit.Context(t)
	c := b.Connect()
	require.False(t, natsStatus(t, ctx, c).Connected, "the broker serves before there is NATS")
	server := o.start(b)
	connected := func(s natsbridge.Status) bool { return s.Connected }
	untilNATS(t, ctx, c, "the broker has joined", connected)

	nc := o.connect()
	s := subscribe(t, nc, "baton."+b.Namespace+".topic.batches")
	topic, err := c.Topic(ctx, "batches")
	require.NoError(t, err)
	reader, err := topic.Reader(ctx)
	require.NoError(t, err)
	sendFilled(t, ctx, c, topic)
	tuple, _ := nextTuple(t, ctx, s)
	require.EqualValues(t, 1, tuple.Sequence)
	revision := revisionOnNATS(t, nc, b, "weights.actor")
	set := func() {
		x, err := filled(ctx, c, 8, 1)
		require.NoError(t, err)
		_, err = c.Set(ctx, "weights/actor", x)
		require.NoError(t, err)
		x.Release()
	}
	set()
	testkit.Until(t, "the name is mirrored", func() (bool, string) { n := revision(); return n == 1, fmt.Sprint(n) })

	server.Kill()
	untilNATS(t, ctx, c, "status tells that NATS is away", func(s natsbridge.Status) bool { return !s.Connected && s.LastError != "" })
	for range 3 {
		sendFilled(t, ctx, c, topic)
	}
	set()
	for i := range 4 {
		m, err := reader.Receive(ctx)
		require.NoError(t, err)
		require.EqualValues(t, i+1, m.Sequence, "hand-over needs no NATS")
		m.Release()
	}

	server = o.start(b)
	untilNATS(t, ctx, c, "the broker has joined again", connected)
	testkit.Until(t, "the subscriber is back", func() (bool, string) { return nc.IsConnected(), nc.Status().String() })
	require.NoError(t, nc.Flush())
	sendFilled(t, ctx, c, topic)
	for tuple, _ = nextTuple(t, ctx, s); tuple.Sequence < 5; tuple, _ = nextTuple(t, ctx, s) {
		require.Greater(t, tuple.Sequence, uint64(1))
	}
	require.EqualValues(t, 5, tuple.Sequence)
	testkit.Until(t, "the newer revision is mirrored", func() (bool, string) { n := revision(); return n == 2, fmt.Sprint(n) })
	require.NoError(t, c.Delete(ctx, "weights/actor"))
	testkit.Until(t, "its end too", func() (bool, string) { n := revision(); return n == 0, fmt.Sprint(n) })
	server.Done()
}

// joinedNATS starts a NATS server of others, that asks for credentials, and a broker that has joined it.
func joinedNATS(t *testing.T) (b *testkit.Broker, c *client.Client, server *testkit.Process, url string) {
	config, creds := operatorWithAccount(t)
	config.Port = testkit.HeldPort(t)
	url = fmt.Sprintf("nats://127.0.0.1:%d", config.Port)
	b = testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.JoinNATS = []string{"--nats", url, "--nats-creds", creds} })
	server = b.Start("nats-server", config)
	server.Next(new(int))
	c = b.Connect()
	untilNATS(t, testkit.Context(t), c, "the broker has joined", func(s natsbridge.Status) bool { return s.Connected })
	return b, c, server, url
}

func TestBrokerJoinsWithCredentials(t *testing.T) {
	ctx := testkit.Context(t)
	b, c, server, url := joinedNATS(t)
	_, err := nats.Connect(url, nats.Timeout(testkit.Patience))
	require.ErrorIs(t, err, nats.ErrAuthorization, "the server asks for credentials")
	s := subscribe(t, plainNATS(t, b), "baton."+b.Namespace+".topic.batches")
	topic, err := c.Topic(ctx, "batches")
	require.NoError(t, err)
	sendFilled(t, ctx, c, topic)
	tuple, _ := nextTuple(t, ctx, s)
	require.EqualValues(t, 1, tuple.Sequence)
	server.Done()
}

// A server that gives no sign of life is away, though its connection stands.
func TestStatusTellsThatANATSServerHangs(t *testing.T) {
	ctx := testkit.Context(t)
	_, c, server, _ := joinedNATS(t)
	server.Stop()
	untilNATS(t, ctx, c, "status tells that NATS hangs", func(s natsbridge.Status) bool { return !s.Connected && s.LastError != "" })
	server.Cont()
	untilNATS(t, ctx, c, "the broker has joined again", func(s natsbridge.Status) bool { return s.Connected })
	server.Done()
}
