package broker_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/internal/shortdir"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

func TestHelloGivesFilesWithHeads(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "a")
	require.Equal(t, b.ID(), p.hello.Instance)
	require.Equal(t, "test", p.hello.Version)
	require.NotZero(t, p.hello.Slot)
	for _, c := range []struct {
		region interface {
			Load32(uint64) uint32
			Load64(uint64) uint64
		}
		role         uint32
		slot         uint32
		serial, size uint64
	}{
		{p.broker, protocol.RoleBroker, 0, 0, protocol.BrokerBytes},
		{p.file, protocol.RoleSession, p.hello.Slot, p.hello.Serial, protocol.SessionBytes},
		{p.bellFile, protocol.RoleBell, protocol.BrokerSlot, 0, protocol.BellBytes},
	} {
		require.EqualValues(t, protocol.Magic, c.region.Load64(protocol.HeadMagic))
		require.EqualValues(t, protocol.Layout, c.region.Load32(protocol.HeadLayout))
		require.Equal(t, c.role, c.region.Load32(protocol.HeadRole))
		require.Equal(t, c.slot, c.region.Load32(protocol.HeadSlot))
		require.Equal(t, c.serial, c.region.Load64(protocol.HeadSerial))
		require.Equal(t, c.size, c.region.Load64(protocol.HeadBytes))
	}
	at := uint64(protocol.BrokerSessions) + uint64(p.hello.Slot)*protocol.SessionRecordSize
	require.Equal(t, p.hello.Serial, p.broker.Load64(at+protocol.SessionSerial))
	require.EqualValues(t, protocol.SessionLive, p.broker.Load32(at+protocol.SessionState))
	require.EqualValues(t, os.Getpid(), p.broker.Load32(at+protocol.SessionPID))
	start, err := sys.StartTime(os.Getpid())
	require.NoError(t, err)
	require.Equal(t, start, p.broker.Load64(at+protocol.SessionStartTime))
	require.Equal(t, "a\x00", string(p.broker.Bytes(at+protocol.SessionName, 2)))
}

func TestFilesOfOthersCannotBeMappedForWriting(t *testing.T) {
	b := serve(t, nil)
	p, q := connect(t, b.socket, "a"), connect(t, b.socket, "b")
	fds, err := p.call(protocol.OpPeer, peerOf(q.hello.Slot, q.hello.Serial), nil)
	require.NoError(t, err)
	defer wire.CloseAll(fds)
	for name, fd := range map[string]*sys.FD{"broker file": p.fds[0], "broker's session": p.fds[3], "peer's session": fds[0]} {
		_, err := sys.Map(fd, 4096, true)
		require.Error(t, err, name)
		require.True(t, fd.Sealed(), name)
	}
	for name, fd := range map[string]*sys.FD{"own session": p.fds[1], "bells": p.fds[2]} {
		m, err := sys.Map(fd, 4096, true)
		require.NoError(t, err, name)
		sys.Unmap(m)
	}
}

func TestClientNameIsMadePrintable(t *testing.T) {
	b := serve(t, nil)
	h := helloOf("evil\x1b[31m\nname" + strings.Repeat("é", 100))
	p := connectAs(t, b.socket, h)
	rows := list[struct{ Name, Language string }](p, "sessions", "")
	require.Len(t, rows, 1)
	require.True(t, strings.HasPrefix(rows[0].Name, "evil[31mnameé"), rows[0].Name)
	require.Less(t, len(rows[0].Name), protocol.SessionNameBytes)
	require.Equal(t, "go", rows[0].Language)
}

func TestSecondBrokerConflictsNamingTheFirst(t *testing.T) {
	b := serve(t, nil)
	dir := filepath.Dir(b.socket)
	_, err := broker.New(context.Background(), broker.Config{Dir: dir, Memory: 1 << 20})
	require.ErrorIs(t, err, protocol.ErrConflict)
	require.Contains(t, err.Error(), "pid")
	require.Equal(t, os.Getpid(), err.(*protocol.Error).Detail["pid"])
	// The same socket from another directory.
	_, err = broker.New(context.Background(), broker.Config{Dir: filepath.Join(shortdir.New(t), "other"), Socket: b.socket, Memory: 1 << 20})
	require.ErrorIs(t, err, protocol.ErrConflict)
	connect(t, b.socket, "a")
}

func TestBadRuntimeDirectoriesAreRefused(t *testing.T) {
	open := filepath.Join(shortdir.New(t), "open")
	require.NoError(t, os.Mkdir(open, 0o700))
	require.NoError(t, os.Chmod(open, 0o777))
	_, err := broker.New(context.Background(), broker.Config{Dir: open})
	require.ErrorIs(t, err, protocol.ErrPermissionDenied)
	link := filepath.Join(shortdir.New(t), "link")
	require.NoError(t, os.Symlink(shortdir.New(t), link))
	_, err = broker.New(context.Background(), broker.Config{Dir: link})
	require.ErrorIs(t, err, protocol.ErrPermissionDenied)
	_, err = broker.New(context.Background(), broker.Config{Dir: "/proc"}) // private, and no process can make files there
	require.ErrorIs(t, err, protocol.ErrPermissionDenied)
	_, err = broker.New(context.Background(), broker.Config{})
	require.ErrorIs(t, err, protocol.ErrInvalid)
	_, err = broker.New(context.Background(), broker.Config{Dir: filepath.Join(t.TempDir(), strings.Repeat("x", 120))})
	require.ErrorIs(t, err, protocol.ErrInvalid)
	require.Contains(t, err.Error(), "107")
	dir := shortdir.New(t)
	require.NoError(t, os.Chmod(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "broker.sock"), nil, 0o600))
	_, err = broker.New(context.Background(), broker.Config{Dir: dir})
	require.ErrorIs(t, err, protocol.ErrConflict, "a file that is no socket is not removed")
}

func TestMemoryDirectoryThatCannotBeMadeIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, dir := range []string{file, filepath.Join(file, "below")} {
		_, err := broker.New(context.Background(), broker.Config{Dir: filepath.Join(t.TempDir(), "run"), Memory: 1 << 28, MemoryDir: dir})
		require.ErrorIs(t, err, protocol.ErrInvalid)
		require.Contains(t, err.Error(), file)
		require.Contains(t, err.(*protocol.Error).Remedy, "--memory-dir")
	}
}

func TestRuntimeDirectoryIsPrivateAndCleanAfterwards(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "a")
	dir := filepath.Dir(b.socket)
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.EqualValues(t, 0o700, info.Mode().Perm())
	info, err = os.Stat(b.socket)
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode().Perm())
	state, err := os.ReadFile(filepath.Join(dir, "state.json"))
	require.NoError(t, err)
	require.Contains(t, string(state), b.ID())
	b.Stop(false)
	require.NoError(t, b.ended())
	e, _ := p.read()
	require.Equal(t, protocol.EventStopped, e.Event)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "the lock file alone stays")
	// And the directory can be used again.
	again, err := broker.New(context.Background(), broker.Config{Dir: dir, Memory: 1 << 20})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.NoError(t, again.Serve(ctx))
}

func TestSocketOfADeadBrokerIsReplaced(t *testing.T) {
	dir := shortdir.New(t)
	require.NoError(t, os.Chmod(dir, 0o700))
	b := serve(t, func(c *broker.Config) { c.Dir = dir })
	require.NoError(t, os.Rename(b.socket, b.socket+".x"))
	require.NoError(t, b.stop())
	require.NoError(t, os.Rename(b.socket+".x", b.socket))
	b = serve(t, func(c *broker.Config) { c.Dir = dir })
	connect(t, b.socket, "a")
}

func TestIdleBrokerEnds(t *testing.T) {
	cfg := broker.Config{Dir: filepath.Join(shortdir.New(t), "run"), Memory: 1 << 20, IdleExit: 20 * time.Millisecond}
	b, err := broker.New(context.Background(), cfg)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- b.Serve(context.Background()) }()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(patience):
		t.Fatal("an idle broker goes on")
	}
}

func TestBrokerWithALeaseIsNotIdle(t *testing.T) {
	cfg := broker.Config{Dir: filepath.Join(shortdir.New(t), "run"), Memory: 1 << 20, IdleExit: 4 * time.Second}
	b, err := broker.New(context.Background(), cfg)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- b.Serve(context.Background()) }()
	p := connect(t, b.Socket(), "a")
	s := p.alloc(4096)
	leased := time.Now()
	var r protocol.LeaseReply
	p.must(protocol.OpLease, protocol.LeaseRequest{Refs: []protocol.StorageRef{s.ref()}, Seconds: ptr(1.0)}, &r)
	p.refcounts.Drop(s.Index)
	p.must(protocol.OpBye, struct{}{}, nil)
	select {
	case err := <-ended:
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(leased), 5*time.Second, "it waits for the lease, then for IdleExit")
	case <-time.After(patience):
		t.Fatal("an idle broker goes on")
	}
}
