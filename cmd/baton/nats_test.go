package main_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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
	two.serveNATS("--nats", n.URL, "--nats-nkey", n.Seed)
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
}
