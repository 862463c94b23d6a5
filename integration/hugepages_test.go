package integration

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

const hugePage = 2 << 20

func freeHugePages(t *testing.T) uint64 {
	n, err := sys.FreeHugePages(hugePage)
	require.NoError(t, err)
	return n
}

// Tensors in huge pages go to other processes as all do, outlive a broker, and the
// pages are the machine's again after a release, a kill and the end of the broker.
func TestTensorsInHugePages(t *testing.T) {
	testkit.OwnHugePages(t)
	testkit.Need(t, "huge-pages")
	before := freeHugePages(t)
	for _, end := range []string{"closed", "killed"} {
		t.Run(end, func(t *testing.T) {
			b := testkit.StartBroker(t)
			k := channel{Topic: "pages", Depth: 8}
			r := join(b, receiveConfig{channel: k, Start: client.StartAll, Count: 5})
			s := ready(b, sendConfig{channel: k, From: "huge", Count: 5, Words: 1000, Huge: true, Stay: true})
			s.Tell("go")
			s.Next(new(int))
			var sum received
			r.Next(&sum)
			require.Equal(t, 5, sum.By["huge"])
			require.Less(t, freeHugePages(t), before, "the tensors lie in huge pages")

			b.Kill()
			b.Restart()
			c := b.Connect()
			topic, err := c.Topic(testkit.Context(t), "pages")
			require.NoError(t, err)
			late, err := topic.Reader(testkit.Context(t), client.StartLast)
			require.NoError(t, err)
			m, err := late.Receive(testkit.Context(t))
			require.NoError(t, err)
			_, err = verifyMessage(m)
			require.NoError(t, err)
			m.Release()
			require.NoError(t, c.Close(), "it has the memory mapped")

			r.Done()
			if end == "killed" {
				s.Kill()
			} else {
				s.Done()
			}
			testkit.Audit(t, b)
			b.End()
			testkit.Until(t, "the machine has its huge pages again", func() (bool, string) {
				n := freeHugePages(t)
				return n == before, fmt.Sprintf("%d of %d are free", n, before)
			})
		})
	}
}

// What there are no huge pages for is refused, and nothing is lost by it.
func TestTooFewHugePages(t *testing.T) {
	testkit.OwnHugePages(t)
	b := testkit.StartBroker(t)
	c, ctx := b.Connect(), testkit.Context(t)
	free, err := sys.FreeHugePages(hugePage)
	if err != nil {
		testkit.Skip(t, "huge-pages", err.Error())
	}
	_, err = c.Alloc(ctx, dlpack.Uint8, []int64{int64(free+1) * hugePage}, client.HugePages(hugePage))
	require.ErrorIs(t, err, protocol.ErrOutOfMemory)
	require.Contains(t, err.Error(), "vm.nr_hugepages", "it says what to do")
	_, err = c.Alloc(ctx, dlpack.Uint8, []int64{1}, client.HugePages(3<<20))
	require.ErrorIs(t, err, protocol.ErrInvalid)
	require.Equal(t, free, freeHugePages(t))
	x, err := c.Alloc(ctx, dlpack.Uint8, []int64{1})
	require.NoError(t, err)
	x.Release()
}

// Files in a directory have no huge pages: the error says so, by the directory.
func TestNoHugePagesInAMemoryDirectory(t *testing.T) {
	dir := t.TempDir()
	b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.MemoryDir = dir })
	_, err := b.Connect().Alloc(testkit.Context(t), dlpack.Uint8, []int64{1}, client.HugePages(hugePage))
	require.ErrorIs(t, err, protocol.ErrUnsupported)
	require.Contains(t, err.Error(), dir)
}
