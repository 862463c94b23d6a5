package main_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// roleMember is the environment that makes this test binary a program of another user: it has a
// session, and at each line of its standard input asks for something and writes how that went.
const roleMember = "BATON_TEST_MEMBER"

func beMember() {
	ctx := context.Background()
	say := func(err error) {
		if err == nil {
			fmt.Println("ok")
			return
		}
		fmt.Println(protocol.CodeOf(err), err)
	}
	c, err := client.Connect(ctx, client.WithName("member"))
	say(err)
	t, err := c.Topic(ctx, "batches")
	say(err)
	x, err := c.Zeros(ctx, dlpack.Uint8, []int64{1 << 20})
	say(err)
	say(t.Send(ctx, x))
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		switch in.Text() {
		case "ask":
			say(c.Broker(ctx, protocol.OpStatus, nil, nil))
		case "await":
			r, err := t.Reader(ctx)
			say(err)
			_, err = r.Receive(ctx)
			say(err)
		case "reopen":
			_, err := c.Reopen(ctx)
			say(err)
		case "close":
			say(c.Close())
		case "provide", "override":
			var opts []client.HandleOption
			if in.Text() == "override" {
				opts = append(opts, client.Override())
			}
			_, err := client.Handle(c, "f", func(_ context.Context, x int) (int, error) { return x + 1, nil }, opts...)
			say(err)
		}
	}
}

// member is such a program.
type member struct {
	*running
	in  io.Writer
	out *bufio.Scanner
}

func (p *place) member() *member {
	p.t.Helper()
	self := filepath.Join(filepath.Dir(binary), "baton.test")
	if _, err := os.Stat(self); err != nil { // where other users may run it
		data, err := os.ReadFile("/proc/self/exe")
		require.NoError(p.t, err)
		require.NoError(p.t, os.WriteFile(self, data, 0o755))
		require.NoError(p.t, os.Chmod(self, 0o755))
	}
	cmd := exec.Command(self)
	cmd.Dir, cmd.Env = "/", append(p.env, roleMember+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUID, Gid: otherUID}}
	in, err := cmd.StdinPipe()
	require.NoError(p.t, err)
	r, w, err := os.Pipe()
	require.NoError(p.t, err)
	p.t.Cleanup(func() { r.Close() })
	cmd.Stdout = w
	m := &member{p.start(cmd), in, bufio.NewScanner(r)}
	w.Close()
	for range 4 {
		require.Equal(p.t, "ok", m.heard())
	}
	return m
}

func (m *member) heard() string {
	m.p.t.Helper()
	require.True(m.p.t, m.out.Scan(), "it has ended: %s", m.err.String())
	return m.out.Text()
}

func (m *member) asks(what string) string {
	m.p.t.Helper()
	_, err := io.WriteString(m.in, what+"\n")
	require.NoError(m.p.t, err)
	return m.heard()
}

// sessionsOf lists the sessions of a name.
func (p *place) sessionsOf(name string) (rows []struct {
	Serial uint64
	State  string
	UID    uint32
}) {
	p.t.Helper()
	p.json(&rows, "ls", "sessions", name)
	return rows
}

// member's broker, which lets its user in by a file.
func (p *place) serveMembers() (broker *server, args []string) {
	p.t.Helper()
	testkit.Need(p.t, "root")
	require.NoError(p.t, os.Chmod(p.dir, 0o755))
	p.setenv("BATON_ADDRESS", p.file("run/b.sock"))
	file := p.write("c.toml", fmt.Sprintf("shared = true\nallow-uid = [%d, 4242]\n", otherUID))
	args = []string{"--config", file}
	return p.serve(args...), args
}

const withoutMember = "shared = true\nallow-uid = [4242]\n"

// The last user can be taken out while the broker runs: it says what then lacks, and goes on for its own user.
func TestLastUserOfASharedBrokerIsTakenOut(t *testing.T) {
	p := newPlace(t)
	broker, args := p.serveMembers()
	m := p.member()
	broker.logs(`msg="session opened"`)
	p.write("c.toml", "shared = true\n")
	hup(broker)
	assert.Regexp(t, `^SessionLost .*user 65534 may not use this broker any more`, m.asks("ask"))
	broker.logs("no other user may connect, though the broker is shared")
	assert.Regexp(t, `^PermissionDenied .*user 65534 may not use this broker`, m.asks("reopen"))
	p.must("ls")
	p.launch(append([]string{"--no-nats", "--replace"}, args...)...).wait().fails(t, 2, "no other user may connect", "")
}

// HUP takes a user's sessions away with its right to connect.
func TestSessionsEndWhoseUserMayNotConnectAnyMore(t *testing.T) {
	p := newPlace(t)
	broker, _ := p.serveMembers()
	m := p.member()
	broker.logs(`msg="session opened"`)
	assert.Regexp(t, `msg="session opened" .*name=member .*uid=65534`, broker.err.String())
	assert.Regexp(t, `(?m)^ *\d+  member +\d+  65534 `, p.must("ls", "sessions"))

	waits := p.member()
	require.Equal(t, "ok", waits.asks("await"))

	p.write("c.toml", withoutMember)
	hup(broker)
	assert.Regexp(t, `^SessionLost .*user 65534 may not use this broker any more .*--allow-uid`, waits.heard())
	for range 2 {
		said := m.asks("ask")
		assert.Regexp(t, `^SessionLost .*user 65534 may not use this broker any more`, said)
	}
	broker.logs(`msg="session evicted: its user may not connect any more"`)
	assert.Regexp(t, `evicted: its user may not .*name=member .*uid=65534`, broker.err.String())
	assert.Regexp(t, `^PermissionDenied .*user 65534 may not use this broker`, m.asks("reopen"))
	p.until("its session is closed", func() bool {
		rows := p.sessionsOf("member")
		return len(rows) == 0 || rows[0].State == "closed"
	})
	assert.Contains(t, p.must("tail", "batches", "--from", "all", "-n", "1"), "uint8", "what it had sent is received")
	assert.Equal(t, "ok", m.asks("close"))
	assert.Equal(t, "ok", waits.asks("close"))

	p.write("c.toml", fmt.Sprintf("shared = true\nallow-uid = [%d]\n", otherUID))
	hup(broker)
	assert.Equal(t, "ok", m.asks("reopen"))
}

// A connection without a session ends as well.
func TestWatchEndsOfAnObserverThatMayNotLookAnyMore(t *testing.T) {
	p := newPlace(t)
	broker, _ := p.serveMembers()
	p.write("c.toml", fmt.Sprintf("shared = true\nobserve-uid = [%d]\n", otherUID))
	hup(broker)
	cmd := p.command("events", "-f")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUID, Gid: otherUID}}
	watch := p.start(cmd)
	p.until("it has seen something", func() bool { return strings.Contains(watch.out.String(), "reloaded") })
	p.write("c.toml", withoutMember)
	hup(broker)
	r := watch.wait()
	assert.Equal(t, 1, r.code, r.err)
	assert.Contains(t, r.err, "user 65534 may not use this broker")
}

// A client that may not come back to the next broker is told so, once, and that broker keeps
// nothing for it.
func TestClientIsToldThatItMayNotComeBack(t *testing.T) {
	for _, memory := range []string{"memfds", "files"} {
		t.Run(memory, func(t *testing.T) {
			p := newPlace(t)
			first, args := p.serveMembers()
			if memory == "files" {
				first.signal(syscall.SIGTERM)
				first.wait()
				args = append(args, "--memory-dir", p.file("memory"))
				first = p.serve(args...)
			}
			m := p.member()
			other := p.client(client.WithAddress(p.file("run/b.sock")))
			first.signal(syscall.SIGTERM)
			require.Zero(t, first.wait().code)
			p.write("c.toml", withoutMember)
			next := p.serve(args...)
			assert.Regexp(t, `^PermissionDenied .*user 65534 may not use this broker`, m.asks("ask"))
			assert.Regexp(t, `^PermissionDenied .*session \d+ .*is over`, m.asks("ask"))
			assert.Regexp(t, `^PermissionDenied `, m.asks("reopen"))
			assert.NotZero(t, p.statusOf(other).PID, "others are back")
			next.logs(`msg="session evicted: its user may not connect any more"`)
			p.until("its session takes part in nothing", func() bool {
				rows := p.sessionsOf("member")
				return len(rows) == 0 || rows[0].State == "evicted" || rows[0].State == "closed"
			})
			refused := strings.Count(next.err.String(), "msg=refused")
			assert.LessOrEqual(t, refused, 5)
			assert.Equal(t, "ok", m.asks("close"))
			require.NoError(t, m.cmd.Process.Kill())
			p.until("nothing of it is left", func() bool { return len(p.sessionsOf("member")) == 0 })
		})
	}
}

// What only a program has that may not connect any more is taken from it before it is refused.
func TestWhatARefusedClientAloneHasIsTakenOver(t *testing.T) {
	p := newPlace(t)
	first, args := p.serveMembers()
	m := p.member()
	first.signal(syscall.SIGTERM)
	require.Zero(t, first.wait().code)
	p.write("c.toml", withoutMember)
	next := p.serve(args...)
	assert.Regexp(t, `^PermissionDenied `, m.asks("ask"))
	next.logs(`msg="took over"`)
	assert.NotContains(t, next.err.String(), "starting anew")
	assert.Contains(t, p.must("tail", "batches", "--from", "all", "-n", "1"), "uint8", "what it had sent is received")
}

// The log has a few lines of what a user that may not connect tries, and their number.
func TestRefusedConnectionsAreCounted(t *testing.T) {
	p := newPlace(t)
	broker, _ := p.serveMembers()
	for range 12 {
		p.asUser(otherUID+1, "ping").fails(t, 1, "user 65535 may not use this broker", "")
	}
	assert.LessOrEqual(t, strings.Count(broker.err.String(), "msg=refused"), 5)
	var events []json.RawMessage
	for _, line := range lines(p.must("events", "--kind", "refused", "--json")) {
		events = append(events, json.RawMessage(line))
	}
	assert.LessOrEqual(t, len(events), 5)
}
