package client

import (
	"context"
	"testing"
	"time"

	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

const patience = 90 * time.Second

// pair opens two sessions of a broker of this process.
func pair(t *testing.T) (a, b *Client) {
	t.Helper()
	all := sessions(t, 2)
	return all[0], all[1]
}

func alloc(t *testing.T, c *Client) *Tensor {
	t.Helper()
	x, err := c.Alloc(context.Background(), dlpack.Uint8, []int64{64})
	require.NoError(t, err)
	return x
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	require.Eventually(t, f, patience, 2*time.Millisecond, what)
}

// segments counts those that are mapped.
func segments(c *Client) int {
	_, n := c.s.Memory.Stats()
	return n
}

// mapsOthers has c map a segment of o, which then ends.
func mapsOthers(t *testing.T, c, o *Client) {
	t.Helper()
	ctx := context.Background()
	x := alloc(t, o)
	_, err := o.Set(ctx, "n", x)
	require.NoError(t, err)
	x.Release()
	m, err := c.Get(ctx, "n")
	require.NoError(t, err)
	m.Release()
	require.Equal(t, 1, segments(c))
	require.NoError(t, o.Delete(ctx, "n"))
	require.NoError(t, o.Close())
}

func TestSegmentIsUnmappedThoughNoEventOfItCame(t *testing.T) {
	c, o := pair(t)
	c.s.Up.Store(false) // events are not heard from here on
	mapsOthers(t, c, o)
	eventually(t, "the mapping never ends", func() bool { return segments(c) == 0 })
}

func TestOwnMemoryIsNotTakenForGone(t *testing.T) {
	c, _ := pair(t)
	x := alloc(t, c)
	c.s.Reconcile()
	require.Equal(t, 1, segments(c))
	x.Release()
	require.NotZero(t, c.Collect())
	require.Zero(t, segments(c))
}

func TestMappingThatIsCountedForAMomentGoesLater(t *testing.T) {
	c, o := pair(t)
	x := alloc(t, o)
	_, err := o.Set(context.Background(), "n", x)
	require.NoError(t, err)
	m, err := c.Get(context.Background(), "n")
	require.NoError(t, err)
	defer m.Release()
	serials := c.s.Memory.Inventory(nil, func(uint64, *sys.FD) {})
	for range 2 { // the second look finds the count as the first one did
		c.s.Memory.Trim(serials)
		require.Equal(t, 1, segments(c))
	}
	x.Release()
}

func TestPlaceOfALaneComesBackThoughNoEventOfItCame(t *testing.T) {
	c, o := pair(t)
	ctx := context.Background()
	out, err := c.Topic(ctx, "t", Linger(time.Hour))
	require.NoError(t, err)
	in, err := o.Topic(ctx, "t")
	require.NoError(t, err)
	x := alloc(t, c)
	require.NoError(t, out.Send(ctx, x))
	x.Release()
	c.s.Up.Store(false)
	require.NoError(t, out.Close())
	left := func() int {
		return c.s.Files.Lanes.CountLeft()
	}
	require.Equal(t, 1, left(), "the broker keeps the lane for its message")
	c.s.Reconcile()
	require.Equal(t, 1, left(), "it is still listed")
	y := alloc(t, o)
	for range 8 { // as many as the topic keeps
		require.NoError(t, in.Send(ctx, y))
	}
	y.Release()
	eventually(t, "the place of the lane is lost", func() bool { return left() == 0 })
}

// peersMapped counts sessions whose files are mapped.
func peersMapped(c *Client) (n int) { return c.s.Files.CountPeers() }

func TestFilesOfAnEndedSessionAreUnmappedThoughItsSlotStaysFree(t *testing.T) {
	c, o := pair(t)
	before := peersMapped(c)
	mapsOthers(t, c, o)
	eventually(t, "the files never end", func() bool { return peersMapped(c) == before })
}

// Where a caller's time runs out right after the broker went, that it went is what counts.
func TestAbsenceOfTheBrokerIsTheCauseOfTheEndOfACall(t *testing.T) {
	c, _ := pair(t)
	ctx, end := context.WithCancel(context.Background())
	asked, cancel := c.s.Link.UntilAway(ctx)
	defer cancel()
	c.s.Link.End()
	<-asked.Done()
	end()
	require.ErrorIs(t, context.Cause(asked), protocol.ErrBrokerLost)
}
