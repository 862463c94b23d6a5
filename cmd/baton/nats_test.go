package main_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type natsAnswer struct {
	Mode, URL, Seed, Info, Subject, Bucket string
	Connected                              bool
}

func TestNATSTellsAClientHowToSeeTuples(t *testing.T) {
	p := newPlace(t)
	p.serveNATS()
	var n natsAnswer
	p.json(&n, "nats")
	assert.Equal(t, "embedded", n.Mode)
	assert.True(t, n.Connected)
	assert.Equal(t, filepath.Join(p.dir, "baton", "nats.json"), n.Info)
	assert.Equal(t, "baton.default.topic.>", n.Subject)
	info, err := os.Stat(n.Seed)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	opt, err := nats.NkeyOptionFromSeed(n.Seed)
	require.NoError(t, err)
	nc, err := nats.Connect(n.URL, opt, nats.Timeout(patience))
	require.NoError(t, err)
	defer nc.Close()
	sub, err := nc.SubscribeSync(n.Subject)
	require.NoError(t, err)
	require.NoError(t, nc.FlushTimeout(patience))
	c := p.client()
	topic, err := c.Topic(p.ctx(), "batches/train")
	require.NoError(t, err)
	require.NoError(t, topic.Send(p.ctx(), p.tensor(c, 2)))
	m, err := sub.NextMsgWithContext(p.ctx())
	require.NoError(t, err)
	assert.Equal(t, "baton.default.topic.batches.train", m.Subject)
	var tuple struct{ Topic string }
	require.NoError(t, json.Unmarshal(m.Data, &tuple))
	assert.Equal(t, "batches/train", tuple.Topic)

	text := p.must("nats", "--namespace", "team")
	assert.Contains(t, text, "nats --server "+n.URL+" --nkey "+n.Seed+" sub 'baton.team.topic.>'")
	assert.Contains(t, text, `nats.NkeyOptionFromSeed("`+n.Seed+`")`)
	p.until("the tuple is counted", func() bool {
		var s struct {
			Extra struct{ NATS struct{ Published uint64 } }
		}
		p.json(&s, "status")
		return s.Extra.NATS.Published == 1
	})
}

func TestNATSOfABrokerWithoutItIsNotFound(t *testing.T) {
	p := newPlace(t)
	p.serve()
	p.baton("nats").fails(t, 3, "the broker runs without NATS", "--no-nats")
	assert.Regexp(t, `(?m)^NATS +off$`, p.must("status"))
}

func TestServeMirrorsNamesOnNATS(t *testing.T) {
	p := newPlace(t)
	p.serveNATS()
	p.must("set", "weights/a", p.array("a.npy", "uint8", []int64{1}, []byte{9}))
	var n natsAnswer
	p.json(&n, "nats")
	opt, err := nats.NkeyOptionFromSeed(n.Seed)
	require.NoError(t, err)
	nc, err := nats.Connect(n.URL, opt, nats.Timeout(patience))
	require.NoError(t, err)
	defer nc.Close()
	js, err := nc.JetStream()
	require.NoError(t, err)
	kv, err := js.KeyValue(n.Bucket)
	require.NoError(t, err)
	_, err = kv.Get("weights.a")
	require.NoError(t, err)
	assert.Regexp(t, `(?m)^on NATS +mirrored$`, p.must("show", "weights/a"))
	assert.Regexp(t, `(?m)^names on NATS +mirrored$`, p.must("status"))
	assert.Contains(t, p.must("nats"), " micro info baton")
	m, err := nc.RequestWithContext(p.ctx(), "$SRV.PING.baton", nil)
	require.NoError(t, err)
	var ping struct{ Metadata map[string]string }
	require.NoError(t, json.Unmarshal(m.Data, &ping))
	assert.Equal(t, "default", ping.Metadata["namespace"])
}

// A broker that shares NATS and the namespace with another says whose a key is.
func TestStatusTellsOfAKeyThatIsAnotherBrokers(t *testing.T) {
	one, two := newPlace(t), newPlace(t)
	one.serveNATS()
	one.must("set", "weights/a", one.array("a.npy", "uint8", []int64{1}, []byte{9}))
	one.until("the name waits for a client", func() bool {
		return strings.Contains(one.must("ls", "names"), " deferred until a client of NATS connects")
	})
	assert.Regexp(t, `(?m)^names on NATS +deferred until a client of NATS connects$`, one.must("status"))
	var n natsAnswer
	one.json(&n, "nats")
	b := two.serveNATS("--nats", n.URL, "--nats-nkey", n.Seed, "--http", "127.0.0.1:0")
	two.must("set", "weights/a", two.array("a.npy", "uint8", []int64{1}, []byte{9}))
	two.until("the key is found to be another's", func() bool {
		return strings.Contains(two.must("status"), "0 of 1 mirrored, 1 with another broker's key")
	})
	var s struct {
		Instance string
		PID      int
	}
	one.json(&s, "status")
	assert.Regexp(t, fmt.Sprintf(`(?m)^keys of others +1 of broker %s on .* \(pid %d\): weights/a$`, s.Instance, s.PID), two.must("status"))
	assert.Regexp(t, fmt.Sprintf(`key of broker %s on .* \(pid %d\)`, s.Instance, s.PID), two.must("ls", "names"))
	assert.NotContains(t, two.must("show", "weights/a"), "mirrored")
	assert.Regexp(t, `(?m)^names on NATS +mirrored$`, one.must("status"))
	assert.Contains(t, two.baton("doctor").out, "1 names of this broker are another one's on NATS")
	host, err := os.Hostname()
	require.NoError(t, err)
	metric := fmt.Sprintf("baton_nats_names_foreign{host=%q,instance=%q} ", host, s.Instance)
	_, body := fetch(t, b.endpoint()+"/metrics", "")
	assert.Contains(t, body, "\n"+metric+"1\n")
	one.must("delete", "weights/a")
	two.until("the key is this broker's", func() bool {
		_, body := fetch(t, b.endpoint()+"/metrics", "")
		return !strings.Contains(body, metric) && strings.Contains(body, "\nbaton_nats_names_mirrored 1\n")
	})
}

// A NATS server that is suspended keeps no broker that is stopped from ending. `baton stop` returns
// once its process has ended: another one has its HTTP address at once.
func TestStopEndsThoughTheNATSServerStandsStill(t *testing.T) {
	server, p := newPlace(t), newPlace(t)
	still := server.serveNATS()
	var n natsAnswer
	server.json(&n, "nats")
	// A drain timeout beyond the test's patience.
	args := []string{"--nats", n.URL, "--nats-nkey", n.Seed, "--drain-timeout", "1h", "--http", p.file("http.sock")}
	broker := p.serveNATS(args...)
	p.must("set", "weights/a", p.array("a.npy", "uint8", []int64{1}, []byte{9}))
	p.until("the name is mirrored", func() bool { return strings.Contains(p.must("ls", "names"), " mirrored") })
	still.freeze()
	p.must("stop")
	p.serve("--http", p.file("http.sock")) // it has ended
	require.Zero(t, broker.wait().code)
	assert.Contains(t, broker.err.String(), "the server does not answer")
	still.signal(syscall.SIGCONT)
}

// What is set while the NATS server is suspended is set, and stands there once that goes on.
func TestSetGoesOnThoughTheNATSServerIsSuspended(t *testing.T) {
	server, p := newPlace(t), newPlace(t)
	still := server.serveNATS()
	var n natsAnswer
	server.json(&n, "nats")
	p.serveNATS("--nats", n.URL, "--nats-nkey", n.Seed)
	array := p.array("a.npy", "uint8", []int64{1}, []byte{9})
	p.must("set", "before", array)
	p.until("the name is mirrored", func() bool { return strings.Contains(p.must("ls", "names", "before"), " mirrored") })
	still.freeze()
	p.must("set", "meanwhile", array)
	p.must("set", "before", array)
	p.must("get", "meanwhile", "-o", "o.npy")
	assert.NotContains(t, p.must("ls", "names", "meanwhile"), " mirrored")
	still.signal(syscall.SIGCONT)
	p.until("it stands there", func() bool { return strings.Contains(p.must("ls", "names", "meanwhile"), " mirrored") })
}

// A name that stands in its bucket is mirrored also while the server is gone: what is listed and what is counted agree.
func TestNamesAreListedAsTheyAreCountedWhileNATSIsGone(t *testing.T) {
	server, p := newPlace(t), newPlace(t)
	gone := server.serveNATS()
	var n natsAnswer
	server.json(&n, "nats")
	broker := p.serveNATS("--nats", n.URL, "--nats-nkey", n.Seed, "--http", p.file("http.sock"))
	array := p.array("a.npy", "uint8", []int64{1}, []byte{9})
	p.must("set", "before", array)
	p.until("the name is mirrored", func() bool { return strings.Contains(p.must("ls", "names", "before"), " mirrored") })
	gone.signal(syscall.SIGKILL)
	gone.wait()
	p.until("the broker sees it", func() bool { var n natsAnswer; p.json(&n, "nats"); return !n.Connected })
	p.must("set", "meanwhile", array)
	assert.Contains(t, p.must("ls", "names", "before"), " mirrored; not connected")
	p.until("the mirror has looked", func() bool { return strings.Contains(p.must("ls", "names", "meanwhile"), "pending: not connected") })
	_, body := get(t, p.file("http.sock"), "/metrics")
	assert.Contains(t, body, "\nbaton_nats_names_mirrored 1\n")
	assert.Contains(t, body, "\nbaton_nats_names_pending 1\n")
	broker.signal(syscall.SIGTERM)
	require.Zero(t, broker.wait().code)
}

// A broker that is started while another one ends waits for that one's NATS.
func TestServeWaitsForTheNATSOfABrokerThatEnds(t *testing.T) {
	server, p := newPlace(t), newPlace(t)
	still := server.serveNATS()
	var n natsAnswer
	server.json(&n, "nats")
	args := []string{"--nats", n.URL, "--nats-nkey", n.Seed}
	broker := p.serveNATS(args...)
	p.must("set", "weights/a", p.array("a.npy", "uint8", []int64{1}, []byte{9}))
	p.until("the name is mirrored", func() bool { return strings.Contains(p.must("ls", "names"), " mirrored") })
	still.freeze()
	broker.signal(syscall.SIGTERM)
	p.until("it has left its place", func() bool { return p.baton("ping").code == 4 })
	broker.signal(syscall.SIGSTOP) // it is still ending when the next one looks
	next := p.launch(args...)
	next.logs(fmt.Sprintf("the NATS of this runtime directory is in use, by the broker of process %d (%s), which runs or has not ended yet", broker.cmd.Process.Pid, filepath.Dir(p.socket())))
	broker.signal(syscall.SIGCONT)
	require.Zero(t, broker.wait().code, broker.err.String())
	next.notice("READY=1")
	still.signal(syscall.SIGCONT)
	p.until("it has NATS", func() bool { var n natsAnswer; p.json(&n, "nats"); return n.Connected })
}

// `baton stop` that runs out of time says what the broker waits for.
func TestStopSaysWhatItWaitsFor(t *testing.T) {
	p := newPlace(t)
	broker := p.serve()
	_, err := p.client().Topic(p.ctx(), "t")
	require.NoError(t, err)
	reader := p.start(p.command("tail", "t"))
	p.until("it has a session", func() bool { return p.hasSession("baton tail") })
	reader.signal(syscall.SIGSTOP) // the broker gives it 3 s
	p.baton("stop", "--timeout", "1s").fails(t, 5, fmt.Sprintf("the broker stops, and its process %d has not ended within 1s: it may wait for its clients", broker.cmd.Process.Pid), "--timeout")
	require.Zero(t, broker.wait().code)
}
