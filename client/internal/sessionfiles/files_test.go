package sessionfiles_test

import (
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client/internal/parttest"
	"github.com/baton-ipc/baton/client/internal/sessionfiles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// mappings counts those of the test's files.
func mappings(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return strings.Count(string(b), "baton-test")
}

func TestPagesAreUnmappedOnceTheyAreGarbage(t *testing.T) {
	w := parttest.New(t)
	hello, fds := w.Hello(1)
	runtime.GC() // what tests before this one have left
	before := mappings(t)
	func() {
		p, err := sessionfiles.Open(hello, fds)
		require.NoError(t, err)
		require.Greater(t, mappings(t), before)
		_, err = p.Exports.Get()
		require.NoError(t, err)
		p.CloseFiles()
	}()
	require.Eventually(t, func() bool {
		runtime.GC()
		return mappings(t) <= before
	}, 90*time.Second, time.Millisecond, "they stay mapped")
}

func TestFilesOfAnotherSizeOrRoleAreRefused(t *testing.T) {
	w := parttest.New(t)
	hello, fds := w.Hello(1)
	fds[1].Close()
	var err error
	fds[1], err = fds[0].Dup() // which is larger
	require.NoError(t, err)
	_, err = sessionfiles.Open(hello, fds)
	require.ErrorIs(t, err, protocol.ErrVersion)
	small, err := sys.CreateMemfd("baton-small", protocol.PageBytes)
	require.NoError(t, err)
	hello, fds = w.Hello(2)
	fds[2].Close()
	fds[2] = small
	_, err = sessionfiles.Open(hello, fds)
	require.ErrorIs(t, err, protocol.ErrProtocol)
	hello, fds = w.Hello(3)
	for _, fd := range fds[1:] {
		fd.Close()
	}
	_, err = sessionfiles.Open(hello, fds[:1])
	require.ErrorIs(t, err, protocol.ErrProtocol)
}

// A session that leaves its slot stays mapped while something of it is used.
func TestPeerThatHasLeftItsSlotIsKnownWhileItIsUsed(t *testing.T) {
	w := parttest.New(t)
	s := w.Session(1)
	hello, fds := w.Hello(2)
	q, err := sessionfiles.NewPeer(2, hello.Serial, fds[1])
	require.NoError(t, err)
	for _, fd := range fds {
		defer fd.Close()
	}
	require.Same(t, q, s.Files.Add(q))
	require.False(t, s.Files.Ended())
	next, others := w.Hello(2)
	for _, fd := range others {
		defer fd.Close()
	}
	require.NotEqual(t, hello.Serial, next.Serial)
	require.True(t, s.Files.Ended())
	require.Same(t, q, s.Files.Known(2, hello.Serial))
	s.Files.Forget(map[uint64]bool{hello.Serial: true})
	require.Same(t, q, s.Files.Known(2, hello.Serial))
	s.Files.Forget(nil)
	require.Nil(t, s.Files.Known(2, hello.Serial))
}
