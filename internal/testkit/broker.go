package testkit

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/address"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/statefile"
)

// Broker is a broker of the test's own: a process with a runtime directory and a
// namespace that no other test has.
type Broker struct {
	Dir       string // its runtime directory
	Socket    string
	Namespace string

	t       testing.TB
	config  BrokerConfig
	process *Process

	mu       sync.Mutex // guards what follows
	children []*Process
	clients  int // ever connected in this process
	raw      *Raw
}

// BrokerConfig is what a test may set of its broker; the zero value is the
// defaults.
type BrokerConfig struct {
	Memory        uint64
	SessionMemory uint64
	DeviceMemory  uint64
	MemoryDir     string
	IdleExit      time.Duration
	UnreadPickles string   // how old one has to be to be given up; "": the default
	NATS          bool     // its embedded server runs
	NATSFunctions bool     // and requests by it call functions
	JoinNATS      []string // or the flags with which it joins another's
	OpenFiles     int      // its limit of open files
	CrashPoint    string   // where it dies
}

// args are the command line of a broker at a socket.
func (c *BrokerConfig) args(socket string) []string {
	args := []string{"serve", "--address", "unix:" + socket, "--log-level", "debug"}
	add := func(use bool, flag string, value any) {
		if use {
			args = append(args, fmt.Sprintf("--%s=%v", flag, value))
		}
	}
	add(c.Memory > 0, "memory", c.Memory)
	add(c.SessionMemory > 0, "session-memory", c.SessionMemory)
	add(c.DeviceMemory > 0, "device-memory", c.DeviceMemory)
	add(c.MemoryDir != "", "memory-dir", c.MemoryDir)
	add(c.UnreadPickles != "", "unread-pickles", c.UnreadPickles)
	add(c.IdleExit > 0, "idle-exit", c.IdleExit)
	add(!c.NATS && c.JoinNATS == nil, "no-nats", true)
	add(c.NATSFunctions, "nats-functions", true)
	return append(args, c.JoinNATS...)
}

// BrokerOption changes a test's broker.
type BrokerOption func(*BrokerConfig)

// StartBroker starts a broker and waits until it answers. It ends with the test,
// which then fails if anything is left behind (see the package comment).
func StartBroker(t testing.TB, opts ...BrokerOption) *Broker {
	t.Helper()
	// Short, because a socket's path has room for 107 bytes.
	dir, err := os.MkdirTemp("/tmp", "b")
	if err != nil {
		t.Fatal(err)
	}
	var ns [4]byte
	rand.Read(ns[:])
	b := &Broker{Dir: dir, Socket: filepath.Join(dir, "broker.sock"), Namespace: "t" + hex.EncodeToString(ns[:]), t: t}
	for _, f := range opts {
		f(&b.config)
	}
	t.Cleanup(b.cleanUp)
	b.Restart()
	return b
}

// Restart starts the broker anew, after Kill, Term or End.
func (b *Broker) Restart() {
	b.t.Helper()
	if b.process != nil && b.process.Alive() {
		b.t.Fatal("the broker runs already")
	}
	b.process = b.launch()
	Until(b.t, "the broker answers", func() (bool, string) {
		if !b.process.Alive() {
			b.t.Fatalf("the broker ended: %v\n%s", b.process.result(), b.process.Log())
		}
		c, err := dialSocket(b.Socket)
		if err != nil {
			return false, err.Error()
		}
		c.Close()
		return true, ""
	})
}

// TryRestart is Restart with changes to the configuration, for when it may fail: it
// returns what the broker wrote before it ended, or "" once it serves.
func (b *Broker) TryRestart(opts ...BrokerOption) string {
	b.t.Helper()
	for _, f := range opts {
		f(&b.config)
	}
	p := b.launch()
	Until(b.t, "the broker serves or ends", func() (bool, string) {
		return !p.Alive() || strings.Contains(p.Log(), "msg=serving"), p.Log()
	})
	if !p.Alive() {
		return p.Fails()
	}
	b.process = p
	return ""
}

// Replace starts another broker that takes over from this one while it runs, with
// changes to its configuration, and waits until that has ended.
func (b *Broker) Replace(opts ...BrokerOption) {
	b.t.Helper()
	if said := b.TryReplace(opts...); said != "" {
		b.t.Fatalf("the new broker ended:\n%s", said)
	}
}

// TryReplace is Replace for when it may fail: it returns what the new broker wrote
// before it ended, while the old one goes on, or "" once the new one serves alone.
func (b *Broker) TryReplace(opts ...BrokerOption) string {
	b.t.Helper()
	b.dropRaw()
	for _, f := range opts {
		f(&b.config)
	}
	p := b.launch("--replace")
	Until(b.t, "the old broker has handed over, or the new one ends", func() (bool, string) {
		return !p.Alive() || !b.process.Alive(), p.Log()
	})
	if b.process.Alive() {
		return p.Fails()
	}
	if !p.Alive() {
		b.t.Fatalf("both brokers ended: %v\n%s", p.result(), p.Log())
	}
	b.process.Ended()
	b.process = p
	return ""
}

// InFiles tells whether its memory is in files.
func (b *Broker) InFiles() bool { return b.config.MemoryDir != "" }

// launch starts the broker's process without waiting for it.
func (b *Broker) launch(more ...string) *Process {
	b.t.Helper()
	program, env := Binary(b.t), b.env()
	if b.config.CrashPoint != "" {
		program, env = crashBroker(b.t), b.env(crashpoint.Env+"="+b.config.CrashPoint)
	}
	cmd := exec.Command(program, append(b.config.args(b.Socket), more...)...)
	cmd.Env = env
	cmd.Dir = "/"
	if b.config.OpenFiles > 0 {
		OpenFiles(b.config.OpenFiles)(cmd)
	}
	return startProcess(b.t, "broker", cmd)
}

// Second starts another broker for the same address and returns the process,
// which is expected to fail.
func (b *Broker) Second() *Process {
	b.t.Helper()
	p := b.launch()
	b.track(p)
	return p
}

// Process is the broker's process.
func (b *Broker) Process() *Process { return b.process }

// Kill ends the broker with SIGKILL.
func (b *Broker) Kill() {
	b.t.Helper()
	b.dropRaw()
	b.process.Kill()
}

// Crashed waits until the broker has died at its crash point. The next one has none.
func (b *Broker) Crashed() {
	b.t.Helper()
	b.dropRaw()
	b.process.Killed()
	b.config.CrashPoint = ""
}

// End ends the broker for good, with SIGINT, and fails the test unless it ends well.
func (b *Broker) End() {
	b.t.Helper()
	b.endBy(syscall.SIGINT)
}

// Discard ends the broker for good, with what names and queues hold in files.
func (b *Broker) Discard() {
	b.t.Helper()
	b.dropRaw()
	out, err := exec.Command(Binary(b.t), "stop", "--discard", "--yes", "--address", b.Socket).CombinedOutput()
	if err != nil {
		b.t.Fatalf("baton stop: %v\n%s", err, out)
	}
	b.process.Ended()
}

// Term ends the broker with SIGTERM, which leaves everything to the next one, and
// fails the test unless it ends well.
func (b *Broker) Term() {
	b.t.Helper()
	b.endBy(syscall.SIGTERM)
}

// Forget removes what a broker that was killed left for its successor.
func (b *Broker) Forget() {
	b.t.Helper()
	if err := os.Remove(filepath.Join(b.Dir, statefile.Name)); err != nil {
		b.t.Fatal(err)
	}
}

func (b *Broker) endBy(s syscall.Signal) {
	b.t.Helper()
	b.dropRaw()
	b.process.signal(s)
	b.process.Ended()
}

// env is the environment of everything that is started for the test.
func (b *Broker) env(more ...string) []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "BATON_") && !strings.HasPrefix(kv, "XDG_") {
			env = append(env, kv)
		}
	}
	return append(append(env, address.EnvAddress+"=unix:"+b.Socket, address.EnvNamespace+"="+b.Namespace,
		"XDG_RUNTIME_DIR="+b.Dir, "XDG_CONFIG_HOME="+b.Dir), more...)
}

// Connect opens a session of the test process itself, which ends with the test.
func (b *Broker) Connect(opts ...client.Option) *client.Client {
	b.t.Helper()
	c, err := b.TryConnect(opts...)
	if err != nil {
		b.t.Fatalf("connect: %v", err)
	}
	return c
}

// TryConnect is Connect for when it may fail.
func (b *Broker) TryConnect(opts ...client.Option) (*client.Client, error) {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	all := append([]client.Option{client.WithAddress("unix:" + b.Socket), client.WithNamespace(b.Namespace)}, opts...)
	c, err := client.Connect(ctx, all...)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	b.clients++
	b.mu.Unlock()
	b.t.Cleanup(func() {
		if err := c.Close(); err != nil {
			b.t.Errorf("close a client: %v", err)
		}
		c = nil // the test keeps this function beyond its end
	})
	return c, nil
}

// StartOption changes how a child is started.
type StartOption func(*exec.Cmd)

// Env adds a variable to a child's environment.
func Env(key, value string) StartOption {
	return func(c *exec.Cmd) { c.Env = append(c.Env, key+"="+value) }
}

// Program makes another program than the test's own play the role, such as that
// of CrashBinary.
func Program(path string) StartOption {
	return func(c *exec.Cmd) { c.Path, c.Args = path, []string{path} }
}

// OpenFiles limits how many files a process may have open. The shell that does it
// becomes the process.
func OpenFiles(n int) StartOption {
	return func(c *exec.Cmd) {
		c.Args = append([]string{"sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, n), c.Path}, c.Args[1:]...)
		c.Path = "/bin/sh"
	}
}

// Occupied has a process begin with so many files open that are of no use to it.
func Occupied(n int) StartOption {
	return func(c *exec.Cmd) {
		for range n {
			f, err := os.Open(os.DevNull)
			if err != nil {
				panic(err)
			}
			c.ExtraFiles = append(c.ExtraFiles, f)
		}
	}
}

// Start starts a child in a role, with a configuration that Child.Config decodes.
func (b *Broker) Start(role string, config any, opts ...StartOption) *Process {
	b.t.Helper()
	self, err := os.Executable()
	if err != nil {
		b.t.Fatal(err)
	}
	data, err := json.Marshal(config)
	if err != nil {
		b.t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = b.env(envRole+"="+role, envConfig+"="+string(data))
	for _, f := range opts {
		f(cmd)
	}
	p := startProcess(b.t, role, cmd)
	b.track(p)
	return p
}

func (b *Broker) track(p *Process) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.children = append(b.children, p)
}

// cleanUp ends what the test started and looks for what it left. It runs after
// the clients of the test process are closed.
func (b *Broker) cleanUp() {
	b.explain()
	b.dropRaw()
	for _, p := range b.children {
		p.cleanUp()
	}
	if b.process != nil {
		if b.process.Alive() {
			b.process.Cont()
			b.End()
			if !b.t.Failed() {
				b.checkFiles()
			}
		}
		b.process.cleanUp()
		if b.t.Failed() {
			log := b.process.Log()
			b.t.Logf("the end of the broker's log:\n%s", log[max(0, len(log)-4096):])
		}
	}
	if err := os.RemoveAll(b.Dir); err != nil {
		b.t.Errorf("remove the runtime directory: %v", err)
	}
	checkLeaks(b.t, b.Dir, b.clients)
}

// explain tells, when the test has failed, which session holds what.
func (b *Broker) explain() {
	if !b.t.Failed() || b.process == nil || !b.process.Alive() {
		return
	}
	if b.raw == nil {
		r, err := DialRaw(b.Socket, b.Namespace)
		if err != nil {
			b.t.Logf("ask the broker: %v", err)
			return
		}
		b.raw = r
	}
	b.raw.Conn.SetDeadline(time.Now().Add(10 * time.Second))
	if h, err := look(b.raw); err != nil {
		b.t.Logf("ask the broker: %v", err)
	} else {
		b.t.Logf("when the test failed:\n%s", h)
	}
}

// staying are the files that a broker may leave in its runtime directory.
var staying = map[string]bool{"broker.lock": true, "start.lock": true, "broker.log": true,
	"nats": true, "nats.lock": true, "nats.seed": true}

func (b *Broker) checkFiles() {
	entries, err := os.ReadDir(b.Dir)
	if err != nil {
		b.t.Errorf("look at the runtime directory: %v", err)
	}
	for _, e := range entries {
		if !staying[e.Name()] {
			b.t.Errorf("the broker left %s in its runtime directory", e.Name())
		}
	}
}

// AsUser makes a child run as another user. The tests must be root's.
func AsUser(t testing.TB, uid uint32) StartOption {
	t.Helper()
	program := public(t)
	return func(c *exec.Cmd) {
		c.Path, c.Args = program, []string{program}
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
}

// Elsewhere makes the processes of a killed broker those of another pid namespace: the next
// broker at the socket cannot look into their files.
func Elsewhere(t testing.TB, socket string) {
	t.Helper()
	path := filepath.Join(filepath.Dir(socket), statefile.Name)
	lines, err := os.ReadFile(path)
	require.NoError(t, err)
	changed := regexp.MustCompile(`"pid_namespace":\d+`).ReplaceAll(lines, []byte(`"pid_namespace":1`))
	require.NotEqual(t, string(lines), string(changed))
	require.NoError(t, os.WriteFile(path, changed, 0o600))
}
