package shm

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

func newTestGroup(t *testing.T, slots uint32) GroupLane {
	t.Helper()
	g, err := NewGroupLane(memory(protocol.GroupBytes(slots)), 3, slots)
	require.NoError(t, err)
	require.True(t, g.Reset(1))
	return g
}

func TestGroupGivesEachMessageToOneMember(t *testing.T) {
	const messages, members, slots = 5000, 3, 8
	g := newTestGroup(t, slots)
	var head atomic.Uint64
	taken := make([]atomic.Int32, messages+1)
	var wg sync.WaitGroup
	for m := uint8(1); m <= members; m++ {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				h := head.Load()
				i, hint, ok := g.Next(h)
				if !ok {
					if h == messages {
						return
					}
					continue
				}
				if g.Take(i, hint, m, true) {
					taken[i].Add(1)
					if !g.Acknowledge(i, m) {
						t.Error("an own claim could not be acknowledged")
					}
				}
			}
		}()
	}
	for i := uint64(1); i <= messages; i++ {
		for i > slots-1 && !g.Done(i-(slots-1)) {
		}
		head.Store(i)
	}
	wg.Wait()
	for i := 1; i <= messages; i++ {
		require.EqualValues(t, 1, taken[i].Load(), "message %d", i)
	}
}

func TestGroupReleaseGivesClaimsOfTheDeadBack(t *testing.T) {
	g := newTestGroup(t, 8)
	for i := uint64(1); i <= 4; i++ {
		_, hint, ok := g.Next(4)
		require.True(t, ok)
		require.True(t, g.Take(i, hint, uint8(1+i%2), true))
	}
	require.True(t, g.Acknowledge(1, 2))
	_, stale := g.Hint()
	old, _ := g.Hint()
	require.EqualValues(t, 5, stale)

	require.Equal(t, 1, g.Release(2)) // message 3; message 1 is done
	i, _, ok := g.Next(4)
	require.True(t, ok)
	require.EqualValues(t, 3, i)
	require.False(t, g.r.CAS64(protocol.GroupHint, old, protocol.HintWord(9, 0)), "a late swap of the hint must fail")
	require.False(t, g.Acknowledge(3, 2), "the dead cannot acknowledge")
	require.False(t, g.Done(3))
}

func TestGroupPromisesNothingBeforeItsStart(t *testing.T) {
	g := newTestGroup(t, 8)
	g.SetStart(protocol.NoStart)
	require.True(t, g.Done(5), "a group without a start holds no writer up")
	g.SetStart(4)
	require.True(t, g.Done(3))
	require.False(t, g.Done(4))
	i, _, ok := g.Next(6)
	require.True(t, ok)
	require.EqualValues(t, 4, i)
}

func TestGroupWithRubbishInItsPageNeitherFaultsNorLoops(t *testing.T) {
	g := newTestGroup(t, 8)
	for _, w := range []uint64{1<<64 - 1, 1 << 63, 0xfff, protocol.ClaimWord(1<<51, 200, 9)} {
		g.r.Store64(protocol.GroupHint, w)
		for k := uint64(0); k < 8; k++ {
			g.r.Store64(protocol.GroupClaims+8*k, w)
		}
		g.Next(1 << 40)
		g.Done(1 << 40)
		g.Release(200)
		g.Release(uint8(w >> 4))
	}
}
