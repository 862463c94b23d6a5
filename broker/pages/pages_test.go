package pages_test

import (
	"log/slog"
	"testing"

	"github.com/baton-ipc/baton/broker/pages"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// newStore makes a store with a broker file and the broker's own pages, as memfds.
func newStore(t *testing.T) *pages.Store {
	t.Helper()
	s := pages.NewStore(slog.New(slog.DiscardHandler))
	s.Files, s.Instance = pages.Memfds{}, [16]byte{1}
	t.Cleanup(s.Close)
	m, err := s.NewFile(protocol.RoleBroker, protocol.RestoreBroker, 0, protocol.BrokerSlot, protocol.BrokerBytes)
	require.NoError(t, err)
	s.UseBrokerFile(m)
	require.NoError(t, s.ReserveTables())
	s.Own, err = s.Make(protocol.BrokerSlot, s.Record.NextSerial())
	require.NoError(t, err)
	return s
}

func TestPagesOfADeadSessionStayWhileTheyAreUsed(t *testing.T) {
	s := newStore(t)
	p, err := s.Make(7, s.Record.NextSerial())
	require.NoError(t, err)
	p.Name = "dead"
	p.Use()
	s.KeepRemains(p)
	p.Dead = true
	s.DropRemains(p)
	found, err := s.Find(7, p.Serial)
	require.NoError(t, err)
	require.Same(t, p, found)
	require.Equal(t, p.Serial, s.Record.Remains(0).Load().Serial, "a successor finds them")

	p.Unuse()
	s.DropRemains(p)
	_, err = s.Find(7, p.Serial)
	require.ErrorIs(t, err, protocol.ErrExpired)
	require.Zero(t, s.Record.Remains(0).Load().Serial)
	require.False(t, p.There())
}

func TestLentSessionFileCannotBeWritten(t *testing.T) {
	s := newStore(t)
	p, err := s.Make(3, s.Record.NextSerial())
	require.NoError(t, err)
	fds, err := s.Lend(&protocol.Peer{Slot: 3, Serial: p.Serial})
	require.NoError(t, err)
	require.Len(t, fds, 2)
	for _, fd := range fds {
		defer fd.Close()
	}
	_, err = sys.Map(fds[0], protocol.PageBytes, true)
	require.Error(t, err)
}

// TestRestoredPages hands a store's files to another one, as a successor gets them.
func TestRestoredPagesAreThoseThatTheFormerBrokerNoted(t *testing.T) {
	s := newStore(t)
	p, err := s.Make(5, s.Record.NextSerial())
	require.NoError(t, err)
	require.NoError(t, p.ReserveRow(0))
	require.NoError(t, p.Row.Take(9))
	other, err := s.Make(6, s.Record.NextSerial())
	require.NoError(t, err)

	next := pages.NewStore(slog.New(slog.DiscardHandler))
	next.Files, next.Instance = s.Files, s.Instance
	t.Cleanup(next.Close)
	session := pages.Key{Role: protocol.RestoreSession, Serial: p.Serial}
	next.Missing = map[pages.Key]uint64{session: p.Session.Inode}
	wrong := func(pages.Key) *sys.FD { return dup(t, other.Session.FD) }
	q := next.Restore(wrong, 5, p.Serial, "back", 1)
	require.False(t, q.There(), "another session's file is refused")
	require.Zero(t, q.Row.Count(9), "what is missing reads as zeros")

	require.True(t, next.Install(q, session, dup(t, p.Session.FD)))
	require.True(t, q.There())
	require.EqualValues(t, 1, q.Row.Count(9))
	require.Empty(t, next.Missing)
}

func dup(t *testing.T, fd *sys.FD) *sys.FD {
	t.Helper()
	d, err := fd.Dup()
	require.NoError(t, err)
	return d
}
