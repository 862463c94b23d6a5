package integration

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
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

// lostWithFiles is a client that has lost its session to the stop of a broker with a memory
// directory: it holds a tensor of its own, and what a queue of its own named.
func lostWithFiles(t *testing.T) (b *testkit.Broker, dir string, c *client.Client, own *client.Tensor, topic *client.Topic) {
	dir = t.TempDir()
	b = testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.MemoryDir = dir })
	ctx := testkit.Context(t)
	c = b.Connect(client.WithName("lost"))
	_, err := publish(ctx, c, "weights", 5) // so that the next broker takes over
	require.NoError(t, err)
	own, err = filled(ctx, c, 64, 1)
	require.NoError(t, err)
	topic, err = c.Topic(ctx, "t")
	require.NoError(t, err)
	b.End()
	return b, dir, c, own, topic
}

// closedBefore closes a client and then releases its tensor, which is as it was.
func closedBefore(t *testing.T, c *client.Client, own *client.Tensor, topic *client.Topic) {
	require.NoError(t, topic.Close())
	require.NoError(t, c.Close())
	words, err := client.Slice[uint64](own)
	require.NoError(t, err)
	require.NoError(t, verify(words, 1))
	own.Release()
}

// lostHolds tells whether a session called lost holds anything.
func lostHolds(t *testing.T, b *testkit.Broker) bool {
	for _, s := range testkit.Look(t, b).Storages {
		for _, h := range s.Holders {
			if h.Session == "lost" {
				return true
			}
		}
	}
	return false
}

// What a lost session holds is counted by the next broker with the same memory directory,
// until it is released.
func TestNextBrokerCountsWhatALostSessionHolds(t *testing.T) {
	b, _, c, own, topic := lostWithFiles(t)
	instance := c.Instance()
	b.Restart()
	require.Equal(t, instance, b.Connect().Instance())
	require.True(t, lostHolds(t, b))
	_, err := c.Topic(testkit.Context(t), "new")
	require.ErrorIs(t, err, protocol.ErrSessionLost)
	closedBefore(t, c, own, topic)
	testkit.Until(t, "what was released is counted no more", func() (bool, string) { return !lostHolds(t, b), "" })
}

// A broker clears the refcounts of a session that an operator has evicted. What the refcounts counted
// stays mapped, since the process may hold it.
func TestMemoryStaysWhereABrokerHasClearedTheRefcounts(t *testing.T) {
	b, dir, c, own, topic := lostWithFiles(t)
	forgetProcess(t, dir, c.Session())
	b.Restart()
	next := b.Connect()
	require.True(t, lostHolds(t, b))
	require.NoError(t, next.Broker(testkit.Context(t), protocol.OpEvict, protocol.Evict{Serial: c.Session()}, nil))
	require.False(t, lostHolds(t, b), "its refcounts are cleared")
	closedBefore(t, c, own, topic)
}

// forgetProcess has the next broker not know whose a session is, as one in another pid
// namespace does not.
func forgetProcess(t *testing.T, dir string, session uint64) {
	names, err := filepath.Glob(filepath.Join(dir, "*", "broker-*"))
	require.NoError(t, err)
	require.Len(t, names, 1)
	file, err := sys.OpenFile(names[0])
	require.NoError(t, err)
	defer file.Close()
	bytes, err := sys.Map(file, protocol.BrokerBytes, true)
	require.NoError(t, err)
	defer sys.Unmap(bytes)
	page := record.Of(shm.NewRegion(bytes))
	for slot := range uint32(protocol.MaxSessions) {
		if v := page.Session(slot); v.Serial() == session {
			v.ForgetProcess()
			return
		}
	}
	t.Fatalf("no session %d is recorded", session)
}

// A memory directory whose files were removed under a broker costs living programs nothing:
// the next broker gets from them what they have mapped.
func TestFilesOfAMemoryDirectoryAreRemoved(t *testing.T) {
	for _, what := range []string{"", "baton-*/broker-*", "baton-*/se*", "baton-*/segment-*", "baton-*/session-[2-9]*", "baton-*/group-*"} {
		t.Run("remove "+what, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "memory")
			b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.MemoryDir = dir })
			ctx := testkit.Context(t)
			c, other := b.Connect(), b.Connect()
			_, err := publish(ctx, c, "weights", 5)
			require.NoError(t, err)
			held, err := filled(ctx, c, 64, 1)
			require.NoError(t, err)
			queue, err := c.Queue(ctx, "work")
			require.NoError(t, err)
			require.NoError(t, queue.Put(ctx, held))
			require.NoError(t, queue.Put(ctx, held))
			m, err := queue.Get(ctx) // as a member of its group
			require.NoError(t, err)
			m.Release()
			removed, err := filepath.Glob(filepath.Join(dir, what))
			require.NoError(t, err)
			require.NotEmpty(t, removed)
			for _, path := range removed {
				require.NoError(t, os.RemoveAll(path))
			}
			if what == "" {
				testkit.Until(t, "the broker's log says so", func() (bool, string) {
					return strings.Contains(b.Process().Log(), "were removed"), b.Process().Log()
				})
			}
			large, err := filled(ctx, other, 8<<20, 2)
			require.NoError(t, err, "memory is had as before")
			for range 2 {
				b.Kill()
				b.Restart()
				for _, c := range []*client.Client{c, other} { // both are back then, with what they have mapped
					require.NoError(t, c.Broker(ctx, protocol.OpStatus, nil, &struct{}{}), "the session stays")
				}
				for x, seed := range map[*client.Tensor]uint64{held: 1, large: 2} {
					words, err := client.Slice[uint64](x)
					require.NoError(t, err)
					require.NoError(t, verify(words, seed))
				}
				w, err := other.Get(ctx, "weights")
				require.NoError(t, err)
				require.NoError(t, verifyBundle(w, 5))
				w.Release()
			}
			newcomer := b.Connect()
			theirs, err := newcomer.Queue(ctx, "work")
			require.NoError(t, err)
			m, err = theirs.Get(ctx)
			require.NoError(t, err, "the claims of the queue are there")
			m.Release()
			require.NoError(t, queue.Close())
			require.NoError(t, theirs.Close())
			held.Release()
			large.Release()
			require.NoError(t, c.Delete(ctx, "weights"))
			testkit.AuditEmpty(t, b, c, other, newcomer)
		})
	}
}
