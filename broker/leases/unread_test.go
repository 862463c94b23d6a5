package leases_test

import (
	"testing"
	"time"

	"github.com/baton-ipc/baton/broker/parttest"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// pickles makes a lease of a pickle for each of n storages of 4096 bytes.
func (w *world) pickles(n int) (leases []uint64) {
	w.t.Helper()
	for range n {
		_, ref := parttest.Grant(w.t, w.m, w.a, 4096)
		reply, err := w.ls.Make(w.a.SessionFile, &protocol.LeaseRequest{Once: true,
			Refs: []protocol.StorageRef{{Index: ref.Index, Serial: ref.Serial, Generation: ref.Generation}}})
		require.NoError(w.t, err)
		leases = append(leases, reply.Lease)
	}
	return leases
}

func all(uint32, uint64) uint64 { return 4096 }

func TestOldPicklesAreGivenUpOldestFirstAsManyAsAreNeeded(t *testing.T) {
	w := newWorld(t)
	w.ls.LimitUnread(1)
	timed := w.make(30, false)
	leases := w.pickles(4)
	n, freed := w.ls.GiveUp(4097, all)
	require.Equal(t, 2, n)
	require.Len(t, freed, 2)
	for i, lease := range leases {
		err := w.ls.Claim(&protocol.LeaseRef{Lease: lease})
		require.Equal(t, i < 2, err != nil, "pickle %d", i)
	}
	require.NoError(t, w.ls.Claim(timed), "a lease for a time is no pickle's")
	require.EqualValues(t, 2, w.ls.Unread().GivenUp)
}

func TestYoungPicklesAndThoseThatWouldFreeNothingAreNotGivenUp(t *testing.T) {
	w := newWorld(t)
	w.pickles(2)
	n, _ := w.ls.GiveUp(1, all)
	require.Zero(t, n)
	require.Equal(t, 2, w.ls.Unread().Waiting)
	require.Zero(t, w.ls.Unread().MayGo)
	w.ls.LimitUnread(1)
	n, _ = w.ls.GiveUp(1, func(uint32, uint64) uint64 { return 0 })
	require.Zero(t, n)
	require.Equal(t, 2, w.ls.Unread().MayGo)
}

func TestAgeOfAPickleIsKnownToTheNextBroker(t *testing.T) {
	w := newWorld(t)
	w.pickles(1)
	oldest := w.ls.Unread().Oldest
	next := w.leases()
	next.Restore(true)
	require.GreaterOrEqual(t, next.Unread().Oldest, oldest)
	next.LimitUnread(time.Hour)
	require.Zero(t, next.Unread().MayGo)
	next.LimitUnread(1)
	require.Equal(t, 1, next.Unread().MayGo)
}

// What is young, old or gone is counted as it changes.
func TestOldPicklesAreCountedAsTheyComeAndGo(t *testing.T) {
	w := newWorld(t)
	w.ls.LimitUnread(time.Hour)
	leases := w.pickles(3)
	waiting := func() [2]int { u := w.ls.Unread(); return [2]int{u.Waiting, u.MayGo} }
	require.Equal(t, [2]int{3, 0}, waiting())
	w.ls.LimitUnread(1)
	require.Equal(t, [2]int{3, 3}, waiting())
	require.NoError(t, w.ls.Claim(&protocol.LeaseRef{Lease: leases[1]}))
	require.Equal(t, [2]int{2, 2}, waiting())
	w.pickles(1)
	require.Equal(t, [2]int{3, 3}, waiting())
	w.ls.LimitUnread(time.Hour)
	require.NoError(t, w.ls.Claim(&protocol.LeaseRef{Lease: leases[0]}))
	require.Equal(t, [2]int{2, 0}, waiting())
	bytes, _, limit := w.ls.Young(all)
	require.EqualValues(t, 2*4096, bytes)
	require.Equal(t, time.Hour, limit)
}
