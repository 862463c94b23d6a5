package integration

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
)

// connectAlone connects a client that the kit does not keep until the test ends: it may
// become garbage.
func connectAlone(t *testing.T, b *testkit.Broker, opts ...client.Option) *client.Client {
	t.Helper()
	opts = append(opts, client.WithAddress(b.Socket), client.WithNamespace(b.Namespace))
	c, err := client.Connect(testkit.Context(t), opts...)
	require.NoError(t, err)
	return c
}

// mappedOf lists the mappings of this process of shared files of one kind.
func mappedOf(t *testing.T, kind string) (out []string) {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "baton-"+kind+"-") || strings.Contains(line, "/"+kind+"-") {
			out = append(out, line)
		}
	}
	return out
}

func segmentsMapped(t *testing.T) int { return len(mappedOf(t, "segment")) }

// segmentsUnmapped waits until no more segments are mapped than before.
func segmentsUnmapped(t *testing.T, before int) {
	t.Helper()
	testkit.Until(t, "no more segments are mapped than before", func() (bool, string) {
		runtime.GC()
		now := mappedOf(t, "segment")
		return len(now) <= before, fmt.Sprintf("%d before, now:\n%s", before, strings.Join(now, ""))
	})
}

// holders opens clients that hold a tensor each, to which nothing else refers, and gives
// what closes the clients and what releases the tensors.
func holders(t *testing.T, b *testkit.Broker, clients int) (closeAll, release func()) {
	t.Helper()
	var all []*client.Client
	var held []*client.Tensor
	for range clients {
		c := connectAlone(t, b, client.WithName("holder"))
		x, err := filled(testkit.Context(t), c, 64, 3)
		require.NoError(t, err)
		all, held = append(all, c), append(held, x)
	}
	closeAll = func() {
		for _, c := range all {
			require.NoError(t, c.Close())
		}
		all = nil
	}
	return closeAll, func() {
		for _, x := range held {
			words, err := client.Slice[uint64](x)
			require.NoError(t, err)
			require.NoError(t, verify(words, 3))
			x.Release()
		}
		held = nil
	}
}

// Memory that a process has released is unmapped, whether its session ended before or
// behind the stop of the broker, and though nothing refers to the clients any more.
func TestReleasedMemoryIsUnmappedBehindAStop(t *testing.T) {
	for where, inFiles := range map[string]bool{"memfds": false, "files": true} {
		for when, stopFirst := range map[string]bool{"closed before": false, "closed behind": true} {
			t.Run(where+"/"+when, func(t *testing.T) {
				b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) {
					if inFiles {
						c.MemoryDir = t.TempDir()
					}
				})
				own := connectAlone(t, b)
				_, err := publish(testkit.Context(t), own, "weights", 5) // so that the next broker takes files over
				require.NoError(t, err)
				require.NoError(t, own.Close())
				before := segmentsMapped(t)
				closeAll, release := holders(t, b, 6)
				require.Greater(t, segmentsMapped(t), before)
				if stopFirst {
					b.End()
					closeAll()
				} else {
					closeAll()
					b.End()
				}
				b.Restart()
				release()
				testkit.Until(t, "the broker has ended the sessions", func() (bool, string) {
					look := testkit.Look(t, b)
					return !slices.ContainsFunc(look.Sessions, func(r broker.SessionRow) bool { return r.Name == "holder" }), look.String()
				})
				segmentsUnmapped(t, before)
			})
		}
	}
}

// A client whose bye was carried out and not answered unmaps what it has released.
func TestMemoryIsUnmappedThoughTheAnswerToByeWasLost(t *testing.T) {
	b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.CrashPoint = "broker-bury-gone" })
	_, lent, h := lend(t, b)
	before := segmentsMapped(t)
	c := connectAlone(t, b)
	x, err := c.Open(testkit.Context(t), h)
	require.NoError(t, err)
	x.Release()
	require.Greater(t, segmentsMapped(t), before)
	require.NoError(t, c.Close())
	b.Crashed()
	b.Restart()
	segmentsUnmapped(t, before)
	words, err := client.Slice[uint64](lent)
	require.NoError(t, err)
	require.NoError(t, verify(words, 1))
	lent.Release()
}
