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
	"github.com/baton-ipc/baton/dlpack"
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

// mappedOf lists the mappings of this process of shared files whose names begin so.
func mappedOf(t *testing.T, name string) (out []string) {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "baton-"+name) || strings.Contains(line, "/"+name) {
			out = append(out, line)
		}
	}
	return out
}

func segmentsMapped(t *testing.T) int { return len(mappedOf(t, "segment-")) }

// segmentsUnmapped waits until no more segments are mapped than before.
func segmentsUnmapped(t *testing.T, before int) {
	t.Helper()
	testkit.Until(t, "no more segments are mapped than before", func() (bool, string) {
		runtime.GC()
		now := mappedOf(t, "segment-")
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
// after the stop of the broker, and though nothing refers to the clients any more.
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
	b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.CrashPoint = "broker-end-gone" })
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

// A process that opens and closes again and again, and holds the tensor of the client
// before each time, keeps the files and mappings of what it holds.
func TestClosedClientsLeaveOnlyWhatIsHeld(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	_, lent, h := lend(t, b)
	var last []*client.Tensor
	rounds := func(n int) {
		for range n {
			c := connectAlone(t, b)
			own, err := filled(ctx, c, 64, 3)
			require.NoError(t, err)
			theirs, err := c.Open(ctx, h)
			require.NoError(t, err)
			theirs.Release()
			require.NoError(t, c.Close())
			for _, x := range last {
				words, err := client.Slice[uint64](x)
				require.NoError(t, err)
				require.NoError(t, verify(words, 3))
				x.Release()
			}
			last = []*client.Tensor{own}
		}
	}
	rounds(10)
	fds, mappings := testkit.SharedFDs(os.Getpid()), testkit.SharedMappings()
	rounds(100)
	require.LessOrEqual(t, testkit.SharedFDs(os.Getpid()), fds+8, "descriptors")
	testkit.Until(t, "no more is mapped than before", func() (bool, string) {
		runtime.GC()
		m := testkit.SharedMappings()
		return m <= mappings+8, fmt.Sprintf("%d mappings, then %d", mappings, m)
	})

	b.Kill() // the next broker is given what it needs for what is held
	b.Restart()
	testkit.Until(t, "the last tensor is listed", func() (bool, string) {
		look := testkit.Look(t, b)
		return len(look.Storages) == 2, look.String()
	})
	words, err := client.Slice[uint64](last[0])
	require.NoError(t, err)
	require.NoError(t, verify(words, 3))
	last[0].Release()
	lent.Release()
}

// The pages of a closed session whose counts were moved stay as long as C code has a tensor
// exported from it, and no longer.
func TestPagesOfAnExportAreUnmappedBehindItsDeletion(t *testing.T) {
	b := testkit.StartBroker(t)
	_, lent, h := lend(t, b)
	closeHolder, release := holders(t, b, 1)
	closeHolder()
	export := func() (*dlpack.ManagedTensorVersioned, string) {
		c := connectAlone(t, b)
		x, err := c.Open(testkit.Context(t), h)
		require.NoError(t, err)
		managed, err := x.ToDLPack()
		require.NoError(t, err)
		x.Release()
		require.NoError(t, c.Close())
		return managed, fmt.Sprintf("session-%d ", c.Session())
	}
	managed, pages := export()
	for range 3 { // by then the client has most likely gone
		collected := make(chan struct{})
		runtime.AddCleanup(new([64]byte), func(c chan struct{}) { close(c) }, collected)
		runtime.GC()
		<-collected
	}
	require.NotEmpty(t, mappedOf(t, pages))
	require.NoError(t, dlpack.Release(managed))
	testkit.Until(t, "its pages are unmapped", func() (bool, string) {
		runtime.GC()
		return len(mappedOf(t, pages)) == 0, pages
	})
	release()
	lent.Release()
}
