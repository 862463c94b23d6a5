package integration

import (
	"context"
	"encoding/json"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

const unreadBytes = 16 << 20

// unreadBroker has room for three pickles of unreadBytes.
func unreadBroker(t *testing.T, limit string) *testkit.Broker {
	return testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.Memory, c.UnreadPickles = 64<<20, limit })
}

// handOver makes a handle as a pickle has it, of a tensor that begins with a number, and lets the
// tensor go.
func handOver(t *testing.T, c *client.Client, number byte) protocol.Handle {
	t.Helper()
	x, h := handOverAndKeep(t, c, number)
	x.Release()
	return h
}

// handOverAndKeep is handOver of a tensor that stays held.
func handOverAndKeep(t *testing.T, c *client.Client, number byte) (*client.Tensor, protocol.Handle) {
	t.Helper()
	ctx := testkit.Context(t)
	x, err := c.Alloc(ctx, dlpack.Uint8, []int64{unreadBytes})
	require.NoError(t, err)
	data, err := x.Bytes()
	require.NoError(t, err)
	data[0] = number
	h, err := x.Handle(ctx, client.LeaseOnce())
	require.NoError(t, err)
	return x, h
}

// readNumber opens a handle and gives the number that handOver wrote.
func readNumber(t *testing.T, c *client.Client, h protocol.Handle) (byte, error) {
	t.Helper()
	x, err := c.Open(testkit.Context(t), h)
	if err != nil {
		return 0, err
	}
	defer x.Release()
	data, err := x.Bytes()
	require.NoError(t, err)
	return data[0], nil
}

func unreadOf(t *testing.T, b *testkit.Broker) (status broker.Status, rows []broker.LeaseRow) {
	t.Helper()
	for args, to := range map[string]any{"status": &status, "ls": &rows} {
		words := []string{args, "--address", b.Socket, "--json"}
		if args == "ls" {
			words = []string{"ls", "leases", "--address", b.Socket, "--json"}
		}
		said, err := exec.Command(testkit.Binary(t), words...).Output()
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(said, to))
	}
	return status, rows
}

func TestYoungPickleIsNeverGivenUp(t *testing.T) {
	b := unreadBroker(t, "1h")
	ctx := testkit.Context(t)
	c, d := b.Connect(), b.Connect()
	var all []protocol.Handle
	for i := range byte(3) {
		all = append(all, handOver(t, c, i))
	}
	_, err := c.Alloc(ctx, dlpack.Uint8, []int64{2 * unreadBytes})
	require.ErrorIs(t, err, protocol.ErrQuotaExceeded)
	require.ErrorContains(t, err, "50331648 bytes are kept by handles in pickles that were not read, until 30 s after the end of the session that made them")
	require.ErrorContains(t, err, "or where memory is refused until they are 1h0m0s old (--unread-pickles)")
	status, rows := unreadOf(t, b)
	require.Equal(t, 3, status.Unread.Waiting)
	require.Zero(t, status.Unread.MayGo)
	require.Zero(t, status.Unread.GivenUp)
	require.Len(t, rows, 3)
	require.NotNil(t, rows[0].Unread)
	require.False(t, rows[0].MayGo)
	for i, h := range all {
		n, err := readNumber(t, d, h)
		require.NoError(t, err)
		require.EqualValues(t, i, n)
	}
}

func TestOldestUnreadPickleIsGivenUpWhereMemoryIsRefused(t *testing.T) {
	// 64 MiB are granted for three pickles.
	b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.Memory, c.UnreadPickles = 80<<20, "0s" })
	ctx := testkit.Context(t)
	c, d := b.Connect(), b.Connect()
	var all []protocol.Handle
	for i := range byte(3) {
		all = append(all, handOver(t, c, i))
	}
	status, rows := unreadOf(t, b)
	require.Equal(t, 3, status.Unread.MayGo)
	require.True(t, rows[0].MayGo)
	require.Zero(t, status.Unread.GivenUp, "with room for all, none is given up")
	x, err := c.Alloc(ctx, dlpack.Uint8, []int64{unreadBytes + unreadBytes/2})
	require.NoError(t, err)
	defer x.Release()
	status, _ = unreadOf(t, b)
	require.EqualValues(t, 1, status.Unread.GivenUp, "of 24 MiB 8 were missing")
	_, err = readNumber(t, d, all[0])
	require.ErrorIs(t, err, protocol.ErrExpired)
	for i := 1; i < 3; i++ {
		n, err := readNumber(t, d, all[i])
		require.NoError(t, err)
		require.EqualValues(t, i, n)
	}
	require.Contains(t, b.Process().Log(), "gave up handles in pickles that were not read")
}

// The memory that the pickles held is another session's, which gives it back when it is asked.
func TestPicklesOfAnotherSessionAreGivenUpForAnAllocation(t *testing.T) {
	b := unreadBroker(t, "0s")
	ctx := testkit.Context(t)
	c, d := b.Connect(), b.Connect()
	for i := range byte(3) {
		handOver(t, c, i)
	}
	x, err := d.Alloc(ctx, dlpack.Uint8, []int64{2 * unreadBytes})
	require.NoError(t, err)
	x.Release()
}

// Of three pickles one is being read, one is in a queue as well, and the tensor of one lives on with its
// maker: the end of their leases would free nothing.
func TestPickleWhoseMemoryIsInUseIsNotGivenUp(t *testing.T) {
	b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.Memory, c.UnreadPickles = 73<<20, "0s" }) // and for a lane
	ctx := testkit.Context(t)
	c, d := b.Connect(), b.Connect()
	q, err := c.Queue(ctx, "q")
	require.NoError(t, err)
	var all []protocol.Handle
	var kept []*client.Tensor
	for i := range byte(3) {
		x, h := handOverAndKeep(t, c, i)
		all = append(all, h)
		kept = append(kept, x)
	}
	h := all[0]
	h.Lease = nil // a reader that has begun to open it, and has not redeemed the lease
	opened, err := d.Open(ctx, h)
	require.NoError(t, err)
	kept[0].Release()
	require.NoError(t, q.Put(ctx, kept[1]))
	kept[1].Release()
	_, err = c.Alloc(ctx, dlpack.Uint8, []int64{unreadBytes + unreadBytes/2})
	require.ErrorIs(t, err, protocol.ErrQuotaExceeded)
	status, _ := unreadOf(t, b)
	require.Equal(t, 3, status.Unread.Waiting)
	require.Zero(t, status.Unread.GivenUp)
	opened.Release()
	x, err := c.Alloc(ctx, dlpack.Uint8, []int64{unreadBytes + unreadBytes/2})
	require.NoError(t, err, "of the first one nothing is in use any more")
	x.Release()
	m, err := q.Get(ctx)
	require.NoError(t, err)
	m.Release()
	n, err := readNumber(t, d, all[2])
	require.NoError(t, err)
	require.EqualValues(t, 2, n)
	kept[2].Release()
}

func TestAgeOfAnUnreadPickleOutlivesItsBroker(t *testing.T) {
	b := unreadBroker(t, "1h")
	c := b.Connect()
	handOver(t, c, 1)
	before := time.Now()
	testkit.Until(t, "the pickle has an age", func() (bool, string) {
		status, _ := unreadOf(t, b)
		return status.Unread.Oldest > 0.05, ""
	})
	b.Kill()
	b.Restart()
	x, err := c.Alloc(context.Background(), dlpack.Uint8, []int64{1}) // the session is back
	require.NoError(t, err)
	x.Release()
	waited := time.Since(before)
	status, _ := unreadOf(t, b)
	require.Equal(t, 1, status.Unread.Waiting)
	require.GreaterOrEqual(t, status.Unread.Oldest, waited.Seconds())
}
