package main_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/protocol"
)

// functionF is what a broker lists of the function f.
func (p *place) functionF() (row struct {
	Name      string
	Providers []struct{ UID uint32 }
}) {
	p.t.Helper()
	rows := []struct {
		Name      string
		Providers []struct{ UID uint32 }
	}{}
	p.json(&rows, "ls", "functions", "f")
	require.Len(p.t, rows, 1)
	return rows[0]
}

func identity(_ context.Context, x int) (int, error) { return x, nil }

// A function is of the user that registered it first: no other one may provide, override or end it, also when it has no
// provider any more. The broker's own user may end it.
func TestFunctionIsOfTheUserThatRegisteredItFirst(t *testing.T) {
	p := newPlace(t)
	p.serveMembers()
	const name = "f was registered by user %d, and this process is of user %d"
	c := p.client(client.WithAddress(p.file("run/b.sock")))
	r, err := client.Handle(c, "f", identity)
	require.NoError(t, err)
	m := p.member()
	for _, how := range []string{"provide", "override"} {
		said := m.asks(how)
		assert.Contains(t, said, string(protocol.CodePermission)+" ", how)
		assert.Contains(t, said, fmt.Sprintf(name, 0, otherUID), how)
	}
	p.asUser(otherUID, "delete", "--kind", "function", "f", "--yes").fails(t, 1, "user 65534 may not remove functions of this broker", "ask the user who started it")
	assert.Len(t, p.functionF().Providers, 1)
	n, err := client.Call[int](p.ctx(), c, "f", 7)
	require.NoError(t, err)
	assert.Equal(t, 7, n)
	require.NoError(t, r.Close(p.ctx()))
	assert.Contains(t, m.asks("provide"), fmt.Sprintf(name, 0, otherUID), "nothing provides it, and a caller has it open")
}

// It is so of the broker's own user as well, which may end it.
func TestFunctionOfAnotherUserIsNotProvidedByTheBrokersOwn(t *testing.T) {
	p := newPlace(t)
	p.serveMembers()
	m := p.member()
	require.Equal(t, "ok", m.asks("provide"))
	c := p.client(client.WithAddress(p.file("run/b.sock")))
	for _, opts := range [][]client.HandleOption{nil, {client.Override()}} {
		_, err := client.Handle(c, "f", identity, opts...)
		require.ErrorIs(t, err, protocol.ErrPermissionDenied)
		assert.ErrorContains(t, err, fmt.Sprintf("f was registered by user %d, and this process is of user 0", otherUID))
	}
	require.Equal(t, "ok", p.member().asks("override"), "its own user may")
	n, err := client.Call[int](p.ctx(), c, "f", 7)
	require.NoError(t, err)
	assert.Equal(t, 8, n)
	p.asUser(4242, "delete", "--kind", "function", "f", "--yes").fails(t, 1, "user 4242 may not remove functions of this broker", "ask the user who started it")
	assert.Equal(t, "ended function f, which 1 session provided\n", p.must("delete", "--kind", "function", "f", "--yes"))
	assert.Empty(t, p.functionF().Providers)
	_, err = client.Call[int](p.ctx(), c, "f", 7)
	require.ErrorIs(t, err, protocol.ErrNoProvider)
}

// A function that lingers stays in the listing of the next broker, until its linger is over.
func TestFunctionThatLingersIsListedAtTheNextBroker(t *testing.T) {
	p := newPlace(t)
	s := p.serve()
	p.client() // what keeps the instance
	provider := p.client()
	_, err := client.Handle(provider, "f", identity, client.Linger(time.Hour))
	require.NoError(t, err)
	require.NoError(t, provider.Close())
	require.Empty(t, p.functionF().Providers)
	require.NoError(t, s.cmd.Process.Kill())
	s.wait()
	p.serve()
	assert.Empty(t, p.functionF().Providers)
	c := p.client()
	_, err = client.Call[int](p.ctx(), c, "f", 7)
	assert.ErrorIs(t, err, protocol.ErrNoProvider)
}
