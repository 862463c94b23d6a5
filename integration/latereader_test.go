package integration

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

const lateBytes = 4 << 20

func init() { roles["late reader"] = playLateReader }

// playLateReader keeps a slice beyond the close of its client and reads it when it is
// told to.
func playLateReader(p *testkit.Child) error {
	c, err := p.Connect()
	if err != nil {
		return err
	}
	topic, err := c.Topic(p.Context(), "news")
	if err != nil {
		return err
	}
	r, err := topic.Reader(p.Context(), client.StartAll)
	if err != nil {
		return err
	}
	m, err := r.Receive(p.Context())
	if err != nil {
		return err
	}
	late, err := m.Tensor().Bytes()
	if err != nil {
		return err
	}
	if err := c.Close(); err != nil {
		return err
	}
	if err := p.Say("closed"); err != nil {
		return err
	}
	var line string
	if err := p.Hear(&line); err != nil {
		return err
	}
	sum := 0
	for _, b := range late {
		sum += int(b)
	}
	return p.Say(sum)
}

// A slice that a closed client has not released keeps its bytes, also when a file system
// has been filled meanwhile, and its memory is given back when its process has ended.
func TestLateReaderOnAFullMemoryDirectory(t *testing.T) {
	dir := smallFileSystem(t, "64m")
	b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.MemoryDir = filepath.Join(dir, "memory") })
	ctx := testkit.Context(t)
	c := b.Connect(client.WithName("owner"))
	news, err := c.Topic(ctx, "news", client.Depth(1), client.Linger(time.Millisecond))
	require.NoError(t, err)
	x, err := c.Alloc(ctx, dlpack.Uint8, []int64{lateBytes})
	require.NoError(t, err)
	bytes, err := x.Bytes()
	require.NoError(t, err)
	for i := range bytes {
		bytes[i] = 1
	}
	require.NoError(t, news.Send(ctx, x))
	x.Release()
	reader := b.Start("late reader", nil)
	var said string
	reader.Next(&said)
	require.NoError(t, news.Close())
	c.Collect()
	testkit.Stuff(t, dir)
	reader.Tell("read")
	var sum int
	reader.Next(&sum)
	require.Equal(t, lateBytes, sum)
	reader.Done()
	testkit.Until(t, "its memory is given back", func() (bool, string) {
		c.Collect()
		var st broker.Status
		require.NoError(t, c.Broker(context.Background(), protocol.OpStatus, nil, &st))
		return st.Memory.Granted < lateBytes, fmt.Sprint(st.Memory)
	})
}

// The place of a lane that was left and read to its end is used anew by its
// session; until then it reads as empty, and in a file it keeps its pages.
func TestPlaceOfALaneThatWasLeftKeepsItsPagesInFiles(t *testing.T) {
	dir := t.TempDir()
	b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.MemoryDir = filepath.Join(dir, "memory") })
	ctx := testkit.Context(t)
	c := b.Connect(client.WithName("sender"))
	files, err := filepath.Glob(filepath.Join(dir, "memory", "*", fmt.Sprintf("session-%d", c.Session())))
	require.NoError(t, err)
	require.Len(t, files, 1)
	file, err := sys.OpenFile(files[0])
	require.NoError(t, err)
	defer file.Close()
	allocated := func() uint64 {
		n, err := file.Allocated()
		require.NoError(t, err)
		return n
	}
	x, err := filled(ctx, c, 16, 1)
	require.NoError(t, err)
	defer x.Release()
	most := uint64(0)
	for i := range 20 {
		topic, err := c.Topic(ctx, fmt.Sprint("brief", i), client.Linger(time.Millisecond))
		require.NoError(t, err)
		require.NoError(t, topic.Send(ctx, x))
		now := allocated()
		require.GreaterOrEqual(t, now, most, "a place lost its pages")
		most = now
		require.NoError(t, topic.Close())
		testkit.Until(t, "its lane is gone", func() (bool, string) {
			h := testkit.Look(t, b)
			return len(h.Topics) == 0, h.String()
		})
	}
	require.GreaterOrEqual(t, allocated(), most)
}
