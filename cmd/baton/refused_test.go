package main_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// A client asks for larger segments the more it has. Where one is too large for the quota it
// takes a smaller one, of which no operator needs to hear.
func TestProgramThatGetsItsMemoryIsNotAmongTheRefused(t *testing.T) {
	p := newPlace(t)
	broker := p.serve("--memory", "60MiB")
	c := p.client()
	for range 13 {
		_, err := c.Alloc(p.ctx(), dlpack.Uint8, []int64{4 << 20})
		require.NoError(t, err)
	}
	assert.NotContains(t, p.must("events", "--kind", "refused"), "refused")
	assert.NotContains(t, broker.err.String(), "refused")
	_, err := c.Alloc(p.ctx(), dlpack.Uint8, []int64{48 << 20})
	require.ErrorIs(t, err, protocol.ErrQuotaExceeded)
	assert.Contains(t, p.must("events", "--kind", "refused"), "QuotaExceeded")
}

// What a user may not do has a line in the log, an event and a number, whether a session asks
// for it or a command.
func TestRefusedPermissionsAreLoggedAndCounted(t *testing.T) {
	testkit.Need(t, "root")
	p := newPlace(t)
	require.NoError(t, os.Chmod(p.dir, 0o755))
	p.setenv("BATON_ADDRESS", p.file("run/b.sock"))
	endpoint := p.file("http.sock")
	broker := p.serve("--shared", "--allow-uid", fmt.Sprint(otherUID), "--observe-uid", "4242", "--http", endpoint)
	c := p.client(client.WithAddress(p.file("run/b.sock")))
	serial := fmt.Sprint(c.Session())
	number := map[string]int{}
	for _, try := range []struct {
		uid  uint32
		op   string
		args []string
	}{
		{otherUID, "stop", []string{"stop"}},
		{otherUID, "limit", []string{"limit", "--memory", "1GiB"}},
		{otherUID, "evict", []string{"evict", serial, "--kill", "--yes"}},
		{otherUID, "lease.revoke", []string{"revoke", "5", "--yes"}},
		{4242, "stop", []string{"stop"}},
		{4242, "collect", []string{"collect"}},
		{4242, "hello", []string{"get", "n", "-o", "/dev/null"}},
		{4343, "connect", []string{"status"}},
	} {
		r := p.asUser(try.uid, try.args...)
		require.NotZero(t, r.code, "%v: %s", try.args, r.out)
		line := fmt.Sprintf("event=refused code=PermissionDenied op=%s pid=", try.op)
		broker.logs(line)
		assert.Regexp(t, regexp.QuoteMeta(line)+fmt.Sprintf(`\d+ uid=%d `, try.uid), broker.err.String())
		number[try.op]++
	}
	events := p.must("events", "--kind", "refused")
	_, body := get(t, endpoint, "/metrics")
	for op, n := range number {
		assert.Regexp(t, `op=`+op+`\s`, events)
		assert.Regexp(t, fmt.Sprintf(`(?m)^baton_requests_failed_total\{code="PermissionDenied",op="%s"\} [%d-9]$`, op, n), body)
	}
	require.NoError(t, c.Close())
}

// A command of a user that may not connect makes one connection, which is counted and logged once.
func TestARefusedCommandIsCountedOnce(t *testing.T) {
	testkit.Need(t, "root")
	p := newPlace(t)
	require.NoError(t, os.Chmod(p.dir, 0o755))
	p.setenv("BATON_ADDRESS", p.file("run/b.sock"))
	endpoint := p.file("http.sock")
	broker := p.serve("--shared", "--allow-uid", fmt.Sprint(otherUID), "--http", endpoint)
	for n, args := range [][]string{{"ping"}, {"status"}, {"ls"}, {"get", "n", "-o", "/dev/null"}, {"ping", "--timeout", "5s"}} {
		p.asUser(4343, args...).fails(t, 1, "user 4343 may not use this broker", "")
		_, body := get(t, endpoint, "/metrics")
		assert.Regexp(t, fmt.Sprintf(`(?m)^baton_requests_failed_total\{code="PermissionDenied",op="connect"\} %d$`, n+1), body, args)
	}
	broker.logs("op=connect")
	p.until("all are in the log", func() bool { return strings.Count(broker.err.String(), "event=refused") == 5 })
}
