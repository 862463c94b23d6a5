package integration

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// unmapped waits until a client maps no segment.
func unmapped(t *testing.T, c *client.Client) {
	t.Helper()
	testkit.Until(t, "what was released is unmapped", func() (bool, string) { return c.Stats().Segments == 0, "" })
}

// What a lost session holds stays until it is released, and is unmapped then, whether its
// client is closed before or not.
func TestMemoryOfALostSessionIsUnmappedAsItIsReleased(t *testing.T) {
	for _, closed := range []bool{false, true} {
		t.Run(map[bool]string{false: "open", true: "closed"}[closed], func(t *testing.T) {
			b := testkit.StartBroker(t)
			ctx := testkit.Context(t)
			_, err := publish(ctx, b.Connect(), "weights", 5)
			require.NoError(t, err)
			c := b.Connect()
			own, err := filled(ctx, c, 64, 1)
			require.NoError(t, err)
			topic, err := c.Topic(ctx, "t")
			require.NoError(t, err)
			require.NoError(t, topic.Send(ctx, own))
			exported, err := filled(ctx, c, 64, 2)
			require.NoError(t, err)
			managed, err := exported.ToDLPack()
			require.NoError(t, err)
			exported.Release()
			theirs, err := c.Get(ctx, "weights")
			require.NoError(t, err)
			b.End()
			testkit.Until(t, "the session is lost", func() (bool, string) {
				_, err := c.Topic(ctx, "new")
				return errors.Is(err, protocol.ErrSessionLost), ""
			})
			if closed {
				require.NoError(t, c.Close())
			}
			words, err := client.Slice[uint64](own)
			require.NoError(t, err)
			require.NoError(t, verify(words, 1))
			require.NoError(t, verifyBundle(theirs, 5))
			theirs.Release()
			own.Release()
			require.NotZero(t, c.Stats().Segments, "the export is held")
			require.NoError(t, dlpack.Release(managed))
			unmapped(t, c)
			require.NoError(t, c.Close())
			b.Restart()
		})
	}
}

// A broker clears the row of a session that it ended. What the row counted stays mapped,
// since the process may hold it.
func TestMemoryStaysWhereABrokerHasClearedTheRow(t *testing.T) {
	dir := t.TempDir()
	b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.MemoryDir = dir })
	ctx := testkit.Context(t)
	c := b.Connect(client.WithName("lost"))
	_, err := publish(ctx, c, "weights", 5) // so that the next broker takes over
	require.NoError(t, err)
	own, err := filled(ctx, c, 64, 1)
	require.NoError(t, err)
	topic, err := c.Topic(ctx, "t")
	require.NoError(t, err)
	instance := c.Instance()
	b.End()
	b.Restart()
	next := b.Connect()
	require.Equal(t, instance, next.Instance())
	for _, s := range testkit.Look(t, b).Storages {
		for _, h := range s.Holders {
			require.NotEqual(t, "lost", h.Session, "its row is cleared")
		}
	}
	_, err = c.Topic(ctx, "new")
	require.ErrorIs(t, err, protocol.ErrSessionLost)
	require.NoError(t, topic.Close())
	require.NoError(t, c.Close())
	words, err := client.Slice[uint64](own)
	require.NoError(t, err)
	require.NoError(t, verify(words, 1))
	own.Release()
}
