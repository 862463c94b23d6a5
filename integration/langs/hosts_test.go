package langs

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker/machines"
	"github.com/baton-ipc/baton/broker/natsbridge"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// twoHosts starts a broker with NATS, and two that join it as hosts, in one namespace.
func twoHosts(t *testing.T) (a, b *testkit.Broker) {
	t.Helper()
	server := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.NATS = true })
	var info natsbridge.Info
	testkit.Until(t, "the broker has NATS", func() (bool, string) {
		var err error
		info, err = natsbridge.ReadInfo(server.Dir)
		return err == nil, fmt.Sprint(err)
	})
	join := func(c *testkit.BrokerConfig) {
		c.JoinNATS = []string{"--nats", info.URL, "--nats-nkey", info.Seed, "--span"}
	}
	a, b = testkit.StartBroker(t, join), testkit.StartBroker(t, join)
	b.Namespace = a.Namespace
	for _, host := range []*testkit.Broker{a, b} {
		c := host.Connect()
		testkit.Until(t, "the host answers others", func() (bool, string) {
			s := spanned(t, c)
			return s.State == machines.StateSpanning, fmt.Sprint(s)
		})
	}
	return a, b
}

func spanned(t *testing.T, c *client.Client) machines.Status {
	t.Helper()
	var s struct {
		Extra struct{ Hosts machines.Status }
	}
	require.NoError(t, c.Broker(testkit.Context(t), protocol.OpStatus, nil, &s))
	return s.Extra.Hosts
}

// Each language opens handles that each other one made on another host.
func TestHandlesAreOpenedOnAnotherHost(t *testing.T) {
	a, b := twoHosts(t)
	c := b.Connect()
	opened := uint64(0)
	for _, from := range languages {
		for i, to := range languages {
			t.Run(from.name+" to "+to.name, func(t *testing.T) {
				maker, opener := start(t, a, from), start(t, b, to)
				seed := uint64(10 + i)
				h := maker.do(command{"do": "handle", "seed": seed}).Handle
				require.True(t, opener.do(command{"do": "open", "handle": h, "seed": seed}).ReadOnly)
				opened++
				require.Equal(t, opened, spanned(t, c).Fetched)

				var gone map[string]any
				require.NoError(t, json.Unmarshal(h, &gone))
				gone["host"] = "0123456789abcdef0123456789abcdef"
				if from.name == to.name { // it takes a while to know
					answer := opener.try(command{"do": "open", "handle": gone, "seed": seed})
					require.Equal(t, string(protocol.CodeHostLost), answer.Code, answer.Message)
				}
				maker.Done()
				opener.Done()
			})
		}
	}
}

// Each language reads names that each other one has set on another host, by the same numbers.
func TestNamesAreReadOnAnotherHost(t *testing.T) {
	a, b := twoHosts(t)
	last := uint64(0)
	for _, from := range languages {
		for i, to := range languages {
			t.Run(from.name+" to "+to.name, func(t *testing.T) {
				setter, reader := start(t, a, from), start(t, b, to)
				name, seed := "w/"+from.name+"/"+to.name, uint64(10+i)
				revision := setter.do(command{"do": "set", "name": name, "seed": seed}).Revision
				require.Greater(t, revision, last, "one stream orders all names of a namespace")
				last = revision
				got := reader.do(command{"do": "get", "name": name, "seed": seed, "timeout_ms": 10_000})
				require.Equal(t, revision, got.Revision)
				require.True(t, got.ReadOnly)
				again := reader.do(command{"do": "set", "name": name, "seed": seed + 1}).Revision
				require.Greater(t, again, revision)
				last = again
				testkit.Until(t, "the setter reads what the other one has set", func() (bool, string) {
					answer := setter.try(command{"do": "get", "name": name, "seed": seed + 1})
					return answer.Code == "" && answer.Revision == again, answer.Message
				})
				setter.Done()
				reader.Done()
			})
		}
	}
}
