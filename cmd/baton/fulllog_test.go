package main_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
)

// brokersLog is how a broker says that its log is.
type brokersLog struct {
	Extra struct{ Log *struct{ Lost int } }
}

// Lines that a full file system has no room for are counted, wherever the log lies: the status, the metric and the doctor have
// the count, and so has the log at its place, in a line of its own.
func TestLinesThatAFullFileSystemHasNoRoomForAreCounted(t *testing.T) {
	t.Run("a broker that a program starts", func(t *testing.T) {
		p := newPlace(t)
		testkit.MountSmall(t, p.dir, "3m")
		p.user()
		sockets := newPlace(t)
		t.Setenv("BATON_LOG_LEVEL", "info")
		t.Setenv("BATON_LOG_FORMAT", "json")
		t.Setenv("BATON_HTTP", sockets.file("http.sock"))
		p.losesLines("baton/broker.log", sockets.file("http.sock"))
	})
	t.Run("serve", func(t *testing.T) {
		p := newPlace(t)
		testkit.MountSmall(t, p.dir, "3m")
		p.user()
		sockets := newPlace(t)
		log, err := os.OpenFile(p.file("stderr"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		require.NoError(t, err)
		defer log.Close()
		cmd := p.command("serve", "--no-nats", "--log-format", "json", "--http", sockets.file("http.sock"))
		cmd.Stderr = log
		p.launchAs(cmd).notice("READY=1")
		p.losesLines("stderr", sockets.file("http.sock"))
	})
}

// losesLines has a broker whose log and runtime directory lie in a small file system lose lines.
func (p *place) losesLines(log, endpoint string) {
	p.t.Helper()
	t := p.t
	watcher, err := p.userClient(p.ctx())
	require.NoError(t, err)
	lost := func() int {
		var s brokersLog
		require.NoError(t, watcher.Broker(p.ctx(), "status", nil, &s))
		require.NotNil(t, s.Extra.Log)
		return s.Extra.Log.Lost
	}
	connect := func() {
		c, err := client.Connect(p.ctx())
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
	require.Zero(t, lost())
	empty := testkit.Stuff(t, p.dir)
	for lost() < 20 {
		connect()
	}
	empty()
	told := func() (lines []string, told int) {
		text, err := os.ReadFile(p.file(log))
		require.NoError(t, err)
		lines = strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
		for _, line := range lines {
			var l struct {
				Msg   string
				Lines int
			}
			if json.Unmarshal([]byte(line), &l) == nil && strings.HasPrefix(l.Msg, "lines of the log were lost here") {
				told += l.Lines
			}
		}
		return lines, told
	}
	connect()
	p.until("the log tells how many lines it has lost", func() bool { _, n := told(); return n == lost() })
	all, n := told()
	for _, line := range all {
		assert.LessOrEqual(t, strings.Count(line, `{"`), 1, "a line goes on within another: %s", line)
	}
	assert.Contains(t, p.must("status"), fmt.Sprintf("%d lines lost since the broker started", n))
	_, metrics := get(t, endpoint, "/metrics")
	assert.Contains(t, metrics, fmt.Sprintf("\nbaton_log_lines_lost_total %d\n", n))
	found := p.findings()["broker's log"]
	assert.Equal(t, "warn", found.State)
	assert.Contains(t, found.Text, fmt.Sprintf("%d lines lost", n))
}

// The log of a broker that has ended may end within a line: the first line of the next broker is whole.
func TestTheNextBrokerLeavesTheCutLineOfTheLast(t *testing.T) {
	p := newPlace(t)
	p.user()
	t.Setenv("BATON_LOG_LEVEL", "info")
	require.NoError(t, os.Mkdir(p.file("baton"), 0o700))
	log := p.write("baton/broker.log", "time=2026-")
	_, err := p.userClient(p.ctx())
	require.NoError(t, err)
	p.until("the broker says that it serves", func() bool {
		text, err := os.ReadFile(log)
		return err == nil && strings.Contains(string(text), "msg=serving")
	})
	text, err := os.ReadFile(log)
	require.NoError(t, err)
	assert.Regexp(t, `\Atime=2026-\ntime=\S+ level=`, string(text))
}
