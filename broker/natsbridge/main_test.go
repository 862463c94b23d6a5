package natsbridge_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker/natsbridge"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

const (
	childDir  = "NATSBRIDGE_TEST_DIR"
	childPort = "NATSBRIDGE_TEST_PORT"
	childJoin = "NATSBRIDGE_TEST_JOIN"
)

// patience bounds waits that only a failure makes long.
const patience = 90 * time.Second

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		child(dir)
	}
	code := m.Run()
	if left := goroutines(); code == 0 && left != "" {
		fmt.Fprintf(os.Stderr, "goroutines left by closed bridges:\n%s\n", left)
		code = 99
	}
	os.Exit(code)
}

// goroutines gives the stacks that are in the package, after a while.
func goroutines() string {
	var left string
	for end := time.Now().Add(patience); time.Now().Before(end); runtime.Gosched() {
		buf := make([]byte, 4<<20)
		buf = buf[:runtime.Stack(buf, true)]
		left = ""
		for _, g := range strings.Split(string(buf), "\n\n") {
			if strings.Contains(g, "natsbridge.(*") {
				left += g + "\n\n"
			}
		}
		if left == "" {
			break
		}
	}
	return left
}

// child is another process with a bridge, until its input ends or it is killed. One that
// joins a server is the broker host-1 with the name a.
func child(dir string) {
	cfg := natsbridge.Config{RuntimeDir: dir}
	if url := os.Getenv(childJoin); url != "" {
		cfg.Owner, cfg.Join = "host-1", &natsbridge.JoinConfig{URLs: []string{url}}
	} else if port, err := strconv.Atoi(os.Getenv(childPort)); err == nil {
		cfg.Port = port
	}
	b, err := natsbridge.Start(context.Background(), cfg)
	if err == nil && cfg.Join != nil {
		if err = setName(b, "default", "a", 1, []byte("theirs")); err == nil {
			err = b.Wait(context.Background(), mirrored)
		}
	}
	fmt.Println(err)
	if err == nil {
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
	os.Exit(0)
}

// startChild runs a bridge in another process and returns how to kill it. Its port
// stays the test's own when it is dead.
func startChild(t *testing.T, dir string, env ...string) (kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), childDir+"="+dir, childPort+"="+strconv.Itoa(testkit.HeldPort(t))), env...)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	ended := false
	kill = func() {
		if !ended {
			ended = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			in.Close()
		}
	}
	t.Cleanup(kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "<nil>\n", line)
	return kill
}

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// start starts a bridge that the test's end closes.
func start(t *testing.T, cfg natsbridge.Config) *natsbridge.Bridge {
	t.Helper()
	if cfg.RuntimeDir == "" {
		cfg.RuntimeDir = runtimeDir(t)
	}
	if cfg.Join != nil && cfg.Owner == "" {
		cfg.Owner = "owner-a"
	}
	if cfg.Logger == nil {
		w := &testWriter{t: t}
		t.Cleanup(w.end)
		cfg.Logger = slog.New(slog.NewTextHandler(w, nil))
	}
	b, err := natsbridge.Start(deadline(t), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { b.Close(deadline(t)) })
	return b
}

// testWriter writes into a test's log until the test ends: a server whose end was
// not waited for, and callbacks of nats.go, may have something to say later.
type testWriter struct {
	mu    sync.Mutex
	t     *testing.T
	ended bool
}

func (w *testWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.t.Log(strings.TrimSpace(string(p)))
	}
	return len(p), nil
}

func (w *testWriter) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
}

func runtimeDir(t *testing.T) string { return filepath.Join(t.TempDir(), "run") }

func wait(t *testing.T, b *natsbridge.Bridge, ok func(natsbridge.Status) bool) natsbridge.Status {
	t.Helper()
	require.NoError(t, b.Wait(deadline(t), ok))
	return b.Status()
}

func connected(s natsbridge.Status) bool    { return s.Connected }
func disconnected(s natsbridge.Status) bool { return !s.Connected }
func mirrored(s natsbridge.Status) bool     { return s.Names.State == natsbridge.NamesMirrored }

// refuses finds brokers that are refused all of these rights.
func refuses(rights ...string) func(natsbridge.Status) bool {
	return func(s natsbridge.Status) bool {
		for _, right := range rights {
			if !slices.ContainsFunc(s.Refused, func(r natsbridge.Refusal) bool { return r.Right == right }) {
				return false
			}
		}
		return true
	}
}

// setName mirrors a name as a broker does, with any value.
func setName(b *natsbridge.Bridge, ns, name string, revision uint64, value []byte) error {
	return b.SetName(ns, name, value, protocol.TupleReference{Topic: name, Sender: "broker", Sequence: max(revision, 1), Host: "a0a1",
		Bytes: max(uint64(len(value)), 1), Tensors: 3})
}

// client connects as any NATS client of the user's would.
func client(t *testing.T, dir string) *nats.Conn {
	t.Helper()
	info, err := natsbridge.ReadInfo(dir)
	require.NoError(t, err)
	nc, err := info.Connect(nats.Timeout(patience))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc
}

func subscribe(t *testing.T, nc *nats.Conn, subject string) *nats.Subscription {
	t.Helper()
	sub, err := nc.SubscribeSync(subject)
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	return sub
}

func next(t *testing.T, sub *nats.Subscription) *nats.Msg {
	t.Helper()
	m, err := sub.NextMsg(patience)
	require.NoError(t, err)
	return m
}

// operator is the NATS server of an operator, which the bridge joins.
type operator struct {
	t    *testing.T
	opts *server.Options
	*server.Server
}

func startOperator(t *testing.T, change func(*server.Options)) *operator {
	t.Helper()
	o := &operator{t: t, opts: &server.Options{Host: "127.0.0.1", Port: testkit.HeldPort(t), NoSigs: true, JetStream: true,
		StoreDir: t.TempDir(), JetStreamMaxMemory: 64 << 20, JetStreamMaxStore: 64 << 20}}
	if change != nil {
		change(o.opts)
	}
	o.start()
	t.Cleanup(func() { o.stop() })
	return o
}

func (o *operator) start() {
	o.t.Helper()
	opts := o.opts.Clone()
	s, err := server.NewServer(opts)
	require.NoError(o.t, err)
	s.Start()
	require.True(o.t, s.ReadyForConnections(patience))
	o.Server = s
}

func (o *operator) stop() {
	o.Shutdown()
	o.WaitForShutdown()
}
