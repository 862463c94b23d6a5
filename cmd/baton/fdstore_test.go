package main_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/sys"
)

// manager plays a service manager with a descriptor store.
type manager struct {
	p    *place
	path string
	// listener is passed on to each broker; nil: the manager has bound no socket.
	listener *net.UnixListener

	mu     sync.Mutex // guards what follows
	stored map[string]*sys.FD
	ready  int
}

func newManager(p *place) *manager {
	m := &manager{p: p, path: p.file("manager.sock"), stored: map[string]*sys.FD{}}
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.path, Net: "unixgram"})
	require.NoError(p.t, err)
	p.t.Cleanup(func() { l.Close() })
	go func() {
		text, oob := make([]byte, 4096), make([]byte, sys.FDSpace(8))
		for {
			n, on, _, _, err := l.ReadMsgUnix(text, oob)
			if err != nil {
				return
			}
			fds, _ := sys.ReceiveFDs(oob[:on])
			m.told(string(text[:n]), fds)
		}
	}()
	return m
}

func (m *manager) told(text string, fds []*sys.FD) {
	m.mu.Lock()
	defer m.mu.Unlock()
	said := map[string]string{}
	for _, line := range strings.Split(text, "\n") {
		key, value, _ := strings.Cut(line, "=")
		said[key] = value
	}
	name := said["FDNAME"]
	switch {
	case said["READY"] == "1":
		m.ready++
	case said["FDSTORE"] == "1" && len(fds) == 1:
		m.stored[name], fds = fds[0], nil
	case said["FDSTOREREMOVE"] == "1":
		m.stored[name].Close()
		delete(m.stored, name)
	}
	for _, fd := range fds { // a barrier's, too
		fd.Close()
	}
}

func (m *manager) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.stored)
}

// bind listens at the broker's socket, as a socket unit does.
func (m *manager) bind() {
	require.NoError(m.p.t, os.MkdirAll(filepath.Dir(m.p.socket()), 0o700))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: m.p.socket(), Net: "unix"})
	require.NoError(m.p.t, err)
	m.p.t.Cleanup(func() { l.Close() })
	m.listener = l
}

// serve starts a broker with what is stored, and waits until it is ready.
func (m *manager) serve(room int) *running {
	m.p.t.Helper()
	cmd := m.p.command("serve", "--no-nats")
	m.mu.Lock()
	was := m.ready
	var names []string
	for name, fd := range m.stored {
		names = append(names, name)
		f, err := fd.Dup()
		require.NoError(m.p.t, err)
		cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(uintptr(f.Int()), name))
	}
	m.mu.Unlock()
	if m.listener != nil {
		f, err := m.listener.File()
		require.NoError(m.p.t, err)
		names, cmd.ExtraFiles = append(names, "baton.socket"), append(cmd.ExtraFiles, f)
	}
	cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+m.path, fmt.Sprintf("FDSTORE=%d", room))
	if len(names) > 0 {
		cmd.Env = append(cmd.Env, fmt.Sprintf("LISTEN_FDS=%d", len(names)), "LISTEN_FDNAMES="+strings.Join(names, ":"))
	}
	shell, err := exec.LookPath("sh")
	require.NoError(m.p.t, err)
	cmd.Args = append([]string{"sh", "-c", `LISTEN_PID=$$; export LISTEN_PID; exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = shell
	r := m.p.start(cmd)
	for _, f := range cmd.ExtraFiles {
		f.Close()
	}
	m.p.until("the broker is ready", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.ready > was
	})
	return r
}

func TestDescriptorStoreKeepsWhatOnlyTheBrokerHad(t *testing.T) {
	p := newPlace(t)
	m := newManager(p)
	b := m.serve(512)
	file := p.array("a.npy", "uint8", []int64{3}, []byte{7, 8, 9})
	p.must("set", "x", file)
	for range 2 {
		b.signal(syscall.SIGTERM)
		require.Zero(t, b.wait().code)
		require.NotZero(t, m.count(), b.err.String())
		assert.NotContains(t, b.err.String(), "is lost")
		b = m.serve(512)
		p.must("get", "x", "-o", "o.npy")
		want, err := os.ReadFile(file)
		require.NoError(t, err)
		got, err := os.ReadFile(p.file("o.npy"))
		require.NoError(t, err)
		assert.Equal(t, want, got)
		p.until("nothing is stored that is in use", func() bool { return m.count() == 0 })
	}
}

func TestBrokerCountsTheMemoryThatItsEndLoses(t *testing.T) {
	for _, room := range []int{0, 3} {
		t.Run(fmt.Sprint(room), func(t *testing.T) {
			p := newPlace(t)
			m := newManager(p)
			b := m.serve(room)
			p.must("set", "x", p.array("a.npy", "uint8", []int64{3}, []byte{7, 8, 9}))
			b.signal(syscall.SIGTERM)
			r := b.wait()
			require.Zero(t, r.code)
			assert.Contains(t, r.err, "memory that only this broker had is lost")
			assert.Contains(t, r.err, "segments=1")
			m.serve(room)
			p.baton("get", "x", "-o", "o.npy").fails(t, 3, "x", "")
		})
	}
}

func TestBrokerServesAtTheSocketOfAServiceManager(t *testing.T) {
	p := newPlace(t)
	m := newManager(p)
	m.bind()
	require.NoError(t, os.Chmod(p.socket(), 0o660))
	info, err := os.Stat(p.socket())
	require.NoError(t, err)
	b := m.serve(512)
	p.must("set", "x", p.array("a.npy", "uint8", []int64{3}, []byte{7, 8, 9}))
	require.Equal(t, b.cmd.Process.Pid, listener(t, p.socket()), "baton stop waits for that process")
	b.signal(syscall.SIGTERM)
	require.Zero(t, b.wait().code, b.err.String())
	now, err := os.Stat(p.socket())
	require.NoError(t, err, "the file is the manager's")
	assert.True(t, os.SameFile(info, now))
	assert.Equal(t, info.Mode(), now.Mode(), "and so is its mode")

	// A program that connects while no broker is there waits for the next one.
	get := p.start(p.command("get", "x", "-o", "o.npy"))
	b = m.serve(512)
	require.Zero(t, get.wait().code, get.err.String())
	assert.NotContains(t, b.err.String(), "not used")
}

// Once the broker that has it had ended, the manager would start another one at each connection.
func TestSocketOfAServiceManagerIsNotTakenOver(t *testing.T) {
	p := newPlace(t)
	m := newManager(p)
	m.bind()
	b := m.serve(512)
	p.launch("--no-nats", "--replace").wait().fails(t, 1, "a service manager has bound the socket", "restart its unit")
	require.Equal(t, b.cmd.Process.Pid, listener(t, p.socket()))
	p.must("status")
}

// listener is the process that those which connect to a socket see.
func listener(t *testing.T, socket string) int {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	require.NoError(t, err)
	defer c.Close()
	cred, err := sys.PeerCredentials(c)
	require.NoError(t, err)
	return cred.PID
}

func TestBrokerBindsItsSocketWhereThePassedOneIsAnotherOrGone(t *testing.T) {
	p := newPlace(t)
	m := newManager(p)
	m.bind()
	require.NoError(t, os.Remove(p.socket()))
	b := m.serve(0)
	p.must("status")
	p.until("the log says why", func() bool { return strings.Contains(b.err.String(), "does not listen at this broker's socket") })
	b.signal(syscall.SIGTERM)
	require.Zero(t, b.wait().code)
	gone(t, p.socket())
}
