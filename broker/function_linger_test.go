package broker_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/protocol"
)

func lingers(seconds float64) func(*protocol.FunctionRegister) {
	return func(r *protocol.FunctionRegister) { r.Linger = seconds }
}

func listed(p *peer, pattern string) (names []string) {
	for _, row := range list[broker.FunctionRow](p, protocol.ListFunctions, pattern) {
		require.Empty(p.t, row.Providers)
		names = append(names, row.Name)
	}
	return names
}

func TestFunctionThatLingersIsListedWithoutProviders(t *testing.T) {
	b := serve(t, nil)
	for _, k := range []struct {
		name   string
		linger float64
	}{{"gone", 0}, {"short", 0.001}, {"long", 3600}} {
		p, err := provide(t, b.socket, "worker", k.name, lingers(k.linger))
		require.NoError(t, err)
		p.bye()
	}
	c := connect(t, b.socket, "caller")
	require.Eventually(t, func() bool { return len(listed(c, "short")) == 0 }, patience, time.Millisecond)
	require.Equal(t, []string{"long"}, listed(c, "*"))
	info := c.open(functionOf("long", false))
	require.Zero(t, c.providers(info), "there is none to call")

	// A provider with another linger is as one with other options: alone it brings its own.
	p, err := provide(t, b.socket, "worker", "long", lingers(7200))
	require.NoError(t, err)
	_, err = provide(t, b.socket, "other", "long", lingers(60))
	require.Equal(t, protocol.CodeConflict, protocol.CodeOf(err))
	require.ErrorContains(t, err, "with a linger of 2h0m0s, and here of 1m0s")
	_, err = provide(t, b.socket, "wrong", "long", lingers(-1))
	require.Equal(t, protocol.CodeInvalid, protocol.CodeOf(err))
	_, err = provide(t, b.socket, "next", "long", func(r *protocol.FunctionRegister) { r.Override, r.Linger = true, 60 })
	require.NoError(t, err)
	p.bye()
}

func TestFunctionThatLingersIsFoundBehindThoseWithSessions(t *testing.T) {
	b := serve(t, nil)
	p, err := provide(t, b.socket, "worker", "f@10", lingers(3600))
	require.NoError(t, err)
	_, err = provide(t, b.socket, "older", "f@9", nil)
	require.NoError(t, err)
	c := connect(t, b.socket, "caller")
	require.Equal(t, "f@10", c.open(functionOf("f", false)).Name)
	c.bye()
	p.bye()
	c = connect(t, b.socket, "caller")
	require.Equal(t, "f@9", c.open(functionOf("f", false)).Name, "f@10 is in the listing alone")
}

func TestFunctionThatLingersIsRemoved(t *testing.T) {
	b := serve(t, nil)
	p, err := provide(t, b.socket, "worker", "f", lingers(3600))
	require.NoError(t, err)
	p.bye()
	p, err = provide(t, b.socket, "worker", "g", lingers(3600))
	require.NoError(t, err)
	c := connect(t, b.socket, "operator")
	for _, name := range []string{"f", "g"} {
		c.must(protocol.OpFunctionRemove, protocol.FunctionByName{Name: name}, nil)
	}
	require.Equal(t, []string{"g"}, listed(c, "*"), "its provider has it open")
	p.bye()
	require.Empty(t, listed(c, "*"))
}
