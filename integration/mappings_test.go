package integration

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
)

// A process that lives long keeps nothing of those that came and went: neither
// descriptors nor mappings of its peers, nor of the queues that it had open.
func TestWhatPeersLeaveIsUnmapped(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	news, err := channel{Topic: "news", Depth: 4}.openTopic(ctx, c)
	require.NoError(t, err)
	r, err := news.Reader(ctx)
	require.NoError(t, err)
	visits := func(n int) {
		for range n {
			// Not by the kit, which keeps every client until the test ends.
			d, err := client.Connect(ctx, client.WithAddress(b.Socket), client.WithNamespace(b.Namespace))
			require.NoError(t, err)
			topic, err := d.Topic(ctx, "news")
			require.NoError(t, err)
			require.NoError(t, sendNoted(ctx, d, topicSender{topic}, 16, newNote("d", 0)))
			require.NoError(t, d.Close())
			m, err := r.Receive(ctx)
			require.NoError(t, err)
			_, err = verifyMessage(m)
			require.NoError(t, err)
			m.Release()
			q, err := c.Queue(ctx, "", client.Linger(time.Millisecond))
			require.NoError(t, err)
			require.NoError(t, sendNoted(ctx, c, queueSender{q}, 16, newNote("c", 0)))
			m, err = q.Get(ctx)
			require.NoError(t, err)
			m.Release()
			require.NoError(t, q.Close())
		}
	}
	visits(40)
	fds, mappings := testkit.SharedFDs(os.Getpid()), testkit.SharedMappings()
	visits(200)
	testkit.Until(t, "no more is mapped than before", func() (bool, string) {
		runtime.GC()
		f, m := testkit.SharedFDs(os.Getpid()), testkit.SharedMappings()
		return f <= fds+16 && m <= mappings+32, fmt.Sprintf("%d descriptors, then %d; %d mappings, then %d", fds, f, mappings, m)
	})
}

// A session that was closed while it held something may end in the broker before its
// client asks: what it held is unmapped all the same.
func TestWhatAClosedSessionHeldIsUnmapped(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	var serials []string
	for range 3 {
		c := b.Connect()
		x, err := filled(ctx, c, 64, 1)
		require.NoError(t, err)
		h, err := x.Handle(ctx)
		require.NoError(t, err)
		for _, s := range testkit.Look(t, b).Segments {
			serials = append(serials, fmt.Sprintf("memfd:baton-segment-%d ", s.Serial))
		}
		d, err := client.Connect(ctx, client.WithAddress(b.Socket), client.WithNamespace(b.Namespace))
		require.NoError(t, err)
		y, err := d.Open(ctx, h)
		require.NoError(t, err)
		require.NoError(t, d.Close())
		for range 50 { // by then the client has most likely looked, and does not soon again
			testkit.Look(t, b)
		}
		words, err := client.Slice[uint64](y)
		require.NoError(t, err)
		require.NoError(t, verify(words, 1))
		y.Release()
		x.Release()
		require.NoError(t, c.ReleaseHandle(ctx, h))
		require.NoError(t, c.Close())
		testkit.Until(t, "both sessions have ended", func() (bool, string) {
			look := testkit.Look(t, b)
			return len(look.Sessions) == 1, look.String()
		})
	}
	testkit.Until(t, "no segment is mapped", func() (bool, string) {
		maps, err := os.ReadFile("/proc/self/maps")
		require.NoError(t, err)
		for _, s := range serials {
			if strings.Contains(string(maps), s) {
				return false, s
			}
		}
		return true, ""
	})
}
