package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/broker/natsbridge"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// valueOnNATS reads a name's value from the bucket of a namespace, nil if there is none.
func valueOnNATS(t *testing.T, nc *nats.Conn, namespace, key string) []byte {
	t.Helper()
	js, err := nc.JetStream()
	require.NoError(t, err)
	kv, err := js.KeyValue("baton-" + namespace)
	if err != nil {
		return nil
	}
	e, err := kv.Get(key)
	if err != nil {
		return nil
	}
	return e.Value()
}

// hostOnNATS is the instance whose tuple stands in a key.
func hostOnNATS(t *testing.T, nc *nats.Conn, namespace, key string) string {
	t.Helper()
	value := valueOnNATS(t, nc, namespace, key)
	if value == nil {
		return ""
	}
	tuple, err := protocol.ParseTuple(value)
	require.NoError(t, err)
	return tuple.Host
}

// onNATS is what the listing of names says of one.
func onNATS(t *testing.T, ctx context.Context, c *client.Client, name string) string {
	t.Helper()
	var reply protocol.ListReply
	require.NoError(t, c.Broker(ctx, protocol.OpList, protocol.List{What: protocol.ListNames, Pattern: name}, &reply))
	require.Len(t, reply.Rows, 1)
	var row broker.NameRow
	require.NoError(t, json.Unmarshal(reply.Rows[0], &row))
	return row.NATS
}

func setName(t *testing.T, ctx context.Context, c *client.Client, name string) {
	t.Helper()
	x, err := filled(ctx, c, 8, 1)
	require.NoError(t, err)
	defer x.Release()
	_, err = c.Set(ctx, name, x)
	require.NoError(t, err)
}

func brokerStatus(t *testing.T, ctx context.Context, c *client.Client) (s broker.Status) {
	t.Helper()
	require.NoError(t, c.Broker(ctx, protocol.OpStatus, nil, &s))
	return s
}

// secondBroker starts a broker that joins the embedded NATS of another one.
func secondBroker(t *testing.T, b *testkit.Broker) *testkit.Broker {
	t.Helper()
	plainNATS(t, b)
	info, err := natsbridge.ReadInfo(b.Dir)
	require.NoError(t, err)
	return testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.JoinNATS = []string{"--nats", info.URL, "--nats-nkey", info.Seed} })
}

func TestBrokersThatShareNATSLeaveEachOthersNamesAlone(t *testing.T) {
	first := testkit.StartBroker(t, withNATS)
	ctx := testkit.Context(t)
	second := secondBroker(t, first)
	a, b := first.Connect(), second.Connect(client.WithNamespace(first.Namespace))
	nc := plainNATS(t, first)
	setName(t, ctx, a, "weights/actor")
	untilNATS(t, ctx, a, "the name is mirrored", func(s natsbridge.Status) bool { return s.Names.State == natsbridge.NamesMirrored })
	setName(t, ctx, b, "weights/actor")
	setName(t, ctx, b, "other")
	untilNATS(t, ctx, b, "the second finds its key taken", func(s natsbridge.Status) bool { return s.Names.Foreign == 1 && s.Names.Mirrored == 1 })
	ofA, ofB := brokerStatus(t, ctx, a), brokerStatus(t, ctx, b)
	require.Equal(t, ofA.Instance, hostOnNATS(t, nc, first.Namespace, "weights.actor"))
	require.Equal(t, ofB.Instance, hostOnNATS(t, nc, first.Namespace, "other"))
	require.Equal(t, "mirrored", onNATS(t, ctx, a, "weights/actor"))
	require.Equal(t, "mirrored", onNATS(t, ctx, b, "other"))
	host, err := os.Hostname()
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("key of broker %s on %s (pid %d)", ofA.Instance, host, ofA.PID), onNATS(t, ctx, b, "weights/actor"))
	require.Equal(t, 1, strings.Count(second.Process().Log(), "another broker's on NATS"), second.Process().Log())

	// Both go on locally.
	got, err := b.Get(ctx, "weights/actor")
	require.NoError(t, err)
	got.Release()
	// The second takes the key when the first lets it go, and each end takes its own.
	require.NoError(t, a.Delete(ctx, "weights/actor"))
	untilNATS(t, ctx, b, "the second has both keys", func(s natsbridge.Status) bool { return s.Names.State == natsbridge.NamesMirrored })
	require.Equal(t, ofB.Instance, hostOnNATS(t, nc, first.Namespace, "weights.actor"))
	setName(t, ctx, a, "own")
	untilNATS(t, ctx, a, "the first has a name again", func(s natsbridge.Status) bool { return s.Names.State == natsbridge.NamesMirrored })
	b.Close()
	second.End()
	testkit.Until(t, "the second's keys have gone", func() (bool, string) {
		h := hostOnNATS(t, nc, first.Namespace, "weights.actor")
		return h == "", h
	})
	require.Empty(t, hostOnNATS(t, nc, first.Namespace, "other"))
	require.Equal(t, ofA.Instance, hostOnNATS(t, nc, first.Namespace, "own"))
}

func TestTuplesTellTheirMachineAndProcesses(t *testing.T) {
	b := testkit.StartBroker(t, withNATS)
	ctx := testkit.Context(t)
	nc := plainNATS(t, b)
	s := subscribe(t, nc, "baton."+b.Namespace+".topic.batches")
	c := b.Connect()
	topic, err := c.Topic(ctx, "batches")
	require.NoError(t, err)
	sendFilled(t, ctx, c, topic)
	host, err := os.Hostname()
	require.NoError(t, err)
	want := protocol.Origin{HostName: host, Machine: sys.BootID(), BrokerPID: uint32(brokerStatus(t, ctx, c).PID), PID: uint32(os.Getpid())}
	tuple, _ := nextTuple(t, ctx, s)
	assert.Equal(t, want, tuple.Origin)
	setName(t, ctx, c, "weights")
	untilNATS(t, ctx, c, "the name is mirrored", func(s natsbridge.Status) bool { return s.Names.State == natsbridge.NamesMirrored })
	tuple, err = protocol.ParseTuple(valueOnNATS(t, nc, b.Namespace, "weights"))
	require.NoError(t, err)
	assert.Equal(t, want, tuple.Origin)

	// One that another process sends has that one's.
	p := b.Start("send", sendConfig{channel: channel{Topic: "batches", Depth: 8}, From: "other", Count: 1, Words: 64, Stay: true})
	p.Next(new(string))
	p.Tell("go")
	p.Next(new(int))
	tuple, _ = nextTuple(t, ctx, s)
	want.PID = uint32(p.PID())
	assert.Equal(t, want, tuple.Origin)
	p.Done()
}

func TestNameOfManyTensorsIsReadOnNATSPieceByPiece(t *testing.T) {
	b := testkit.StartBroker(t, withNATS)
	ctx := testkit.Context(t)
	nc := plainNATS(t, b)
	c := b.Connect()
	const count = 5000
	x, err := filled(ctx, c, 8, 1)
	require.NoError(t, err)
	bundle := map[string]*client.Tensor{}
	for i := range count {
		bundle[fmt.Sprintf("layer/%d/weight", i)] = x
	}
	_, err = c.Set(ctx, "weights", bundle)
	require.NoError(t, err)
	untilNATS(t, ctx, c, "it stands there by reference", func(s natsbridge.Status) bool { return s.Names.References == 1 })
	require.Equal(t, "mirrored, by reference", onNATS(t, ctx, c, "weights"))
	r, err := protocol.ParseTupleReference(valueOnNATS(t, nc, b.Namespace, "weights"))
	require.NoError(t, err)
	require.EqualValues(t, count, r.Tensors)
	require.Equal(t, brokerStatus(t, ctx, c).Instance, r.Host)
	var text []byte
	for uint64(len(text)) < r.Bytes {
		m, err := nc.RequestWithContext(ctx, r.Subject, fmt.Appendf(nil, `{"revision":%d,"offset":%d}`, r.Sequence, len(text)))
		require.NoError(t, err)
		require.Empty(t, m.Header.Get("Nats-Service-Error"))
		text = append(text, m.Data...)
	}
	tuple, err := protocol.ParseTuple(text)
	require.NoError(t, err)
	require.Len(t, tuple.Tensors, count)
	y, err := c.Open(ctx, tuple.Tensors[count-1].Handle)
	require.NoError(t, err)
	y.Release()
	x.Release()
}

func TestServiceAndNamesPassToTheBrokerThatTakesOver(t *testing.T) {
	first := testkit.StartBroker(t, withNATS)
	ctx := testkit.Context(t)
	second := secondBroker(t, first)
	c := second.Connect(client.WithNamespace(first.Namespace))
	nc := plainNATS(t, first)
	setName(t, ctx, c, "weights/actor")
	setName(t, ctx, c, "other")
	untilNATS(t, ctx, c, "the names are mirrored", func(s natsbridge.Status) bool { return s.Names.Mirrored == 2 })
	before := brokerStatus(t, ctx, c)
	js, err := nc.JetStream()
	require.NoError(t, err)
	kv, err := js.KeyValue("baton-" + first.Namespace)
	require.NoError(t, err)
	w, err := kv.WatchAll(nats.UpdatesOnly())
	require.NoError(t, err)
	defer w.Stop()

	second.Replace()
	setName(t, ctx, c, "last")
	after := brokerStatus(t, ctx, c)
	require.Equal(t, before.Instance, after.Instance)
	require.NotEqual(t, before.PID, after.PID)
	for seen := map[string]bool{}; len(seen) < 3; {
		e := <-w.Updates()
		require.Equal(t, nats.KeyValuePut, e.Operation(), "no key goes when another broker takes over")
		tuple, err := protocol.ParseTuple(e.Value())
		require.NoError(t, err)
		require.EqualValues(t, after.PID, tuple.Origin.BrokerPID)
		seen[e.Key()] = true
	}
	pids := map[string]string{}
	inbox := nats.NewInbox()
	s := subscribe(t, nc, inbox)
	require.NoError(t, nc.PublishRequest("$SRV.INFO.baton", inbox, nil))
	for range 2 {
		m, err := s.NextMsgWithContext(ctx)
		require.NoError(t, err)
		var info micro.Info
		require.NoError(t, json.Unmarshal(m.Data, &info))
		pids[info.Metadata["instance"]] = info.Metadata["pid"]
	}
	require.Equal(t, fmt.Sprint(after.PID), pids[after.Instance])
	require.Len(t, pids, 2, "one answer for each broker")
}
