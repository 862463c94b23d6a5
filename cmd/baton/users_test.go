package main_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
)

// otherUID is another user, nogroup a group that it may be in.
const (
	otherUID = 65534
	nogroup  = 12345
)

// startAs starts a command as another user.
func (p *place) startAs(uid uint32, args ...string) *running {
	p.t.Helper()
	cmd := p.command(args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	return p.start(cmd)
}

// asUser runs a command as another user, with groups beside its own.
func (p *place) asUser(uid uint32, args ...string) result { return p.asMember(uid, nil, args...) }

func (p *place) asMember(uid uint32, groups []uint32, args ...string) result {
	p.t.Helper()
	cmd := p.command(args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, Groups: groups}}
	return p.start(cmd).wait()
}

// getAs is get with a token.
func getAs(t *testing.T, socket, path, token string) (int, string) {
	t.Helper()
	c := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}}
	defer c.CloseIdleConnections()
	r, err := http.NewRequest(http.MethodGet, "http://baton"+path, nil)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+token)
	a, err := c.Do(r)
	require.NoError(t, err)
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	require.NoError(t, err)
	return a.StatusCode, string(body)
}

// A shared broker needs nothing but the flag and who may come: another user sets a name that
// the broker's own gets, in a directory that the broker has made.
func TestSharedBrokerServesOtherUsers(t *testing.T) {
	testkit.Need(t, "root")
	p := newPlace(t)
	require.NoError(t, os.Chmod(p.dir, 0o755))
	socket := p.file("shared/run/b.sock")
	p.serve("--shared", "--allow-uid", fmt.Sprint(otherUID), "--address", socket)
	for _, dir := range []string{p.file("shared"), p.file("shared/run")} {
		info, err := os.Stat(dir)
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o711), info.Mode().Perm(), "others enter it, and neither list nor write")
	}
	left, err := os.ReadDir(filepath.Dir(socket))
	require.NoError(t, err)
	for _, e := range left {
		info, err := e.Info()
		require.NoError(t, err)
		if e.Name() == "b.sock" {
			assert.Equal(t, os.FileMode(0o666), info.Mode().Perm())
		} else {
			assert.Zero(t, info.Mode().Perm()&0o077, "%s is the broker's alone", e.Name())
		}
	}
	array := p.array("a.npy", "uint8", []int64{3}, []byte{1, 2, 3})
	require.NoError(t, os.Chmod(array, 0o644))
	p.setenv("BATON_ADDRESS", "unix:"+socket)
	r := p.asUser(otherUID, "set", "theirs", array)
	require.Zero(t, r.code, r.err)
	p.must("get", "theirs", "-o", "o.npy")
	got, err := os.ReadFile(p.file("o.npy"))
	require.NoError(t, err)
	want, err := os.ReadFile(array)
	require.NoError(t, err)
	assert.Equal(t, want, got)
	p.must("set", "ours", array)
	r = p.asUser(otherUID, "show", "ours")
	assert.Zero(t, r.code, r.err)
	r = p.asUser(otherUID+1, "status")
	r.fails(t, 1, "user 65535 may not use this broker", "--shared and --allow-uid")
	for _, args := range [][]string{{"limit", "--memory", "1GiB"}, {"revoke", "1", "--yes"}, {"stop"}} {
		p.asUser(otherUID, args...).fails(t, 1, "user 65534 may not", "ask the user who started it")
	}
	assert.Zero(t, p.asUser(otherUID, "limit").code, "it may look")
}

func TestSharedBrokerNeedsAWayForOthers(t *testing.T) {
	testkit.Need(t, "root")
	p := newPlace(t)
	require.NoError(t, os.Chmod(p.dir, 0o700))
	p.baton("serve", "--no-nats", "--shared", "--allow-uid", "1", "--address", p.file("run/b.sock")).
		fails(t, 1, "other users cannot enter "+p.dir, "")
	p.baton("serve", "--shared").fails(t, 2, "--shared: no other user may connect", "")
}

// Users that may connect and reach no socket are named when the broker begins, at HUP, and by --check-config.
func TestUsersThatMayConnectAndCannotAreNamed(t *testing.T) {
	const warning = "other users may connect and cannot reach the socket: its mode is 0600"
	p := newPlace(t)
	file := p.write("c.toml", "")
	broker := p.serve("--config", file)
	p.write("c.toml", fmt.Sprintf("allow-uid = [%d]\n", otherUID))
	broker.signal(syscall.SIGHUP)
	broker.logs(warning)
	broker.signal(syscall.SIGTERM)
	broker.wait()
	broker = p.serve("--config", file)
	broker.logs(warning)
	r := p.baton("serve", "--check-config", "--config", file)
	assert.Zero(t, r.code)
	assert.Contains(t, r.err, warning)
	assert.Contains(t, r.err, "--shared sees to both")
	var checked struct{ Warnings []string }
	p.json(&checked, "serve", "--check-config", "--config", file)
	require.Len(t, checked.Warnings, 1)
	assert.Contains(t, checked.Warnings[0], warning)
	require.NoError(t, os.Mkdir(p.file("open"), 0o755))
	r = p.baton("serve", "--check-config", "--config", file, "--socket-mode", "0666", "--address", p.file("open/b.sock"))
	assert.Empty(t, r.err)
	token := p.write("token", "s3cret")
	require.NoError(t, os.Chmod(token, 0o644))
	r = p.baton("serve", "--check-config", "--http", "127.0.0.1:0", "--http-token-file", token)
	assert.Contains(t, r.err, "every user may read the token in "+token)
}

func TestMembersOfAGroupMayConnect(t *testing.T) {
	testkit.Need(t, "root")
	p := newPlace(t)
	require.NoError(t, os.Chmod(p.dir, 0o755))
	p.setenv("BATON_ADDRESS", p.file("run/b.sock"))
	p.serve("--shared", "--allow-group", fmt.Sprint(nogroup))
	assert.Zero(t, p.asUser(nogroup, "status").code, "its first group")
	many := make([]uint32, 0, 100)
	for n := range uint32(100) {
		many = append(many, 20000+n)
	}
	assert.Zero(t, p.asMember(otherUID, append(many, nogroup), "status").code, "one of many groups")
	p.asMember(otherUID, many, "status").fails(t, 1, "user 65534 may not use this broker", "--allow-group")
}

func TestObserverLooksAndChangesNothing(t *testing.T) {
	testkit.Need(t, "root")
	p := newPlace(t)
	require.NoError(t, os.Chmod(p.dir, 0o755))
	socket := p.file("run/b.sock")
	p.setenv("BATON_ADDRESS", socket)
	p.serve("--shared", "--observe-group", fmt.Sprint(nogroup), "--observe-uid", "4242")
	array := p.array("a.npy", "uint8", []int64{1}, []byte{9})
	require.NoError(t, os.Chmod(array, 0o644))
	p.must("set", "x", array)
	for _, args := range [][]string{{"status"}, {"ls"}, {"ls", "storages"}, {"ping", "--ready"}, {"limit"}} {
		r := p.asMember(otherUID, []uint32{nogroup}, args...)
		assert.Zero(t, r.code, r.err)
		assert.Zero(t, p.asUser(4242, args...).code)
	}
	assert.NotContains(t, p.must("events", "--kind", "refused"), "refused", "a look is no refusal")
	for _, args := range [][]string{{"delete", "x"}, {"set", "y", array}, {"get", "x", "-o", "/dev/null"}, {"tail", "t"}, {"evict", "2", "--yes"},
		{"purge", "t", "--yes"}, {"revoke", "1", "--yes"}, {"collect"}, {"limit", "--memory", "1GiB"}, {"stop"}} {
		r := p.asUser(4242, args...)
		assert.Equal(t, 1, r.code, "%v: %s", args, r.out)
		assert.Contains(t, r.err, "user 4242 may only look at this broker", args)
	}
	assert.Contains(t, p.must("ls", "names"), "x")
}

// The refusal is read also where the broker has closed the connection before the request was
// sent, as it does with most that it refuses.
func TestStopByAUserThatMayNotConnectIsRefused(t *testing.T) {
	testkit.Need(t, "root")
	p := newPlace(t)
	require.NoError(t, os.Chmod(p.dir, 0o755))
	p.setenv("BATON_ADDRESS", p.file("run/b.sock"))
	p.serve("--shared", "--allow-uid", fmt.Sprint(otherUID))
	for range 30 {
		p.asUser(otherUID+1, "stop").fails(t, 1, "user 65535 may not use this broker", "--allow-uid")
	}
}

// What another user of a shared broker may not read or write is no fault of the machine's.
func TestDoctorIsContentForOtherUsersOfASharedBroker(t *testing.T) {
	testkit.Need(t, "root")
	p := newPlace(t)
	require.NoError(t, os.Chmod(p.dir, 0o755))
	p.setenv("BATON_ADDRESS", p.file("run/b.sock"))
	p.serveNATS("--shared", "--allow-uid", fmt.Sprint(otherUID), "--observe-uid", "4242")
	for _, uid := range []uint32{otherUID, 4242} {
		r := p.asUser(uid, "doctor")
		assert.Zero(t, r.code, r.out)
		assert.Regexp(t, fmt.Sprintf(`(?m)^ok +runtime directory .* belongs to user 0, whose broker serves user %d as well$`, uid), r.out)
		assert.Regexp(t, `(?m)^ok +NATS +the broker is connected to nats://.*is for the user who started it alone`, r.out)
		p.asUser(uid, "nats").fails(t, 1, fmt.Sprintf("is for the user who started it alone: user %d may not read it", uid), "ask the user who started the broker")
	}
	r := p.asUser(4343, "doctor")
	assert.Equal(t, 1, r.code, r.out)
	assert.Regexp(t, `(?m)^fail +runtime directory .* belongs to user 0, and user 4343 may not use the broker there\n +→ ask user 0 for --shared with --allow-uid or --allow-group`, r.out)
}

// A broker that does not run as root may not kill a program of another user. Root's command does
// so itself.
func TestRootKillsWhatABrokerOfAnotherUserMayNot(t *testing.T) {
	testkit.Need(t, "root")
	p := newPlace(t)
	require.NoError(t, os.Chmod(p.dir, 0o755))
	require.NoError(t, os.Mkdir(p.file("run"), 0o755))
	require.NoError(t, os.Chown(p.file("run"), otherUID, otherUID))
	socket := p.file("run/b.sock")
	p.setenv("BATON_ADDRESS", "unix:"+socket)
	broker := p.startAs(otherUID, "serve", "--no-nats", "--shared", "--allow-uid", "4242", "--address", socket)
	p.until("the broker serves", func() bool { return p.baton("ping", "--ready").code == 0 })
	c := p.client(client.WithAddress(socket))
	_, err := c.Topic(p.ctx(), "t")
	require.NoError(t, err)
	worker := p.startAs(4242, "tail", "t")
	var rows []struct{ Serial, PID int }
	p.until("the program has a session", func() bool {
		p.json(&rows, "ls", "sessions", "baton tail")
		return len(rows) == 1
	})
	serial := fmt.Sprint(rows[0].Serial)
	p.asUser(otherUID, "evict", serial, "--kill", "--yes").fails(t, 1, fmt.Sprintf("the broker may not kill process %d of user 4242", rows[0].PID), "evict the session without --kill")
	out := p.must("evict", serial, "--kill", "--yes")
	assert.Equal(t, fmt.Sprintf("evicted session %s (baton tail, pid %d): its process was killed\n", serial, rows[0].PID), out)
	assert.Equal(t, -int(syscall.SIGKILL), worker.wait().code)
	p.json(&rows, "ls", "sessions", "baton tail")
	assert.Empty(t, rows)
	require.NoError(t, c.Close())
	broker.signal(syscall.SIGTERM)
	broker.wait()
}
