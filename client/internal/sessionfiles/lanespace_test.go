package sessionfiles

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

func ownFile(t *testing.T) (*sys.FD, shm.Region) {
	t.Helper()
	fd, err := sys.CreateMemfd("baton-test", protocol.SessionBytes)
	require.NoError(t, err)
	t.Cleanup(func() { fd.Close() })
	file, err := NewMapping(fd, protocol.SessionBytes, true, nil)
	require.NoError(t, err)
	t.Cleanup(func() { runtime.KeepAlive(file) })
	return fd, file.Region
}

func TestSpaceForLanesJoins(t *testing.T) {
	l := newLaneSpace(ownFile(t))
	const all = protocol.SessionBytes - protocol.SessionLanes
	for pages := uint64(1); pages < 200; pages++ {
		bytes := pages * protocol.PageBytes
		first, err := l.Take(bytes)
		require.NoError(t, err)
		second, err := l.Take(bytes)
		require.NoError(t, err)
		l.file.Store64(first, 7)
		l.Give(first)
		l.Give(second)
	}
	at, err := l.Take(2 * protocol.PageBytes)
	require.NoError(t, err)
	require.Zero(t, l.file.Load64(at))
	l.Give(at)
	require.True(t, l.free.Has(all))
}

// A lane that was left keeps its place until the broker lists it no more.
func TestPlaceOfALeftLaneComesBackWhenItIsListedNoMore(t *testing.T) {
	l := newLaneSpace(ownFile(t))
	at, err := l.Take(protocol.PageBytes)
	require.NoError(t, err)
	of := LeftLane{topic: 1, number: 2, incarnation: 3}
	l.leave(at, of)
	l.Reconcile(func(asked LeftLane) bool { require.Equal(t, of, asked); return true })
	other, err := l.Take(protocol.PageBytes)
	require.NoError(t, err)
	require.NotEqual(t, at, other)
	l.Reconcile(func(LeftLane) bool { return false })
	again, err := l.Take(protocol.PageBytes)
	require.NoError(t, err)
	require.Equal(t, at, again)
}
