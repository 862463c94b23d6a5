package main_test

import (
	"encoding/json"
	"os"
	"path/filepath"
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
	p.until("the name is in its bucket", func() bool {
		kv, err := js.KeyValue(n.Bucket)
		if err != nil {
			return false
		}
		_, err = kv.Get("weights.a")
		return err == nil
	})
}
