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
	for m := uint16(1); m <= members; m++ {
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
		require.True(t, g.Take(i, hint, uint16(1+i%2), true))
	}
	require.True(t, g.Acknowledge(1, 2))
	_, stale := g.Hint()
	old, _ := g.Hint()
	require.EqualValues(t, 5, stale)

	require.Equal(t, 1, g.Release(of(2))) // message 3; message 1 is done
	i, _, ok := g.Next(4)
	require.True(t, ok)
	require.EqualValues(t, 3, i)
	require.False(t, g.r.CAS64(protocol.GroupHint, old, protocol.HintWord(9, 0)), "a late swap of the hint must fail")
	require.False(t, g.Acknowledge(3, 2), "the dead cannot acknowledge")
	require.False(t, g.Done(3))
}

func TestGroupFinishLeavesClaimsOfTheDeadToNobody(t *testing.T) {
	g := newTestGroup(t, 8)
	for i := uint64(1); i <= 3; i++ {
		_, hint, ok := g.Next(3)
		require.True(t, ok)
		require.True(t, g.Take(i, hint, uint16(1+i%2), true))
	}
	require.Equal(t, 2, g.Finish(of(2)))
	require.True(t, g.Done(1) && g.Done(3))
	require.False(t, g.Done(2), "another member has it")
	_, _, ok := g.Next(3)
	require.False(t, ok)
	require.False(t, g.Acknowledge(3, 2))
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
		g.Release(of(200))
		g.Release(of(uint16(w >> 2 & 0xfff)))
	}
}

// reused returns the view of a member of a lane that has ended, and the area as the lane
// that has it now sees it.
func reused(t *testing.T, slots uint32, head uint64) (former, now GroupLane) {
	t.Helper()
	file := memory(protocol.GroupBytes(slots))
	former, err := NewGroupLane(file, 3, slots)
	require.NoError(t, err)
	require.True(t, former.Reset(1))
	for i := uint64(1); i < head; i++ { // the last one is being claimed
		_, hint, ok := former.Next(head)
		require.True(t, ok)
		require.True(t, former.Take(i, hint, 1, true))
	}
	former.Leave(head)
	now, err = NewGroupLane(file, 3, slots)
	require.NoError(t, err)
	require.True(t, now.Reset(1))
	now, err = NewGroupLane(file, 3, slots)
	require.NoError(t, err)
	return former, now
}

func TestGroupGivesNothingToMembersOfAFormerLane(t *testing.T) {
	for head := uint64(1); head < 20; head++ {
		former, now := reused(t, 8, head)
		for i := uint64(1); i <= head; i++ { // what it may have taken from that lane
			require.False(t, former.Open(i), "message %d of %d", i, head)
			require.False(t, former.Take(i, former.r.Load64(protocol.GroupHint), 2, true))
			require.False(t, former.Acknowledge(i, 1))
			require.True(t, now.Open(i))
			require.False(t, now.Done(i))
		}
		_, _, ok := former.Next(head)
		require.False(t, ok)
		i, _, ok := now.Next(3)
		require.True(t, ok)
		require.EqualValues(t, 1, i)
	}
}

// A member is stopped between its look and each of its two swaps, and goes on when the
// area is another lane's: however many lanes have had it since.
func TestGroupSwapsOfAFormerLanesMemberFail(t *testing.T) {
	const slots, lanes = 4, 50
	file := memory(protocol.GroupBytes(slots))
	view := func() GroupLane {
		g, err := NewGroupLane(file, 0, slots)
		require.NoError(t, err)
		return g
	}
	type stopped struct{ at, old, new uint64 }
	var all []stopped
	for lane := range uint64(lanes) {
		require.True(t, view().Reset(1))
		g := view()
		head := 1 + lane%9
		for i := uint64(1); i <= head; i++ {
			old, number := g.Claim(i), g.number(i)
			hint, _ := g.Hint()
			for _, s := range all { // of former lanes, before and after each claim of this one
				require.False(t, g.r.CAS64(s.at, s.old, s.new))
			}
			all = append(all, stopped{g.claim(i), old, protocol.ClaimWord(number, 7, protocol.ClaimDone)},
				stopped{protocol.GroupHint, hint, protocol.HintWord(number+1, 0)})
			require.True(t, g.Take(i, hint, 1, false))
			for _, s := range all {
				require.False(t, g.r.CAS64(s.at, s.old, s.new))
			}
		}
		g.Leave(head)
		g.Leave(head) // by a successor, once more
	}
}

func TestGroupAreaThatWasNotLeftIsUsedFurtherOn(t *testing.T) {
	file := memory(protocol.GroupBytes(4))
	view := func() GroupLane {
		g, err := NewGroupLane(file, 0, 4)
		require.NoError(t, err)
		return g
	}
	require.True(t, view().Reset(1))
	require.Zero(t, view().base)
	require.True(t, view().Reset(1)) // made ready for a lane that was not listed
	require.EqualValues(t, 9, view().base)
	g := view()
	require.True(t, g.Take(1, 0, 1, false))
	require.True(t, g.Reset(1)) // its file was missing when the lane ended
	require.EqualValues(t, 9+blindJump, view().base)
	g.r.Store64(protocol.GroupNext, mostBase+1) // as liars may bring it about
	require.False(t, view().Reset(1))
	g.r.Store64(protocol.GroupBase, 1<<64-1)
	require.Less(t, view().number(1<<63), uint64(1<<50), "what is packed into a word fits")
}

func of(member uint16) func(uint64, uint16) bool {
	return func(_ uint64, m uint16) bool { return m == member }
}

// What a member changes between the look at a claim and the swap stays as it is, and counts as nothing.
func TestGroupCountsOnlyClaimsThatItHasChanged(t *testing.T) {
	g := newTestGroup(t, 8)
	for i := uint64(1); i <= 2; i++ {
		require.True(t, g.Take(i, 0, 5, true))
		require.True(t, g.Begin(i, 5))
	}
	var changed []uint64
	n := g.ReleaseCalls(func(i uint64, member uint16, state uint8) (uint8, uint16, bool) {
		if i == 1 {
			require.True(t, g.End(1, 5)) // its member is faster
		}
		return protocol.ClaimFree, 1, true
	}, func(i uint64, to uint8, times uint16) {
		require.EqualValues(t, protocol.ClaimFree, to)
		require.EqualValues(t, 1, times)
		changed = append(changed, i)
	})
	require.Equal(t, 1, n)
	require.Equal(t, []uint64{2}, changed)
	_, state := g.Call(1)
	require.Equal(t, CallDone, state)
	require.EqualValues(t, 1, g.BegunBefore(2))
}
