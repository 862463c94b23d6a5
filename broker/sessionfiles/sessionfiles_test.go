package sessionfiles_test

import (
	"testing"

	"github.com/baton-ipc/baton/broker/parttest"
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

func TestFileOfADeadSessionStaysWhileItIsUsed(t *testing.T) {
	s := parttest.Store(t)
	p, err := s.Make(7, s.Record.NextSerial(), record.Holder{})
	require.NoError(t, err)
	p.Name = "dead"
	p.Use()
	s.KeepRemains(p)
	p.Dead = true
	s.DropRemains(p)
	require.Same(t, p, s.BySerial(p.Serial))
	require.Equal(t, p.Serial, s.Record.Remains(0).Load().Serial, "a successor finds them")

	p.Unuse()
	s.DropRemains(p)
	require.Nil(t, s.BySerial(p.Serial))
	require.Zero(t, s.Record.Remains(0).Load().Serial)
	require.False(t, p.There())
}

// The reaper asks for the same entries as long as something of a dead session is held.
func TestEntriesThatWereReservedAreNotAskedForAgain(t *testing.T) {
	s := parttest.Store(t)
	p, err := s.Make(3, s.Record.NextSerial(), record.Holder{})
	require.NoError(t, err)
	require.NoError(t, p.ReserveEntries(2))
	require.NoError(t, p.File.FD.Close())
	require.NoError(t, p.ReserveEntries(2))
	require.Error(t, p.ReserveEntries(3))
	require.Error(t, p.ReserveEntries(3), "what failed is asked for again")
}

func TestLentSessionFileCannotBeWritten(t *testing.T) {
	s := parttest.Store(t)
	p, err := s.Make(3, s.Record.NextSerial(), record.Holder{})
	require.NoError(t, err)
	asked := &protocol.Peer{Sessions: []protocol.PeerSession{{Slot: 4, Serial: p.Serial}, {Slot: 3, Serial: p.Serial}}}
	reply, fds, err := s.Lend(asked, func(err error) error { return err }, func(*sessionfiles.SessionFile) bool { return false })
	require.NoError(t, err)
	require.Len(t, fds, 1)
	require.ErrorIs(t, reply.Sessions[0].Error, protocol.ErrExpired, "another session has the slot")
	require.Nil(t, reply.Sessions[1].Error)
	for _, fd := range fds {
		defer fd.Close()
	}
	_, err = sys.Map(fds[0], protocol.PageBytes, true)
	require.Error(t, err)
}

func TestFileThatIsLentOftenIsOpenedOnce(t *testing.T) {
	s := parttest.Store(t)
	room := 1
	s.MayKeep = func(n int) bool { return n <= room }
	lend := func(p *sessionfiles.SessionFile) *sys.FD {
		fd, err := s.LendForReading(sessionfiles.Key{Role: protocol.RestoreSession, Serial: p.Serial}, p.File.FD)
		require.NoError(t, err)
		t.Cleanup(func() { fd.Close() })
		_, id, err := fd.Stat()
		require.NoError(t, err)
		require.Equal(t, p.File.Inode, id.Ino)
		_, err = sys.Map(fd, protocol.PageBytes, true)
		require.Error(t, err, "it can be read alone")
		return fd
	}
	one, err := s.Make(3, s.Record.NextSerial(), record.Holder{})
	require.NoError(t, err)
	other, err := s.Make(4, s.Record.NextSerial(), record.Holder{})
	require.NoError(t, err)
	lend(one)
	require.Zero(t, s.LentOpen(), "no other session may ask")
	for range 5 {
		lend(one)
		lend(other)
	}
	require.Equal(t, 1, s.LentOpen(), "there is room for one")

	s.CloseLent()
	require.Zero(t, s.LentOpen())
	lend(one)
	room = 2
	for range 3 {
		lend(one)
		lend(other)
	}
	require.Equal(t, 2, s.LentOpen())
	one.Dead = true
	s.DropRemains(one)
	require.Equal(t, 1, s.LentOpen(), "a file that is over is let go")
}

func TestRestoredFilesAreThoseThatTheFormerBrokerNoted(t *testing.T) {
	s := parttest.Store(t)
	p, err := s.Make(5, s.Record.NextSerial(), record.Holder{})
	require.NoError(t, err)
	require.NoError(t, p.ReserveRefcounts(0))
	require.NoError(t, p.Refcounts.Take(9))
	other, err := s.Make(6, s.Record.NextSerial(), record.Holder{})
	require.NoError(t, err)

	next := sessionfiles.NewStore(parttest.Log)
	next.Files, next.Instance = s.Files, s.Instance
	t.Cleanup(next.Close)
	session := sessionfiles.Key{Role: protocol.RestoreSession, Serial: p.Serial}
	bells := sessionfiles.Key{Role: protocol.RestoreBell}
	lent, err := s.LendBells()
	require.NoError(t, err)
	next.Missing = map[sessionfiles.Key]uint64{bells: s.Record.BellsFile(), session: p.File.Inode}
	require.True(t, next.RestoreBells(func(k sessionfiles.Key) *sys.FD { return map[sessionfiles.Key]*sys.FD{bells: lent}[k] }))
	wrong := func(sessionfiles.Key) *sys.FD { return parttest.Dup(t, other.File.FD) }
	q := next.Restore(wrong, 5, p.Serial, "back", 1)
	require.False(t, q.There(), "another session's file is refused")
	require.Zero(t, q.Refcounts.Count(9), "what is missing reads as zeros")

	require.True(t, next.Install(q, session, parttest.Dup(t, p.File.FD)))
	require.True(t, q.There())
	require.EqualValues(t, 1, q.Refcounts.Count(9))
	require.Empty(t, next.Missing)
}

// A client may look late at a record that is free: in a file system that has become full
// a hole there would end it by SIGBUS. A memfd takes its pages from the machine, and has
// them anew.
func TestRecordThatIsFreeKeepsItsPagesInFiles(t *testing.T) {
	for name, files := range map[string]sessionfiles.Maker{"memfds": sessionfiles.Memfds{}, "files": sessionfiles.Directory{Path: t.TempDir()}} {
		s := sessionfiles.NewStore(parttest.Log)
		s.Files, s.Instance = files, [16]byte{1}
		t.Cleanup(s.Close)
		f, err := s.NewFile(protocol.RoleBroker, protocol.RestoreBroker, 0, protocol.BrokerSlot, protocol.BrokerBytes)
		require.NoError(t, err)
		s.UseBrokerFile(f)
		require.NoError(t, s.MakeBells())
		s.Own, err = s.Make(protocol.BrokerSlot, s.Record.NextSerial(), record.Holder{})
		require.NoError(t, err)
		before := parttest.Blocks(t, f.FD)
		require.NoError(t, s.Reserve(record.TopicPlace(9)))
		reserved := parttest.Blocks(t, f.FD)
		require.GreaterOrEqual(t, reserved-before, int64(protocol.TopicRecordSize/512))
		s.GiveBack(record.TopicPlace(9))
		if name == "files" {
			require.Equal(t, reserved, parttest.Blocks(t, f.FD))
		} else {
			require.Equal(t, before, parttest.Blocks(t, f.FD))
		}
		require.NoError(t, s.Reserve(record.TopicPlace(9)))
		require.Equal(t, reserved, parttest.Blocks(t, f.FD))
	}
}
