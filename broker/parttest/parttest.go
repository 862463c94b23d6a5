// Package parttest makes parts of the broker over real files, without sockets,
// processes or a broker, for the tests of each part.
//
// Ownership: everything is closed when the test ends. One goroutine uses it: there
// is no mutex, and no alarm runs. Nothing else than tests imports it, so there is no
// hostile peer and no death.
package parttest

import (
	"fmt"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/baton-ipc/baton/broker/alarm"
	"github.com/baton-ipc/baton/broker/memory"
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// Log is nowhere.
var Log = slog.New(slog.DiscardHandler)

// Clock makes alarms that do not run.
func Clock() *alarm.Clock {
	c := alarm.NewClock(&sync.Mutex{})
	c.Stop()
	return c
}

// Store makes a store of memfds with a broker file and the broker's own session file.
func Store(t testing.TB) *sessionfiles.Store {
	t.Helper()
	s := sessionfiles.NewStore(Log)
	s.Files, s.Instance = sessionfiles.Memfds{}, [16]byte{1}
	t.Cleanup(s.Close)
	m, err := s.NewFile(protocol.RoleBroker, protocol.RestoreBroker, 0, protocol.BrokerSlot, protocol.BrokerBytes)
	require.NoError(t, err)
	s.UseBrokerFile(m)
	require.NoError(t, s.ReserveHead())
	require.NoError(t, s.MakeBells())
	s.Own, err = s.Make(protocol.BrokerSlot, s.Record.NextSerial(), record.Holder{})
	require.NoError(t, err)
	return s
}

// Blocks returns how much room a file takes, in blocks of 512 bytes.
func Blocks(t testing.TB, f *sys.FD) int64 {
	t.Helper()
	fd, err := f.Acquire()
	require.NoError(t, err)
	defer f.Release()
	info, err := os.Stat(fmt.Sprintf("/proc/self/fd/%d", fd))
	require.NoError(t, err)
	return info.Sys().(*syscall.Stat_t).Blocks
}

// SessionFile makes the file of a session in a slot.
func SessionFile(t testing.TB, s *sessionfiles.Store, slot uint32, name string) *sessionfiles.SessionFile {
	t.Helper()
	require.NoError(t, s.ReserveSession(slot, int(slot)+1))
	p, err := s.Make(slot, s.Record.NextSerial(), record.Holder{})
	require.NoError(t, err)
	p.SetName(name)
	return p
}

// Memory makes a memory over a store, on a machine with room for everything. A limit
// of 0 for all segments is 1 GiB.
func Memory(t testing.TB, s *sessionfiles.Store, limits memory.Limits) *memory.Memory {
	t.Helper()
	if limits.Memory == 0 {
		limits.Memory = 1 << 30
	}
	limits.ReadMemory = func() (sys.Memory, error) { return sys.Memory{Total: 1 << 40, Available: 1 << 40}, nil }
	m := memory.New(limits, s, Clock(), Log)
	t.Cleanup(m.Close)
	m.UseRecord()
	return m
}

// Grant has a session allocate a grant of one chunk as one storage, which its refcounts
// counts once.
func Grant(t testing.TB, m *memory.Memory, a *memory.Account, bytes uint64) (protocol.GrantReply, protocol.Ref) {
	t.Helper()
	g, fds, err := m.Grant(a, &protocol.Grant{Bytes: bytes, Chunks: 1}, true)
	require.NoError(t, err)
	for _, fd := range fds {
		require.NoError(t, fd.Close())
	}
	require.NoError(t, a.ReserveEntries(g.Chunks[0].Chunk))
	index := g.Chunks[0].Chunk * protocol.ChunkIndices
	a.Entries.Describe(index, 0, g.Bytes, 0)
	a.Entries.SetGeneration(index, 1)
	a.Entries.Share(index)
	require.NoError(t, a.Refcounts.Take(index))
	return g, protocol.Ref{Serial: g.Chunks[0].Serial, Generation: 1, Index: index}
}

// Dup duplicates a descriptor that is handed over.
func Dup(t testing.TB, fd *sys.FD) *sys.FD {
	t.Helper()
	d, err := fd.Dup()
	require.NoError(t, err)
	return d
}
