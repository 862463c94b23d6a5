package natsbridge_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker/natsbridge"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// ask sends a request as any client of NATS does.
func ask(t *testing.T, nc *nats.Conn, subject, text string) *nats.Msg {
	t.Helper()
	m, err := nc.RequestWithContext(deadline(t), subject, []byte(text))
	require.NoError(t, err)
	return m
}

// listed waits until brokers answer: they say that they are connected before the server
// knows what they answer on.
func listed(t *testing.T, nc *nats.Conn, instances ...string) {
	t.Helper()
	inbox := nats.NewInbox()
	sub := subscribe(t, nc, inbox)
	seen := map[string]bool{}
	for ctx := deadline(t); len(seen) < len(instances); {
		require.NoError(t, ctx.Err(), "%v of %v", seen, instances)
		require.NoError(t, nc.PublishRequest("$SRV.PING.baton", inbox, nil))
		for m, err := sub.NextMsg(10 * time.Millisecond); err == nil; m, err = sub.NextMsg(10 * time.Millisecond) {
			var p micro.Ping
			if json.Unmarshal(m.Data, &p) == nil && slices.Contains(instances, p.Metadata["instance"]) {
				seen[p.Metadata["instance"]] = true
			}
		}
	}
}

func asked[T any](t *testing.T, nc *nats.Conn, subject string) (out T) {
	t.Helper()
	require.NoError(t, json.Unmarshal(ask(t, nc, subject, "").Data, &out))
	return out
}

// brokers lists the brokers that answer: all of them, since the server has delivered a
// question to each before it confirms a flush, and each answers in order.
func brokers(t *testing.T, nc *nats.Conn, count int) (out []micro.Info) {
	t.Helper()
	inbox := nats.NewInbox()
	sub := subscribe(t, nc, inbox)
	require.NoError(t, nc.PublishRequest("$SRV.INFO.baton", inbox, nil))
	for range count {
		var i micro.Info
		require.NoError(t, json.Unmarshal(next(t, sub).Data, &i))
		out = append(out, i)
	}
	return out
}

func TestBrokerIsAServiceOfNATS(t *testing.T) {
	dir := runtimeDir(t)
	b := start(t, natsbridge.Config{RuntimeDir: dir, Owner: "a0a1", HostName: "node-7", Version: "1.2.3", Namespace: "train"})
	nc := client(t, dir)
	listed(t, nc, "a0a1")
	ping := asked[micro.Ping](t, nc, "$SRV.PING")
	require.Equal(t, "baton", ping.Name)
	info := asked[micro.Info](t, nc, "$SRV.INFO.baton."+ping.ID)
	require.Equal(t, "1.2.3", info.Version)
	want := map[string]string{"host": "node-7", "machine": sys.BootID(), "pid": fmt.Sprint(os.Getpid()), "instance": "a0a1",
		"namespace": "train", "protocol": fmt.Sprint(protocol.Version)}
	require.Equal(t, want, info.Metadata)
	require.Len(t, info.Endpoints, 1)
	require.Equal(t, "baton.train.host.a0a1.names.>", info.Endpoints[0].Subject)

	require.NoError(t, setName(b, "team", "a", 1, []byte("value")))
	wait(t, b, mirrored)
	want["namespace"] = "team,train"
	require.Equal(t, want, brokers(t, nc, 1)[0].Metadata)
	require.Equal(t, "value", string(ask(t, nc, "baton.team.host.a0a1.names.a", `{"offset":0}`).Data))
	stats := asked[micro.Stats](t, nc, "$SRV.STATS.baton")
	require.Len(t, stats.Endpoints, 2)
	requests := 0
	for _, e := range stats.Endpoints {
		requests += e.NumRequests
		require.JSONEq(t, `{"published":0,"dropped":0,"names":1,"mirrored":1}`, string(e.Data))
	}
	require.Equal(t, 1, requests)
}

func TestServiceComesBackWithTheServerAndEndsWithItsBroker(t *testing.T) {
	o := startOperator(t, nil)
	a, b := joined(t, o, "host-1"), joined(t, o, "host-2")
	wait(t, a, connected)
	wait(t, b, connected)
	instances := func(nc *nats.Conn, count int) map[string]bool {
		out := map[string]bool{}
		for _, i := range brokers(t, nc, count) {
			out[i.Metadata["instance"]] = true
		}
		return out
	}
	listed(t, o.client(), "host-1", "host-2")
	o.stop()
	wait(t, a, disconnected)
	wait(t, b, disconnected)
	o.start()
	wait(t, a, connected)
	wait(t, b, connected)
	nc := o.client()
	listed(t, nc, "host-1", "host-2")
	require.NoError(t, a.Close(deadline(t)))
	require.Equal(t, map[string]bool{"host-2": true}, instances(nc, 1))
	_, err := nc.RequestWithContext(deadline(t), "baton.default.host.host-1.names.a", nil)
	require.ErrorIs(t, err, nats.ErrNoResponders)
	require.NoError(t, b.Close(deadline(t)))
	_, err = nc.RequestWithContext(deadline(t), "$SRV.PING.baton", nil)
	require.ErrorIs(t, err, nats.ErrNoResponders)
}

func TestBrokerThatMayNotBeAServiceSaysSoAndGoesOn(t *testing.T) {
	o := startOperator(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "admin", Password: "p"}, {Username: "baton", Password: "p",
			Permissions: &server.Permissions{Subscribe: &server.SubjectPermission{Deny: []string{"$SRV.>"}}}}}
	})
	b := joined(t, o, "host-1", func(c *natsbridge.Config) { c.Join.User, c.Join.Password = "baton", "p" })
	s := wait(t, b, refuses("subscribe to $SRV.>"))
	require.Empty(t, s.LastError)
	require.Empty(t, s.Service)
	require.NoError(t, setName(b, "default", "a", 1, []byte("1")))
	wait(t, b, mirrored)
	require.Equal(t, "1", string(ask(t, o.client(nats.UserInfo("admin", "p")), "baton.default.host.host-1.names.a", `{"offset":0}`).Data))
}

// fetch gets a tuple piece by piece, with nothing but NATS.
func fetch(t *testing.T, nc *nats.Conn, r protocol.TupleReference) []byte {
	t.Helper()
	var out []byte
	for uint64(len(out)) < r.Bytes {
		m := ask(t, nc, r.Subject, fmt.Sprintf(`{"revision":%d,"offset":%d}`, r.Sequence, len(out)))
		require.Empty(t, m.Header.Get("Nats-Service-Error"))
		require.Equal(t, fmt.Sprint(r.Sequence), m.Header.Get("Baton-Revision"))
		require.NotEmpty(t, m.Data)
		out = append(out, m.Data...)
	}
	return out
}

func large(n int) []byte {
	out := make([]byte, n)
	for i := range out {
		out[i] = byte(rand.Uint32())
	}
	return out
}

func TestNameTooLargeStandsThereByReference(t *testing.T) {
	dir := runtimeDir(t)
	b := start(t, natsbridge.Config{RuntimeDir: dir, Owner: "a0a1"})
	require.NoError(t, setName(b, "default", "weights/actor", 1, []byte("small")))
	nc := client(t, dir)
	value := large(2<<20 + 1)
	require.NoError(t, setName(b, "default", "weights/actor", 2, value))
	s := wait(t, b, mirrored)
	require.Equal(t, natsbridge.NamesStatus{State: natsbridge.NamesMirrored, Buckets: 1, Names: 1, Mirrored: 1, References: 1}, s.Names)
	require.Equal(t, "mirrored, by reference", b.NameState("default", "weights/actor"))

	r, err := protocol.ParseTupleReference([]byte(bucket(t, nc, "default")["weights.actor"]))
	require.NoError(t, err)
	require.Equal(t, protocol.TupleReference{Topic: "weights/actor", Sender: "broker", Sequence: 2, Host: "a0a1",
		Subject: "baton.default.host.a0a1.names.weights.actor", Bytes: uint64(len(value)), Tensors: 3}, r)
	require.Equal(t, value, fetch(t, nc, r))

	require.JSONEq(t, fmt.Sprintf(`{"revision":2,"bytes":%d}`, len(value)), string(ask(t, nc, r.Subject, "").Data))
	for text, code := range map[string]string{`{"revision":1,"offset":0}`: "410", `{"offset":2097153}`: "400", `{`: "400", `{"offset":-1}`: "400"} {
		m := ask(t, nc, r.Subject, text)
		require.Equal(t, code, m.Header.Get("Nats-Service-Error-Code"), text)
		require.NotEmpty(t, m.Header.Get("Nats-Service-Error"), text)
	}
	require.Equal(t, "404", ask(t, nc, r.Subject+".x", "").Header.Get("Nats-Service-Error-Code"))

	require.NoError(t, setName(b, "default", "weights/actor", 3, []byte("small again")))
	require.Zero(t, wait(t, b, mirrored).Names.References)
	require.Equal(t, "small again", bucket(t, nc, "default")["weights.actor"])
	require.Equal(t, "410", ask(t, nc, r.Subject, `{"revision":2,"offset":0}`).Header.Get("Nats-Service-Error-Code"))
	require.NoError(t, b.DeleteName("default", "weights/actor"))
	wait(t, b, mirrored)
	require.Equal(t, "404", ask(t, nc, r.Subject, "").Header.Get("Nats-Service-Error-Code"))
}

// A bucket may take less than the server.
func TestNameTooLargeForItsBucketStandsThereByReference(t *testing.T) {
	o := startOperator(t, func(o *server.Options) { o.MaxPayload = 64 << 10 })
	b := joined(t, o, "host-1")
	value := large(200 << 10)
	require.NoError(t, setName(b, "default", "a", 1, value))
	require.NoError(t, setName(b, "default", "b", 1, large(64<<10)))
	require.NoError(t, setName(b, "default", "c", 1, large(60<<10)))
	require.Equal(t, 2, wait(t, b, mirrored).Names.References, "headers count, too")
	nc := o.client()
	r, err := protocol.ParseTupleReference([]byte(bucket(t, nc, "default")["a"]))
	require.NoError(t, err)
	require.Equal(t, value, fetch(t, nc, r))
}

func TestNameThatIsLeftOutIsNotSaidToBeMirrored(t *testing.T) {
	dir := runtimeDir(t)
	b := start(t, natsbridge.Config{RuntimeDir: dir})
	require.NoError(t, setName(b, "default", "a", 1, []byte("1")))
	require.NoError(t, setName(b, "default", "b", 1, []byte("1")))
	nc := client(t, dir)
	require.NoError(t, b.LeaveOut("default", "a", "it lies on a GPU"))
	s := wait(t, b, func(s natsbridge.Status) bool { return s.Names.Pending == 0 })
	require.Equal(t, natsbridge.NamesStatus{State: natsbridge.NamesPartly, Buckets: 1, Names: 2, Mirrored: 1, LeftOut: 1}, s.Names)
	require.Equal(t, "left out: it lies on a GPU", b.NameState("default", "a"))
	require.Equal(t, map[string]string{"b": "1"}, bucket(t, nc, "default"), "an older value would mislead")
	require.NoError(t, setName(b, "default", "a", 3, []byte("3")))
	wait(t, b, mirrored)
	require.Equal(t, map[string]string{"a": "3", "b": "1"}, bucket(t, nc, "default"))
}

// What is optional may be refused as a whole: the broker goes on without, whatever it lists later.
func TestBrokerGoesOnWithoutAnyOptionalRight(t *testing.T) {
	o := startOperator(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "baton", Password: "p", Permissions: &server.Permissions{Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}}}}}
	})
	b := joined(t, o, "host-1", func(c *natsbridge.Config) {
		c.Join.User, c.Join.Password = "baton", "p"
		c.Call = func(natsbridge.Function, natsbridge.FunctionRequest) {}
	})
	for i, refused := range []string{"$SRV.>", "baton.*.host.host-1.>", "baton.*.call.>"} {
		require.NoError(t, setName(b, fmt.Sprint("space-", i), "a", 1, []byte("1")))
		b.Functions([]natsbridge.Function{{Namespace: "default", Name: fmt.Sprint("f", i)}})
		wait(t, b, refuses("subscribe to "+refused))
	}
	b.Functions(nil)
	wait(t, b, func(s natsbridge.Status) bool { return !refuses("subscribe to baton.*.call.>")(s) })
}

// A list that no message holds is answered with an error that says so.
// The library asks for the counts with a lock that an update of the service takes: the answer needs none of the service.
func TestStatsAreAnsweredWhileTheServiceIsUpdated(t *testing.T) {
	o := startOperator(t, func(*server.Options) {})
	b := joined(t, o, "host-1")
	nc := o.client()
	listed(t, nc, "host-1")
	defer b.HoldService()()
	require.Len(t, asked[micro.Stats](t, nc, "$SRV.STATS.baton").Endpoints, 1)
}

func TestListThatIsLargerThanAMessageIsAnError(t *testing.T) {
	o := startOperator(t, func(o *server.Options) { o.MaxPayload = 16 << 10 })
	b := joined(t, o, "host-1", func(c *natsbridge.Config) { c.Call = func(natsbridge.Function, natsbridge.FunctionRequest) {} })
	var functions []natsbridge.Function
	for i := range 200 {
		functions = append(functions, natsbridge.Function{Namespace: "default", Name: fmt.Sprint("f", i)})
	}
	b.Functions(functions)
	nc := o.client()
	listed(t, nc, "host-1")
	for _, verb := range []string{"INFO", "STATS"} {
		for m := (*nats.Msg)(nil); m == nil || m.Header.Get(micro.ErrorHeader) == ""; { // while the service from before the functions answers
			m = ask(t, nc, "$SRV."+verb+".baton", "")
			if code := m.Header.Get(micro.ErrorCodeHeader); code != "" {
				require.Equal(t, "500", code)
				require.Contains(t, m.Header.Get(micro.ErrorHeader), "maximum payload exceeded")
			}
		}
	}
}
