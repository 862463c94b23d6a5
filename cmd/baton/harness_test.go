package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/shortdir"
)

// binary is the program under test, built by TestMain as it is released.
var binary string

// patience bounds what would otherwise hang; nothing is expected to take long.
const patience = 60 * time.Second

func TestMain(m *testing.M) {
	if os.Getenv(roleMember) != "" {
		beMember()
		return
	}
	if os.Getenv(roleProvider) != "" {
		provideUntilKilled()
	}
	if what := os.Getenv(roleHolder); what != "" {
		holdUntilKilled(what)
	}
	if what := os.Getenv(roleForker); what != "" {
		forkUntilKilled(what)
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("/tmp", "baton") // that of a user may be closed to others
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		if err := os.Chmod(dir, 0o755); err != nil { // one test runs it as another user
			panic(err)
		}
		binary = filepath.Join(dir, "baton")
		build := exec.Command("go", "build", "-trimpath", "-ldflags", "-X main.version=1.2.3-test", "-o", binary, ".")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			os.Stderr.Write(out)
			return 1
		}
		if err := os.Chmod(binary, 0o755); err != nil { // whatever the umask
			panic(err)
		}
		return m.Run()
	}())
}

// place is a runtime directory of a test's own, and what runs in it.
type place struct {
	t   *testing.T
	dir string
	env []string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	dir := shortdir.New(t)
	p := &place{t: t, dir: dir, env: []string{"XDG_RUNTIME_DIR=" + dir, "XDG_CONFIG_HOME=" + dir, "HOME=" + dir, "TMPDIR=" + dir, "LANG=C.UTF-8",
		"PATH=" + os.Getenv("PATH")}}
	return p
}

// in is the place for a subtest.
func (p *place) in(t *testing.T) *place { return &place{t: t, dir: p.dir, env: p.env} }

func (p *place) socket() string           { return filepath.Join(p.dir, "baton", "broker.sock") }
func (p *place) file(name string) string  { return filepath.Join(p.dir, name) }
func (p *place) setenv(key, value string) { p.env = append(p.env, key+"="+value) }

func (p *place) write(name, content string) string {
	p.t.Helper()
	path := p.file(name)
	require.NoError(p.t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func (p *place) command(args ...string) *exec.Cmd {
	cmd := exec.Command(binary, args...)
	cmd.Env = p.env
	cmd.Dir = p.dir
	return cmd
}

// result is how a command ended and what it printed.
type result struct {
	out, err string
	code     int
}

// baton runs a command to its end.
func (p *place) baton(args ...string) result {
	p.t.Helper()
	return p.batonWith(nil, args...)
}

func (p *place) batonWith(stdin io.Reader, args ...string) result {
	p.t.Helper()
	cmd := p.command(args...)
	cmd.Stdin = stdin
	r := p.start(cmd)
	return r.wait()
}

// must is baton for commands that must succeed; it returns standard output.
func (p *place) must(args ...string) string {
	p.t.Helper()
	r := p.baton(args...)
	require.Zero(p.t, r.code, "baton %s\n%s%s", strings.Join(args, " "), r.out, r.err)
	return r.out
}

// json runs a command with --json and decodes what it prints.
func (p *place) json(to any, args ...string) {
	p.t.Helper()
	out := p.must(append(args, "--json")...)
	require.NoError(p.t, json.Unmarshal([]byte(out), to), out)
}

// running is a command that has not ended, as far as is known.
type running struct {
	p        *place
	cmd      *exec.Cmd
	out, err lockedBuffer
	ended    chan struct{}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(data)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start starts a command; whatever still runs at the test's end is killed.
func (p *place) start(cmd *exec.Cmd) *running {
	p.t.Helper()
	r := &running{p: p, cmd: cmd, ended: make(chan struct{})}
	if cmd.Stdout == nil {
		cmd.Stdout = &r.out
	}
	if cmd.Stderr == nil {
		cmd.Stderr = &r.err
	}
	require.NoError(p.t, cmd.Start())
	go func() {
		cmd.Wait()
		close(r.ended)
	}()
	p.t.Cleanup(func() {
		cmd.Process.Kill()
		<-r.ended
	})
	return r
}

func (r *running) wait() result {
	r.p.t.Helper()
	select {
	case <-r.ended:
	case <-time.After(patience):
		r.cmd.Process.Signal(syscall.SIGQUIT) // prints where it hangs
		select {
		case <-r.ended:
		case <-time.After(patience): // it has no place to print to
			r.cmd.Process.Kill()
			<-r.ended
		}
		r.p.t.Fatalf("%v does not end\n%s", r.cmd.Args, r.err.String())
	}
	code := r.cmd.ProcessState.ExitCode()
	if w, ok := r.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		code = -int(w.Signal())
	}
	return result{r.out.String(), r.err.String(), code}
}

func (r *running) signal(s syscall.Signal) {
	r.p.t.Helper()
	require.NoError(r.p.t, r.cmd.Process.Signal(s))
}

// server is a broker started by `baton serve`, that tells how it is as it would
// tell systemd.
type server struct {
	*running
	notices chan string // closed when it has ended and told no more
}

// launched counts the servers of this run.
var launched atomic.Int64

// noMore is what the test itself writes after a server's last notice.
const noMore = "NO MORE"

// launch starts `baton serve` without waiting for it.
func (p *place) launch(args ...string) *server {
	p.t.Helper()
	return p.launchAs(p.command(append([]string{"serve"}, args...)...))
}

// serveIn is serveNATS in a shell that has carried a command out before.
func (p *place) serveIn(before string, args ...string) *server {
	p.t.Helper()
	cmd := p.command()
	cmd.Path, cmd.Args = "/bin/sh", append([]string{"sh", "-c", before + ` && exec "$0" serve "$@"`, binary}, args...)
	s := p.launchAs(cmd)
	s.notice("READY=1")
	return s
}

func (p *place) launchAs(cmd *exec.Cmd) *server {
	p.t.Helper()
	// Its own: a broker dials it for each notice, and another may be started beside it.
	path := p.file(fmt.Sprintf("notify-%d.sock", launched.Add(1)))
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(p.t, err)
	p.t.Cleanup(func() { l.Close() })
	s := &server{notices: make(chan string, 1000)}
	go func() {
		defer close(s.notices)
		for b := make([]byte, 4096); ; {
			n, err := l.Read(b)
			if err != nil || string(b[:n]) == noMore {
				return
			}
			s.notices <- string(b[:n])
		}
	}()
	last, err := net.Dial("unixgram", path)
	require.NoError(p.t, err)
	cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+path)
	s.running = p.start(cmd)
	go func() { // after all that it told
		defer last.Close()
		<-s.ended
		last.Write([]byte(noMore))
	}()
	return s
}

// serve starts a broker and waits until it is ready. It runs without NATS, which
// few tests are about.
func (p *place) serve(args ...string) *server {
	p.t.Helper()
	return p.serveNATS(append([]string{"--no-nats"}, args...)...)
}

func (p *place) serveNATS(args ...string) *server {
	p.t.Helper()
	s := p.launch(args...)
	s.notice("READY=1")
	return s
}

// logs waits until the server's log has a text: what it writes takes a moment to
// arrive here.
func (s *server) logs(text string) {
	s.p.t.Helper()
	s.p.until("the log has "+text, func() bool { return strings.Contains(s.err.String(), text) })
}

// notice waits for the server to tell something, and returns what it told.
func (s *server) notice(what string) string {
	s.p.t.Helper()
	late := time.After(patience)
	for {
		select {
		case n, more := <-s.notices:
			if !more {
				s.p.t.Fatalf("the broker ended and did not tell %s\n%s", what, s.err.String())
			}
			if strings.Contains(n, what) {
				return n
			}
		case <-late:
			s.p.t.Fatalf("the broker does not tell %s\n%s", what, s.err.String())
		}
	}
}

// client opens a session of the test's own.
func (p *place) client(opts ...client.Option) *client.Client {
	p.t.Helper()
	c, err := client.Connect(p.ctx(), append([]client.Option{client.WithAddress(p.socket()), client.WithName("tester")}, opts...)...)
	require.NoError(p.t, err)
	p.t.Cleanup(func() { c.Close() })
	return c
}

func (p *place) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	p.t.Cleanup(cancel)
	return ctx
}

// until looks again and again until something is so.
func (p *place) until(what string, so func() bool) {
	p.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(patience)
	for !so() {
		select {
		case <-tick.C:
		case <-late:
			p.t.Fatalf("waited without a result until %s", what)
		}
	}
}

// hasSession tells whether a session of that name is listed.
func (p *place) hasSession(name string) bool {
	p.t.Helper()
	var rows []struct{ Name string }
	p.json(&rows, "ls", "sessions", name)
	return len(rows) > 0
}

// fails asserts how a command failed: its status, a part of the message, and that
// the remedy, if one is expected, has a line of its own.
func (r result) fails(t *testing.T, code int, message, remedy string) {
	t.Helper()
	assert.Equal(t, code, r.code, "status\n%s%s", r.out, r.err)
	first, rest, _ := strings.Cut(r.err, "\n")
	assert.True(t, strings.HasPrefix(first, "baton: "), r.err)
	assert.Contains(t, first, message)
	if remedy != "" {
		assert.Contains(t, rest, "  what to do: ")
		assert.Contains(t, rest, remedy)
	}
	assert.Empty(t, r.out)
}

// lines are the lines of a command's output.
func lines(s string) []string { return strings.Split(strings.TrimRight(s, "\n"), "\n") }

// fields of a line of a listing: columns are two spaces apart or more.
func fields(line string) []string {
	var out []string
	for _, f := range strings.Split(line, "  ") {
		if f = strings.TrimSpace(f); f != "" {
			out = append(out, f)
		}
	}
	return out
}

// gone asserts that no broker answers at a socket.
func gone(t *testing.T, socket string) {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err == nil {
		c.Close()
	}
	assert.True(t, errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED), "%v", err)
}
