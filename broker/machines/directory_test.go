package machines

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/protocol"
)

func TestTwoProcessesWithOneInstanceAreNotOneHost(t *testing.T) {
	t.Parallel()
	url := startNATS(t)
	first := startHost(t, url, "same", nil)
	other := startHost(t, url, "other", nil)
	second := startQuietly(t, url, "same", nil)
	until(t, "the later one is refused", func() bool { return second.Status().State == StateRefused })
	require.Contains(t, second.Status().Error, "another broker lives as host same")
	_, err := second.Fetch(within(t, patience), "ns", other.memory.put(noise(10, 1), 0))
	require.ErrorIs(t, err, protocol.ErrConflict)
	bytes := noise(100, 1)
	brings(t, other, first.memory.put(bytes, 0), bytes)
	first.Close()
	until(t, "the later one is the host once the other has ended", func() bool { return second.Status().State == StateSpanning })
}

func TestDirectoryListsWhatItHoldsAndWhyHostsCannotBeTalkedTo(t *testing.T) {
	t.Parallel()
	url := startNATS(t)
	a := startHost(t, url, "a", func(c *Config) { c.Namespaces = []string{"ns", "more"} })
	startHost(t, url, "b", func(c *Config) { c.Namespaces = []string{"more"} })
	startHost(t, url, "c", func(c *Config) { c.Namespaces = []string{"others"} })
	kv, err := a.dir.bucket(context.Background(), a.nats.nc, false)
	require.NoError(t, err)
	put := func(key string, h any) {
		data, err := json.Marshal(h)
		require.NoError(t, err)
		_, err = kv.Put(context.Background(), key, data)
		require.NoError(t, err)
	}
	put("gone", Host{Host: "gone", Lowest: Lowest, Highest: Highest, Namespaces: []string{"*"}})
	put("newer", Host{Host: "newer", Lowest: Highest + 1, Highest: Highest + 5, Namespaces: []string{"*"}})
	put("wild", Host{Host: "wild", Lowest: Lowest, Highest: Highest, Namespaces: []string{"a.>", "*.b", ""}, Data: make([]string, 100), HostName: strings.Repeat("x", 2000)})
	put("liar", Host{Host: "a", Lowest: Lowest, Highest: Highest})
	put("text", "no host")
	for i := range 50 {
		put(fmt.Sprintf("empty%d", i), struct{}{})
	}
	all, err := a.Hosts(context.Background())
	require.NoError(t, err)
	got := map[string]string{}
	for _, h := range all {
		got[h.Host] = h.State + " " + h.Reason
		require.LessOrEqual(t, len(h.Data), mostAddresses)
	}
	require.Equal(t, map[string]string{
		"a":     "own ",
		"b":     "reachable ",
		"c":     "unreachable it spans none of the namespaces that this host spans",
		"gone":  "unreachable it is not connected to NATS",
		"newer": "unreachable host newer speaks the versions 2 to 6 of the protocol between hosts, this one 1",
		"wild":  "unreachable it spans none of the namespaces that this host spans",
	}, got)

	handle := func(host string) protocol.Handle {
		far := a.memory.put(noise(10, 1), 0)
		far.Host = host
		return far
	}
	_, err = a.Fetch(within(t, patience), "ns", handle("newer"))
	require.ErrorIs(t, err, protocol.ErrVersion)
	_, err = a.Fetch(within(t, patience), "ns", handle("c"))
	require.ErrorIs(t, err, protocol.ErrUnsupported)
	require.ErrorContains(t, err, "host c does not span the namespace ns")
	_, err = a.Fetch(within(t, patience), "others", handle("c"))
	require.ErrorIs(t, err, protocol.ErrUnsupported)
	require.ErrorContains(t, err, "this host does not span the namespace others")

	// A host that cannot write its entry is a host all the same.
	js, err := jetstream.New(a.nats.nc)
	require.NoError(t, err)
	require.NoError(t, js.DeleteKeyValue(context.Background(), Bucket))
	a.dir.wake()
	until(t, "the directory is made again", func() bool {
		_, found, err := a.dir.find(context.Background(), "a")
		return found && err == nil
	})
}
