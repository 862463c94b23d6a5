package leases_test

import (
	"log/slog"
	"testing"

	"github.com/baton-ipc/baton/broker/leases"
	"github.com/baton-ipc/baton/broker/memory"
	"github.com/baton-ipc/baton/broker/parttest"
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

type quiet struct{}

func (quiet) Trim()         {}
func (quiet) Collect()      {}
func (quiet) Reclaim() bool { return false }
func (quiet) Room()         {}

// world has leases over a memory and real files, without a broker.
type world struct {
	t       *testing.T
	store   *sessionfiles.Store
	m       *memory.Memory
	ls      *leases.Leases
	a       *memory.Account
	ref     protocol.Ref
	changes int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, store: parttest.Store(t)}
	w.m = parttest.Memory(t, w.store, memory.Limits{})
	w.ls = w.leases()
	w.a = w.m.Open(parttest.SessionFile(t, w.store, 1, "maker"), quiet{})
	_, w.ref = parttest.Grant(t, w.m, w.a, 4096)
	return w
}

func (w *world) leases() *leases.Leases {
	return leases.New(w.store, w.m, parttest.Clock(), slog.New(slog.DiscardHandler), func() { w.changes++ })
}

func (w *world) make(seconds float64, once bool) *protocol.LeaseRef {
	w.t.Helper()
	r := &protocol.LeaseRequest{Once: once, Refs: []protocol.StorageRef{{Index: w.ref.Index, Serial: w.ref.Serial, Generation: w.ref.Generation}}}
	if seconds > 0 {
		r.Seconds = &seconds
	}
	reply, err := w.ls.Make(w.a.SessionFile, r)
	require.NoError(w.t, err)
	return &protocol.LeaseRef{Lease: reply.Lease}
}

func (w *world) held() int { return int(w.store.Own.Refcounts.Count(w.ref.Index)) }

func TestLeaseHoldsUntilItIsClaimedOnceOrReleasedByItsMaker(t *testing.T) {
	w := newWorld(t)
	once, many := w.make(30, true), w.make(30, false)
	require.Equal(t, 2, w.held())
	require.NoError(t, w.ls.Claim(once))
	require.ErrorIs(t, w.ls.Claim(once), protocol.ErrExpired)
	require.NoError(t, w.ls.Claim(many))
	require.Equal(t, 1, w.held())
	require.ErrorIs(t, w.ls.Release(&sessionfiles.SessionFile{}, many), protocol.ErrPermissionDenied)
	require.NoError(t, w.ls.Release(w.a.SessionFile, many))
	require.Zero(t, w.held())
	require.Equal(t, 4, w.changes)
}

func TestLeaseWithoutATimeEndsWithItsSession(t *testing.T) {
	w := newWorld(t)
	w.make(30, false)
	w.make(0, false)
	pickled := w.make(0, true)
	w.ls.EndOf(w.a.SessionFile)
	require.Equal(t, 2, w.ls.Count(), "one has its time, a pickled handle gets a while to arrive")
	require.NoError(t, w.ls.Claim(pickled))
	require.Equal(t, 1, w.held())
}

func TestRestoredLeasesAreThoseWhoseStoragesAreKnown(t *testing.T) {
	w := newWorld(t)
	kept := w.make(30, false)
	next := w.leases()
	next.Restore(true)
	target := map[uint32]uint64{}
	next.Recount(target)
	require.Equal(t, map[uint32]uint64{w.ref.Index: 1}, target)
	rows, more := next.Rows(0, 10, func(maker string) bool { return maker == "maker" })
	require.Len(t, rows, 1)
	require.Zero(t, more)
	require.NoError(t, next.Release(w.a.SessionFile, kept))

	gone := w.leases()
	w.make(30, false)
	gone.Restore(false)
	require.Zero(t, gone.Count(), "after another boot no process has the handle")
}

func TestRestoredClaimsAreTheLastOnes(t *testing.T) {
	w := newWorld(t)
	made := func(ls *leases.Leases, lease uint64) bool {
		before := ls.Count()
		_, err := ls.Make(w.a.SessionFile, &protocol.LeaseRequest{Lease: lease, Once: true,
			Refs: []protocol.StorageRef{{Index: w.ref.Index, Serial: w.ref.Serial, Generation: w.ref.Generation}}})
		require.NoError(t, err)
		return ls.Count() > before
	}
	for lease := range uint64(record.MaxClaims + 1) {
		require.ErrorIs(t, w.ls.Claim(&protocol.LeaseRef{Lease: lease + 1}), protocol.ErrExpired)
	}
	next := w.leases()
	next.Restore(true)
	for range 2 {
		require.False(t, made(next, 2), "a lease is over however often it is asked for")
		require.False(t, made(next, record.MaxClaims+1))
	}
	require.True(t, made(next, 1), "the oldest has made room")
	require.ErrorIs(t, next.Claim(&protocol.LeaseRef{Lease: record.MaxClaims + 2}), protocol.ErrExpired)
	require.True(t, made(next, 2), "as it has after a restart")

	other := w.leases()
	other.Restore(false)
	require.True(t, made(other, 3), "after another boot no process has the handle")
	require.Empty(t, w.store.Record.Claims())
}
