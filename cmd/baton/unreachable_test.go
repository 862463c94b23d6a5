package main_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/protocol"
)

// freeze stops a broker's process and waits until it is suspended.
func (s *server) freeze() {
	s.p.t.Helper()
	s.signal(syscall.SIGSTOP)
	s.p.until("the broker is suspended", func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", s.cmd.Process.Pid))
		require.NoError(s.p.t, err)
		return !slices.ContainsFunc(threads, func(path string) bool {
			stat, _ := os.ReadFile(path)
			return !strings.Contains(string(stat), ") T ")
		})
	})
}

// fillQueue connects to a socket until its queue takes no more.
func fillQueue(t *testing.T, socket string) {
	t.Helper()
	for {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
		if errors.Is(err, syscall.EAGAIN) {
			return
		}
		require.NoError(t, err)
		c.Close() // it stays in the queue
	}
}

func TestBrokerThatTakesNoConnectionIsNotTakenForNone(t *testing.T) {
	t.Parallel() // it has to wait until a broker is given up
	p := newPlace(t)
	broker := p.serve()
	socket, err := os.Stat(p.socket())
	require.NoError(t, err)
	broker.freeze()
	fillQueue(t, p.socket())
	replacing := p.launch("--no-nats", "--replace")
	process := fmt.Sprintf("(pid %d)", broker.cmd.Process.Pid)
	array := p.array("a.npy", "uint8", []int64{1}, []byte{9})
	var asking []*running
	for _, args := range [][]string{{"status"}, {"ls"}, {"evict", "2"}, {"set", "x", array}, {"get", "x", "-o", "o.npy"}, {"stop"}} {
		asking = append(asking, p.start(p.command(append(args, "--timeout", "1ms")...)))
	}
	examining := p.start(p.command("doctor", "--timeout", "1ms"))
	for _, c := range asking {
		r := c.wait()
		r.fails(t, 5, "does not answer: it is suspended", "kill -CONT")
		assert.Contains(t, r.err, process)
	}
	r := examining.wait()
	assert.Equal(t, 1, r.code)
	assert.Regexp(t, `(?m)^fail +broker .*`+regexp.QuoteMeta(process)+`.* does not answer: it is suspended\n +→ .*kill -CONT`, r.out)

	p.launch("--no-nats").wait().fails(t, 1, process, "stop it")
	p.launch("--no-nats", "--address", p.socket(), "--runtime-dir", p.file("other")).wait().fails(t, 1, "takes no connection", "is suspended")
	short, cancel := context.WithTimeout(p.ctx(), time.Millisecond)
	defer cancel()
	_, err = client.Connect(short, client.WithAddress(p.socket()))
	require.ErrorIs(t, err, protocol.ErrTimeout)
	require.ErrorContains(t, err, process)

	replacing.wait().fails(t, 5, process, "is suspended")
	now, err := os.Stat(p.socket())
	require.NoError(t, err)
	assert.True(t, os.SameFile(socket, now), "no broker has replaced the socket")
	broker.signal(syscall.SIGCONT)
	p.must("status", "--timeout", "1m")
}

func TestBrokerWhoseSocketIsGoneIsNamedWithTheWayOut(t *testing.T) {
	t.Parallel() // it has to wait until a broker is given up
	p := newPlace(t)
	broker := p.serve()
	c := p.client()
	_, err := c.Set(p.ctx(), "x", p.tensor(c, 1))
	require.NoError(t, err)
	broker.freeze() // else it binds the socket again
	require.NoError(t, os.Remove(p.socket()))
	replacing := p.launch("--no-nats", "--replace")
	process, out := fmt.Sprintf("process %d,", broker.cmd.Process.Pid), fmt.Sprintf("kill -TERM %d", broker.cmd.Process.Pid)
	p.baton("status").fails(t, 4, process, out)
	p.baton("stop").fails(t, 4, process, out)
	p.launch("--no-nats").wait().fails(t, 1, process, out)
	r := p.baton("doctor")
	assert.Equal(t, 1, r.code)
	assert.Regexp(t, `(?m)^fail +broker .*`+regexp.QuoteMeta(process)+`.*\n +→ .*`+out, r.out)
	short, cancel := context.WithTimeout(p.ctx(), time.Millisecond)
	defer cancel()
	_, err = client.Connect(short, client.WithAddress(p.socket()))
	require.ErrorIs(t, err, protocol.ErrNoBroker)
	require.ErrorContains(t, err, out)
	replacing.wait().fails(t, 1, process, out)

	broker.signal(syscall.SIGTERM)
	broker.signal(syscall.SIGCONT)
	require.Zero(t, broker.wait().code)
	p.serve()
	p.must("get", "x", "-o", "o.npy")
}

// A program that finds such a broker starts none, which would be refused.
func TestProgramWaitsForABrokerWhoseSocketIsGone(t *testing.T) {
	p := newPlace(t)
	p.user()
	broker := p.serve()
	broker.freeze()
	require.NoError(t, os.Remove(p.socket()))
	short, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_, err := p.userClient(short)
	require.ErrorIs(t, err, protocol.ErrNoBroker)
	require.ErrorContains(t, err, fmt.Sprintf("kill -TERM %d", broker.cmd.Process.Pid))
	assert.NoFileExists(t, p.file("baton/broker.log"), "it started one")
	broker.signal(syscall.SIGKILL)
	broker.wait()
	_, err = p.userClient(p.ctx())
	require.NoError(t, err)
}

// The environment of a program may change while it runs.
func TestSessionStaysAtItsBrokersPlace(t *testing.T) {
	p, other := newPlace(t), newPlace(t)
	p.user()
	broker := p.serve()
	c, err := p.userClient(p.ctx())
	require.NoError(t, err)
	_, err = c.Set(p.ctx(), "x", p.tensor(c, 1))
	require.NoError(t, err)
	other.user()
	broker.signal(syscall.SIGKILL)
	broker.wait()
	p.serve()
	_, err = c.Get(p.ctx(), "x")
	require.NoError(t, err)
	assert.NoFileExists(t, other.file("baton/broker.log"), "it started one there")
}

func TestBrokerBindsItsSocketAgain(t *testing.T) {
	t.Parallel() // it looks from time to time
	p := newPlace(t)
	broker := p.serve("--socket-mode", "0640")
	c := p.client()
	require.NoError(t, os.Remove(p.socket()))
	p.must("status", "--timeout", "1m")
	broker.logs("level=WARN msg=\"the socket was removed, and is made again\"")
	info, err := os.Stat(p.socket())
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o640), info.Mode().Perm())
	_, err = c.Set(p.ctx(), "x", p.tensor(c, 1)) // on the connection that it has
	require.NoError(t, err)
	next := p.serve("--replace")
	require.Zero(t, broker.wait().code)
	p.must("get", "x", "-o", "o.npy")
	require.NoError(t, os.Remove(p.socket()))
	p.must("status", "--timeout", "1m")
	next.signal(syscall.SIGTERM)
	require.Zero(t, next.wait().code)
	gone(t, p.socket())
}
