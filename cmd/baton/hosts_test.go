package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/broker/machines"
	"github.com/baton-ipc/baton/broker/machines/names"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/cmd/baton/internal/doctor"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/internal/testkit/natstest"
	"github.com/baton-ipc/baton/protocol"
)

func TestSpanIsRefusedWithoutAWayToOtherHosts(t *testing.T) {
	p := newPlace(t)
	for _, k := range []struct {
		args []string
		text string
	}{
		{[]string{"--span"}, "give --nats URL too"},
		{[]string{"--span=a b", "--nats", "nats://127.0.0.1:1"}, `"a b" is no namespace`},
		{[]string{"--data=tcp", "--nats", "nats://127.0.0.1:1"}, "give --span too"},
		{[]string{"--data=smoke"}, "is none of auto, tcp, nats"},
		{[]string{"--data-tls=maybe"}, "is none of auto, on, off"},
		{[]string{"--data-tls=on", "--nats", "nats://127.0.0.1:1"}, "give --span too"},
		{[]string{"--span", "--nats", "nats://127.0.0.1:1", "--data-tls", "on", "--data=nats"}, "there are no direct connections"},
		{[]string{"--remote-memory=1G"}, "give --span too"},
		{[]string{"--span", "--nats", "nats://127.0.0.1:1", "--data-listen=7500"}, "write host:port"},
		{[]string{"--span", "--nats", "nats://127.0.0.1:1", "--data-listen=:7500", "--data=nats"}, "there is no data port"},
	} {
		r := p.baton(append([]string{"serve", "--check-config"}, k.args...)...)
		assert.Equal(t, 2, r.code, k.args)
		assert.Contains(t, r.err, k.text, k.args)
	}
	r := p.baton("serve", "--nats", "nats://127.0.0.1:1", "--span", "--data-listen", "192.0.2.1:7500")
	assert.NotZero(t, r.code)
	assert.Contains(t, r.err, "the data port cannot be opened")
}

func TestSpanStandsInTheFileAsTruthValueOrList(t *testing.T) {
	p := newPlace(t)
	for text, want := range map[string]string{`true`: "*", `false`: "", `["team-a", "team-b"]`: "team-a,team-b", `"team-a"`: "team-a", `["team-a", "*"]`: "*"} {
		file := p.write("baton.toml", "nats = \"nats://127.0.0.1:1\"\nspan = "+text+"\n")
		var got struct {
			Settings []struct{ Key, Value, Source string }
		}
		p.json(&got, "serve", "--check-config", "--config", file)
		for _, s := range got.Settings {
			if s.Key == "span" {
				assert.Equal(t, want, s.Value, text)
				assert.Equal(t, "file", s.Source)
			}
		}
	}
}

func TestHostsAreListedAndInTheStatus(t *testing.T) {
	server, one, two, alone := newPlace(t), newPlace(t), newPlace(t), newPlace(t)
	server.serveNATS()
	var n natsAnswer
	server.json(&n, "nats")
	for _, p := range []*place{one, two} {
		p.serveNATS("--nats", n.URL, "--nats-nkey", n.Seed, "--span")
		p.until("other hosts reach it", func() bool { return strings.Contains(p.must("status"), "spanning") })
	}
	var rows []broker.HostRow
	one.json(&rows, "ls", "hosts")
	require.Len(t, rows, 2)
	assert.True(t, rows[0].Own)
	assert.Equal(t, "reachable", rows[1].State)
	assert.Equal(t, rows[0].Machine, rows[1].Machine)
	assert.Len(t, rows[1].Data, 1)
	text := one.must("ls", "host")
	assert.Regexp(t, `^HOST +ON +PID +STATE`, text)
	assert.Regexp(t, rows[1].Host+` .* reachable +all `, text)
	status := one.must("status")
	assert.Regexp(t, `(?m)^bytes of hosts by +auto, data port 127\.0\.0\.1:\d+$`, status)
	assert.Regexp(t, `(?m)^kept of other hosts +0 B of .*, in 0$`, status)

	// What the broker itself holds of another host is ended by no command.
	ours, theirs := one.client(), two.client()
	h, err := one.tensor(ours, 1<<20).Handle(one.ctx())
	require.NoError(t, err)
	got, err := theirs.Open(two.ctx(), h)
	require.NoError(t, err)
	defer got.Release()
	why := two.must("why", "session", "hosts")
	assert.Regexp(t, `the broker's own session +when it has had no use for 30 s`, why)
	assert.NotRegexp(t, `own session.* evict`, why)

	encrypted := newPlace(t)
	encrypted.serveNATS("--nats", n.URL, "--nats-nkey", n.Seed, "--span", "--data-tls=on")
	encrypted.until("other hosts reach it", func() bool { return strings.Contains(encrypted.must("status"), "spanning") })
	assert.Regexp(t, `(?m)^bytes of hosts by +auto, TLS, data port 127\.0\.0\.1:\d+$`, encrypted.must("status"))
	encrypted.json(&rows, "ls", "hosts")
	require.Len(t, rows, 3)
	assert.Len(t, rows[0].Certificate, 64)
	for _, other := range rows[1:] {
		assert.Equal(t, "unreachable", other.State, "NATS is plain here, so that no bytes go over it")
		assert.Contains(t, other.Reason, "are not encrypted, and those of this host are")
	}
	text = one.must("ls", "hosts")
	assert.Regexp(t, rows[0].Host+` .* \(TLS\) .* are encrypted, and those of this host are not; bytes go over NATS`, text)

	alone.serve()
	alone.json(&rows, "ls", "hosts")
	assert.Empty(t, rows)
	assert.NotContains(t, alone.must("status"), "other hosts")
}

// hostFinding waits until the doctor has found something of a kind about other hosts.
func (p *place) hostFinding(kind string) (found finding) {
	p.t.Helper()
	p.until("the doctor finds "+kind, func() bool {
		var rows []finding
		r := p.baton("doctor", "--json")
		require.NoError(p.t, json.Unmarshal([]byte(r.out), &rows), r.out+r.err)
		for _, f := range rows {
			if f.Check == "other hosts" && f.Kind == kind {
				found = f
				return true
			}
		}
		return false
	})
	return found
}

// standsIn answers as another host, and writes what the directory has of it.
func standsIn(t *testing.T, nc *nats.Conn, h machines.Host, answers bool) {
	t.Helper()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	kv, err := js.KeyValue(t.Context(), machines.Bucket)
	require.NoError(t, err)
	data, err := json.Marshal(h)
	require.NoError(t, err)
	sub, err := nc.Subscribe("baton.*.host."+h.Host+".ping", func(m *nats.Msg) {
		if answers {
			m.Respond([]byte(`{"life":"` + h.Life + `","lowest":1,"highest":1}`))
		}
	})
	require.NoError(t, err)
	t.Cleanup(func() { sub.Unsubscribe() })
	_, err = kv.Put(t.Context(), h.Host, data)
	require.NoError(t, err)
}

func TestDoctorSeesWhatKeepsHostsApart(t *testing.T) {
	opts := natstest.JetStream(t)
	opts.MaxPayload = 64 << 10
	s := natstest.Start(t, opts)
	nc, err := nats.Connect(s.ClientURL())
	require.NoError(t, err)
	defer nc.Close()
	p := newPlace(t)
	b := p.serveNATS("--nats", s.ClientURL(), "--span")
	f := p.hostFinding(doctor.KindMessages)
	assert.Contains(t, f.Text, "a message of NATS holds 64 KiB")
	assert.Contains(t, f.Remedy, "max_payload")

	far := machines.Host{HostName: "a01", Lowest: 1, Highest: 1, Life: "x", Namespaces: []string{"*"}}
	with := func(host string, change func(*machines.Host)) machines.Host {
		h := far
		h.Host = host
		change(&h)
		return h
	}
	closed := fmt.Sprintf("127.0.0.1:%d", testkit.HeldPort(t))
	standsIn(t, nc, with("newer", func(h *machines.Host) { h.Lowest, h.Highest = 5, 6 }), true)
	standsIn(t, nc, with("silent", func(h *machines.Host) {}), false)
	standsIn(t, nc, with("closed", func(h *machines.Host) { h.Data = []string{closed} }), true)
	standsIn(t, nc, with("encrypts", func(h *machines.Host) { h.Data, h.Certificate = []string{closed}, strings.Repeat("0", 64) }), true)
	assert.Contains(t, p.hostFinding(doctor.KindVersion).Text, "host newer (a01) speaks other versions of the protocol between hosts (5 to 6)")
	assert.Contains(t, p.hostFinding(doctor.KindSilent).Text, "host silent (a01)")
	assert.Contains(t, p.hostFinding(doctor.KindAddress).Text, "no data address of host closed (a01) answers from here ("+closed+"): its bytes come over NATS")
	assert.Contains(t, p.hostFinding(doctor.KindEncryption).Text, "host encrypts (a01)")

	c := p.client() // of the instance something is left
	_, err = c.Set(t.Context(), "kept", p.tensor(c, 1))
	require.NoError(t, err)
	var st hostsStatus
	p.json(&st, "status")
	require.NoError(t, b.cmd.Process.Kill())
	b.wait()
	standsIn(t, nc, with(st.Instance, func(*machines.Host) {}), true)
	p.serveNATS("--nats", s.ClientURL(), "--span")
	f = p.hostFinding(doctor.KindTwin)
	assert.Equal(t, "fail", f.State)
	assert.Contains(t, f.Remedy, "memory of its own")
}

func TestDoctorSeesTheRightsThatHostsLack(t *testing.T) {
	opts := natstest.JetStream(t)
	opts.Users = []*natsserver.User{{Username: "baton", Password: "p", Permissions: &natsserver.Permissions{
		Publish:   &natsserver.SubjectPermission{Allow: []string{">"}, Deny: []string{"$KV.baton-hosts.>"}},
		Subscribe: &natsserver.SubjectPermission{Allow: []string{"_INBOX.>", "$SRV.>", "baton.*.host.*.names.>", "$JS.>"}}}}}
	s := natstest.Start(t, opts)
	p := newPlace(t)
	p.serveNATS("--nats", s.ClientURL(), "--nats-user", "baton", "--nats-password", "p", "--span=team")
	f := p.hostFinding(doctor.KindRight)
	assert.Contains(t, f.Remedy, "baton nats permissions")
	var st hostsStatus
	p.until("both are known", func() bool {
		p.json(&st, "status")
		return len(st.Extra.Hosts.NATSRefuses) == 2
	})
	assert.Contains(t, st.Extra.Hosts.NATSRefuses[0], "needs the right to publish $KV.baton-hosts."+st.Instance+" ")
	assert.Contains(t, st.Extra.Hosts.NATSRefuses[0], "this host is not in the directory of hosts")
	assert.Contains(t, st.Extra.Hosts.NATSRefuses[1], "needs the right to subscribe to baton.team.host."+st.Instance+".> ")
	assert.Contains(t, st.Extra.Hosts.NATSRefuses[1], "other hosts do not reach this one")
	assert.Regexp(t, `(?m)^NATS refuses it +for hosts, the broker needs the right to`, p.must("status"))
}

func TestNamesOfOtherHostsAreListedAndInTheStatus(t *testing.T) {
	server, one, two := newPlace(t), newPlace(t), newPlace(t)
	server.serveNATS()
	var n natsAnswer
	server.json(&n, "nats")
	for _, p := range []*place{one, two} {
		p.serveNATS("--nats", n.URL, "--nats-nkey", n.Seed, "--span")
		p.until("other hosts reach it", func() bool { return strings.Contains(p.must("status"), "spanning") })
	}
	one.must("set", "weights/actor", one.array("x.npy", "float32", []int64{2}, make([]byte, 8)))
	names := func(p *place) (rows []broker.NameRow) {
		p.json(&rows, "ls", "names")
		return rows
	}
	two.until("the name is known", func() bool { return len(names(two)) == 1 })
	rows := names(two)
	assert.True(t, rows[0].Far)
	assert.Regexp(t, `^on host [0-9a-f]{32}`, rows[0].Hosts)
	assert.Regexp(t, `(?m)^names of default +1 set, 0 here$`, two.must("status"))
	assert.Regexp(t, `, and not here: it is on host [0-9a-f]{32}`, two.must("why", "weights/actor"))
	two.must("get", "weights/actor", "-o", "y.npy")
	rows = names(two)
	require.Len(t, rows, 1)
	assert.False(t, rows[0].Far)
	assert.Regexp(t, `^host [0-9a-f]{32}`, rows[0].Hosts)
	assert.Contains(t, rows[0].Setter, " on host ")
	assert.Regexp(t, `(?m)^names of default +1 set, 1 here$`, two.must("status"))
	assert.Regexp(t, `(?m)^names of default +1 set, 1 here$`, one.must("status"))
	rows = names(one)
	require.Len(t, rows, 1)
	assert.Equal(t, "mirrored", rows[0].NATS)
	one.must("delete", "weights/actor", "--yes")
	two.until("it is deleted", func() bool { return len(names(two)) == 0 })
}

// jetStream starts a NATS server, for a test alone.
func jetStream(t *testing.T) (*natsserver.Server, jetstream.JetStream) {
	t.Helper()
	s := natstest.Start(t, natstest.JetStream(t))
	nc, err := nats.Connect(s.ClientURL())
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	return s, js
}

func TestNamesOfSeveralHostsAreMeasured(t *testing.T) {
	s, js := jetStream(t)
	one, two := newPlace(t), newPlace(t)
	a, b := one.serveNATS("--nats", s.ClientURL(), "--span", "--http", "127.0.0.1:0"), two.serveNATS("--nats", s.ClientURL(), "--span", "--http", "127.0.0.1:0")
	has := func(s *server, lines ...string) {
		t.Helper()
		_, body := fetch(t, s.endpoint()+"/metrics", "")
		there := regexp.MustCompile(`(?m)^baton_span_.*$`).FindAllString(body, -1)
		for _, line := range lines {
			assert.Contains(t, there, line)
		}
	}
	far := two.client()
	c := one.client()
	first, err := c.Set(t.Context(), "x", one.tensor(c, 1))
	require.NoError(t, err)
	_, err = c.Set(t.Context(), "x", one.tensor(c, 1), client.Replaces(first+7))
	require.ErrorIs(t, err, protocol.ErrConflict)
	has(a, `baton_span_sets_total{outcome="agreed"} 1`, `baton_span_sets_total{outcome="conflict"} 1`, `baton_span_set_duration_seconds_count 1`, `baton_span_set_duration_seconds_bucket{le="+Inf"} 1`,
		`baton_span_names{state="current"} 1`, `baton_span_names{state="elsewhere"} 0`, `baton_span_namespaces{state="agreed"} 1`)
	assert.Regexp(t, `(?m)^sets in default +1 agreed, .* each, 1 in conflict$`, one.must("status"))
	got, err := far.Get(t.Context(), "x")
	require.NoError(t, err)
	has(b, `baton_span_revisions_total{why="asked"} 1`, `baton_span_revisions_total{why="ahead"} 0`, `baton_span_names{state="current"} 1`, `baton_span_stale_seconds 0`)
	got.Release()
	second, err := c.Set(t.Context(), "x", one.tensor(c, 1))
	require.NoError(t, err)
	two.until("it comes by itself, since a program has read it", func() bool {
		got, err := far.Get(t.Context(), "x")
		require.NoError(t, err)
		defer got.Release()
		return got.Revision == second
	})
	has(b, `baton_span_revisions_total{why="ahead"} 1`)
	require.NoError(t, far.Close())
	_, err = c.Set(t.Context(), "x", one.tensor(c, 1))
	require.NoError(t, err)
	two.until("what no program has open goes", func() bool { return strings.Contains(two.must("status"), "1 set, 0 here") })
	has(b, `baton_span_revisions_evicted_total{why="replaced"} 1`, `baton_span_names{state="elsewhere"} 1`)

	_, err = js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: names.BucketName("wrong"), Storage: jetstream.MemoryStorage})
	require.NoError(t, err)
	w := one.client(client.WithNamespace("wrong"))
	_, err = w.Set(t.Context(), "x", one.tensor(w, 1))
	require.ErrorIs(t, err, protocol.ErrUnsupported)
	has(a, `baton_span_sets_total{outcome="refused"} 1`, `baton_span_namespaces{state="waiting"} 1`)
	f := one.hostFinding(doctor.KindBucket)
	assert.Equal(t, "fail", f.State)
	assert.Contains(t, f.Text, "its storage is not file")
	assert.Contains(t, f.Remedy, "nats stream edit KV_baton-span-wrong")
	require.NoError(t, s.DisableJetStream())
	f = one.hostFinding(doctor.KindAgreement)
	assert.Contains(t, f.Text, "names of namespace default have not been agreed on")
	assert.Contains(t, f.Remedy, "nats stream info KV_baton-span-default")
	assert.Regexp(t, `(?m)^stale names of default +1, for .* at most: x$`, one.must("status"))
}

// A set waits for other hosts as long as its caller says, and else as the broker is set, also by a reload.
func TestSetWaitsForHostsAsLongAsIsSaid(t *testing.T) {
	n, _ := jetStream(t)
	p := newPlace(t)
	text := func(timeout string) string {
		return p.write("baton.toml", fmt.Sprintf("nats = %q\nspan = true\nspan-timeout = %q\n", n.ClientURL(), timeout))
	}
	r := p.baton("serve", "--check-config", "--config", text("0s"))
	assert.Equal(t, 2, r.code)
	assert.Contains(t, r.err, "give it at least some time")
	s := p.serveNATS("--config", text("1h"))
	c := p.client()
	set := func(ctx context.Context) error {
		_, err := c.Set(ctx, "x", p.tensor(c, 1))
		return err
	}
	require.NoError(t, set(t.Context()))
	require.NoError(t, n.DisableJetStream())
	short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	require.ErrorIs(t, set(short), protocol.ErrUnreachable)
	text("50ms")
	hup(s)
	s.logs("changed=span-timeout")
	require.ErrorIs(t, set(context.Background()), protocol.ErrUnreachable)
	require.ErrorIs(t, c.Delete(context.Background(), "x"), protocol.ErrUnreachable)
}

// Without NATS other hosts say nothing. --timeout goes with what waits for them, whatever the broker is set to.
func TestTheTimeoutGoesWithWhatOtherHostsAreAsked(t *testing.T) {
	s := natstest.Start(t, natstest.JetStream(t))
	p := newPlace(t)
	p.serveNATS("--nats", s.ClientURL(), "--span", "--span-timeout", "10m")
	file := p.array("x.npy", "uint8", []int64{4}, []byte("1234"))
	p.must("set", "there", file)
	s.Shutdown()
	s.WaitForShutdown()
	const down, remedy = "the link to NATS is down", "the servers of NATS"
	p.baton("set", "new", file, "--timeout", "1s").fails(t, 1, down, remedy)
	p.baton("delete", "there", "--kind", "name", "--timeout", "1s").fails(t, 1, down, remedy)
	p.baton("compact", "there", "--timeout", "1s").fails(t, 1, down, remedy)
	p.baton("get", "other", "-o", "other.npy", "--timeout", "1s").fails(t, 1, "it is not known whether name other is set on another host: "+down, remedy)
}
