package integration

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/broker/machines"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// large is a tensor that takes a while to cross.
const large = 256 << 20

// inTheMiddle begins to open a tensor of the first host at the second, and returns while it is fetched and its source is
// suspended. The channel has the error of the open.
func (h *hostsOf) inTheMiddle(a, b *client.Client) chan error {
	h.t.Helper()
	for {
		x, _ := random(h.t, h.ctx, a, large, 1)
		handle := h.handle(x)
		x.Release()
		before := hostStatus(h.t, h.ctx, b)
		failed := make(chan error, 1)
		go func() {
			y, err := b.Open(h.ctx, handle)
			if err == nil {
				y.Release()
			}
			failed <- err
		}()
		hostStatusUntil(h.t, h.ctx, b, "bytes arrive", func(s machines.Status) bool { return s.FetchedBytes > before.FetchedBytes })
		h.a.Process().Stop()
		if s := hostStatus(h.t, h.ctx, b); s.Fetched == before.Fetched && s.Fetching > 0 && s.FetchedBytes-before.FetchedBytes < large/2 {
			return failed
		}
		h.a.Process().Cont() // it was too fast
		require.NoError(h.t, <-failed)
	}
}

func TestSourceThatIsKilledDuringAFetchIsLost(t *testing.T) {
	for _, way := range []string{"tcp", "nats", "tls"} {
		t.Run(way, func(t *testing.T) {
			var h *hostsOf
			if way == "tls" {
				h = startHostsByTLS(t, "--span")
			} else {
				h = startHosts(t, "--span", "--data="+way)
			}
			a, b := h.connect()
			failed := h.inTheMiddle(a, b)
			h.a.Kill()
			err := <-failed
			require.ErrorIs(t, err, protocol.ErrHostLost)
			h.nothingHeld(b)
			h.nothingStored(b)
			require.Zero(t, hostStatus(t, h.ctx, b).Kept.Bytes)
			h.a.Restart() // for the clients of the test
		})
	}
}

func TestReceiverThatIsKilledDuringAFetchLeavesNothing(t *testing.T) {
	h := startHosts(t)
	a, b := h.connect()
	opened := h.inTheMiddle(a, b)
	h.b.Kill()
	h.a.Process().Cont()
	h.nothingHeld(a)
	h.b.Restart()
	h.spans(h.b)
	err := <-opened // the client asks the next broker
	require.NoError(t, err)
	h.nothingHeld(a)
}

// A source that is suspended is absent; one that goes on in time is not.
func TestFetchGoesOnWithASourceThatWasSuspended(t *testing.T) {
	h := startHosts(t)
	a, b := h.connect()
	opened := h.inTheMiddle(a, b)
	h.a.Process().Cont()
	require.NoError(t, <-opened)
	h.nothingHeld(a)
}

func TestTransferUnderWayFinishesWithoutNATS(t *testing.T) {
	h := startHosts(t, "--span", "--data=tcp")
	a, b := h.connect()
	opened := h.inTheMiddle(a, b)
	h.server.Kill()
	h.a.Process().Cont()
	require.NoError(t, <-opened)

	x, want := random(t, h.ctx, a, 100, 1)
	defer x.Release()
	handle := h.handle(x)
	short, cancel := context.WithCancel(h.ctx)
	defer cancel()
	waits := make(chan error, 1)
	go func() {
		y, err := b.Open(short, handle)
		if err == nil {
			y.Release()
		}
		waits <- err
	}()
	hostStatusUntil(t, h.ctx, b, "a new one waits", func(s machines.Status) bool { return s.Fetching > 0 })
	h.server = h.nats.start(h.a)
	require.NoError(t, <-waits)
	h.opens(b, handle, want)
	h.nothingHeld(a)
}

func TestHostsAreListedWithWhyTheyCannotBeTalkedTo(t *testing.T) {
	var third *testkit.Broker
	h := startHostsWith(t, func(h *hostsOf) []*testkit.Broker {
		third = testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.JoinNATS = h.nats.spanning("--span=other") })
		return []*testkit.Broker{third}
	}, "--span=team")
	a, _ := h.connect()
	rows := func() map[string]string {
		var reply protocol.ListReply
		require.NoError(t, a.Broker(h.ctx, protocol.OpList, protocol.List{What: protocol.ListHosts}, &reply))
		states := map[string]string{}
		for _, raw := range reply.Rows {
			var row broker.HostRow
			require.NoError(t, json.Unmarshal(raw, &row))
			states[row.Host] = row.State + ": " + row.Reason
		}
		return states
	}
	own, second, other := a.Instance(), h.b.Connect().Instance(), third.Connect().Instance()
	require.Equal(t, map[string]string{own: "own: ", second: "reachable: ", other: "unreachable: it spans none of the namespaces that this host spans"}, rows())
	h.b.Kill()
	testkit.Until(t, "the killed one is not connected", func() (bool, string) {
		state := rows()[second]
		return state == "unreachable: it is not connected to NATS", state
	})
	h.b.Restart()
	h.spans(h.b)
	require.Equal(t, "reachable: ", rows()[second], "the instance goes on")
}
