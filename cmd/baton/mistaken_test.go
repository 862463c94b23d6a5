package main_test

import (
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A broker that cannot have what its settings ask for ends before it takes over: the one that runs
// goes on, with all that it alone has.
func TestMistakesEndABrokerBeforeItTakesOver(t *testing.T) {
	p := newPlace(t)
	p.serve()
	p.must("set", "weights/a", p.array("a.npy", "uint8", []int64{1}, []byte{9})) // of a program that has ended
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	empty, garbage := p.write("empty", ""), p.write("garbage", "no certificate")
	for _, c := range []struct {
		status int
		args   []string
	}{
		{1, []string{"--no-nats", "--http", l.Addr().String()}},
		{2, []string{"--no-nats", "--http", "127.0.0.1:0", "--http-token-file", p.file("missing")}},
		{2, []string{"--no-nats", "--http", "127.0.0.1:0", "--http-token-file", empty}},
		{2, []string{"--no-nats", "--http", "127.0.0.1:0", "--http-cert", garbage, "--http-key", garbage}},
		{2, []string{"--nats", "nats://127.0.0.1:1", "--nats-ca", p.file("missing")}},
		{2, []string{"--nats", "nats://127.0.0.1:1", "--nats-ca", garbage}},
		{2, []string{"--nats", "nats://127.0.0.1:65536"}},
	} {
		name := strings.Join(c.args, " ")
		r := p.launch(append(c.args, "--replace")...).wait()
		assert.Equal(t, c.status, r.code, "%s: %s", name, r.err)
		assert.Contains(t, p.must("show", "weights/a"), "weights/a", name)
		if c.status == 2 {
			assert.Equal(t, 2, p.baton(append([]string{"serve", "--check-config"}, c.args...)...).code, name)
		}
	}
}

// A broker that has taken over goes on without NATS where it cannot have it.
func TestABrokerThatTookOverGoesOnWithoutNATS(t *testing.T) {
	p := newPlace(t)
	p.serve()
	p.must("set", "weights/a", p.array("a.npy", "uint8", []int64{1}, []byte{9}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	p.serveNATS("--nats-port", port, "--replace")
	assert.Contains(t, p.must("show", "weights/a"), "weights/a")
	assert.Contains(t, p.must("status"), "does not run")
}
