package main_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/protocol"
)

// user makes the test's own clients those of a user whose runtime directory is the
// place's.
func (p *place) user() {
	p.t.Helper()
	p.t.Setenv("XDG_RUNTIME_DIR", p.dir)
	p.t.Setenv("BATON_ADDRESS", "")
	p.t.Setenv("BATON_BINARY", binary)
	p.t.Setenv("BATON_NO_NATS", "true")
	p.t.Cleanup(func() { p.baton("stop") })
}

// userClient opens a session as a program of that user does.
func (p *place) userClient(ctx context.Context) (*client.Client, error) {
	c, err := client.Connect(ctx)
	if err == nil {
		p.t.Cleanup(func() { c.Close() })
	}
	return c, err
}

type brokerStatus struct {
	PID      int
	Instance string
	Memory   struct{ Limit uint64 }
}

func (p *place) statusOf(c *client.Client) (s brokerStatus) {
	p.t.Helper()
	require.NoError(p.t, c.Broker(p.ctx(), protocol.OpStatus, nil, &s))
	return s
}

// kill ends a process that is no child of the test's.
func (p *place) kill(pid int) {
	p.t.Helper()
	process, err := os.FindProcess(pid)
	require.NoError(p.t, err)
	require.NoError(p.t, process.Kill())
}

func TestClientsLeaveTheNextBrokerToTheOperator(t *testing.T) {
	p := newPlace(t)
	p.user()
	first := p.serve("--memory", "64MiB")
	c, err := p.userClient(p.ctx())
	require.NoError(t, err)
	was := p.statusOf(c)
	for _, end := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		first.signal(end)
		first.wait()
		short, cancel := context.WithTimeout(context.Background(), 1500*time.Millisecond) // it asks twice
		_, err = p.userClient(short)
		cancel()
		require.ErrorIs(t, err, protocol.ErrNoBroker)
		require.ErrorContains(t, err, "programs still have sessions of it")
		gone(t, p.socket())
		first = p.serve("--memory", "64MiB") // nothing is in its way
		now := p.statusOf(c)
		assert.Equal(t, was.Instance, now.Instance)
	}
}

func TestNewClientStandsInWhenNoSessionIsLeft(t *testing.T) {
	p := newPlace(t)
	p.user()
	first := p.serve("--memory", "64MiB")
	c, err := client.Connect(p.ctx())
	require.NoError(t, err)
	require.NoError(t, c.Close())
	first.signal(syscall.SIGKILL)
	first.wait()
	t.Setenv("BATON_MEMORY", "3GiB") // that of this program, not the broker's
	c, err = p.userClient(p.ctx())
	require.NoError(t, err)
	assert.EqualValues(t, 64<<20, p.statusOf(c).Memory.Limit)
}

func TestStandInHasTheSettingsOfTheBrokerBeforeIt(t *testing.T) {
	p := newPlace(t)
	p.user()
	t.Setenv("BATON_MEMORY", "96MiB") // nothing stood there: those of the first client
	c, err := p.userClient(p.ctx())
	require.NoError(t, err)
	was := p.statusOf(c)
	assert.EqualValues(t, 96<<20, was.Memory.Limit)
	for _, other := range []string{"3GiB", "lots"} {
		t.Setenv("BATON_MEMORY", other)
		p.kill(p.statusOf(c).PID)
		p.until("another broker serves the session", func() bool {
			now := p.statusOf(c)
			return now.PID != was.PID && now.Instance == was.Instance && now.Memory.Limit == 96<<20
		})
		was = p.statusOf(c)
	}
}

func TestStopEndsABrokerForGood(t *testing.T) {
	p := newPlace(t)
	memory := p.file("memory")
	p.serve("--memory-dir", memory)
	p.baton("stop", "--address", p.file("none.sock")).fails(t, 4, "no broker answers", "--address")
	p.must("set", "x", p.array("a.npy", "uint8", []int64{1}, []byte{9}))
	p.must("stop")
	gone(t, p.socket())
	assert.NoFileExists(t, p.file("baton/state.json"))
	p.serve("--memory-dir", memory) // at once: the first has let go of everything
	p.must("get", "x", "-o", "o.npy")
	p.must("stop", "--discard", "--yes")
	left, err := os.ReadDir(memory)
	require.NoError(t, err)
	assert.Empty(t, left)
}

// An operator's broker takes over from one that a program has started, and not the
// other way round.
func TestOperatorsBrokerTakesOverFromAStandIn(t *testing.T) {
	p := newPlace(t)
	p.user()
	c, err := p.userClient(p.ctx())
	require.NoError(t, err)
	was := p.statusOf(c)
	first := p.serveNATS("--no-nats", "--memory", "64MiB")
	now := p.statusOf(c)
	assert.Equal(t, was.Instance, now.Instance)
	assert.Equal(t, first.cmd.Process.Pid, now.PID)
	assert.EqualValues(t, 64<<20, now.Memory.Limit)
	p.until("the stand-in has ended", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", was.PID))
		return err != nil || strings.Contains(string(stat), ") Z ")
	})

	second := p.launch("--no-nats")
	second.wait().fails(t, 1, fmt.Sprintf("(pid %d)", now.PID), "--replace")
	third := p.launch("--no-nats", "--stand-in")
	third.wait().fails(t, 1, fmt.Sprintf("(pid %d)", now.PID), "")

	fourth := p.serve("--replace", "--memory", "128MiB")
	assert.Zero(t, first.wait().code)
	now = p.statusOf(c)
	assert.Equal(t, was.Instance, now.Instance)
	assert.Equal(t, fourth.cmd.Process.Pid, now.PID)
	p.launch("--no-nats", "--replace", "--memory-dir", p.file("memory")).wait().fails(t, 1, "does not hand over", "same --memory-dir")
	assert.Equal(t, now.PID, p.statusOf(c).PID, "the old one goes on")
}

// The embedded NATS server of the old one ends before that of the new one begins.
func TestReplaceBringsNATSAlong(t *testing.T) {
	p := newPlace(t)
	var before, after natsAnswer
	first := p.serveNATS()
	p.json(&before, "nats")
	_, port, err := net.SplitHostPort(strings.TrimPrefix(before.URL, "nats://"))
	require.NoError(t, err)
	p.serveNATS("--replace", "--nats-port", port)
	assert.Zero(t, first.wait().code)
	p.json(&after, "nats")
	assert.Equal(t, before.URL, after.URL)
}

// A broker that a client starts has defaults of its own, which its user's file and environment change.
func TestSettingsOfTheUserAreThoseOfABrokerThatAClientStarts(t *testing.T) {
	p := newPlace(t)
	p.user()
	config := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", config)
	require.NoError(t, os.Mkdir(filepath.Join(config, "baton"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(config, "baton", "baton.toml"), []byte("log-level = \"info\"\n"), 0o600))
	_, err := p.userClient(p.ctx())
	require.NoError(t, err)
	p.until("its log shows the session", func() bool {
		log, err := os.ReadFile(p.file("baton/broker.log"))
		return err == nil && strings.Contains(string(log), "level=INFO")
	})
}
