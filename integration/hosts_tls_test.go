package integration

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/broker/machines"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// certificate is the one that a host says of itself.
func (h *hostsOf) certificate(c *client.Client) string {
	h.t.Helper()
	var reply protocol.ListReply
	require.NoError(h.t, c.Broker(h.ctx, protocol.OpList, protocol.List{What: protocol.ListHosts}, &reply))
	for _, raw := range reply.Rows {
		var row broker.HostRow
		require.NoError(h.t, json.Unmarshal(raw, &row))
		if row.Own {
			return row.Certificate
		}
	}
	h.t.Fatal("the host does not list itself")
	return ""
}

// A process that goes on as a host, or is another one in its place, has a certificate of its own, and is reached by it.
func TestCertificatesChangeWithTheProcesses(t *testing.T) {
	h := startHostsByTLS(t, "--span")
	seen := map[string]bool{}
	directly := func(same bool, before string) string {
		t.Helper()
		h.spans(h.a)
		a, b := h.connect()
		require.Equal(t, same, a.Instance() == before)
		own := h.certificate(a)
		require.Len(t, own, 64)
		require.False(t, seen[own])
		seen[own] = true
		for i, from := range []*client.Client{a, b} {
			x, want := random(t, h.ctx, from, 1<<20, uint64(len(seen)))
			h.opens([]*client.Client{b, a}[i], h.handle(x), want)
			x.Release()
		}
		for _, c := range []*client.Client{a, b} {
			s := hostStatus(t, h.ctx, c)
			require.True(t, s.TLS)
			require.Empty(t, s.OverNATS)
			require.Zero(t, s.Failed+s.Refused)
			h.nothingHeld(c)
		}
		instance := a.Instance()
		a.Close()
		return instance
	}
	instance := directly(false, "")
	h.a.Kill()
	h.a.Restart()
	instance = directly(true, instance)
	h.a.Replace()
	instance = directly(true, instance)
	h.a.Term()
	h.a.Restart()
	instance = directly(true, instance)
	h.a.Discard()
	h.a.Restart()
	directly(false, instance)
}

// A fetch by TLS goes on at the process that has taken over.
func TestFetchByTLSGoesOnWithASourceThatWasReplaced(t *testing.T) {
	h := startHostsByTLS(t, "--span")
	a, b := h.connect()
	opened := h.inTheMiddle(a, b)
	h.a.Process().Cont()
	h.a.Replace()
	h.spans(h.a)
	if err := <-opened; err != nil { // on a busy machine it takes over a second
		require.ErrorIs(t, err, protocol.ErrHostLost)
	}
	require.Empty(t, hostStatus(t, h.ctx, b).OverNATS)
	h.nothingHeld(a)
	h.nothingHeld(b)
}

// Beside a NATS without TLS an operator may demand it.
func TestHostsEncryptBesideAPlainNATS(t *testing.T) {
	var plain *testkit.Broker
	h := startHostsWith(t, func(h *hostsOf) []*testkit.Broker {
		plain = testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.JoinNATS = h.nats.spanning("--span") })
		return []*testkit.Broker{plain}
	}, "--span", "--data-tls=on")
	a, b := h.connect()
	x, want := random(t, h.ctx, a, 1<<20, 1)
	defer x.Release()
	h.opens(b, h.handle(x), want)
	require.True(t, hostStatus(t, h.ctx, b).TLS)
	_, err := plain.Connect(client.WithNamespace("team")).Open(h.ctx, h.handle(x))
	require.ErrorIs(t, err, protocol.ErrUnsupported)
	require.ErrorContains(t, err, "are not encrypted")
	hostStatusUntil(t, h.ctx, a, "the refusal is counted", func(s machines.Status) bool { return s.Refused > 0 })
	h.nothingHeld(a)
}
