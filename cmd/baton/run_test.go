package main_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/testkit"
)

// runs lists what `run` has in the user's runtime directory.
func (p *place) runs() []string {
	p.t.Helper()
	found, err := filepath.Glob(p.file("baton/run-*"))
	require.NoError(p.t, err)
	return found
}

func TestRunGivesItsCommandABrokerForItsLife(t *testing.T) {
	p := newPlace(t)
	p.setenv("PROGRAM", binary)
	p.setenv("BATON_ADDRESS", "unix:"+p.file("another.sock")) // not that one
	file := p.array("a.npy", "float32", []int64{2}, make([]byte, 8))
	out := p.must("run", "--no-nats", "--memory", "64M", "--", "sh", "-ec",
		`echo "$BATON_ADDRESS"; "$PROGRAM" set x "$1"; "$PROGRAM" ls names --json; "$PROGRAM" status --json`, "sh", file)
	address := lines(out)[0]
	assert.Regexp(t, `^unix:`+p.dir+`/baton/run-\d+/broker\.sock$`, address)
	assert.Contains(t, out, `"name": "x"`)
	assert.Contains(t, out, `"limit": 67108864`)

	gone(t, strings.TrimPrefix(address, "unix:"))
	assert.Empty(t, p.runs())
	gone(t, p.socket())
}

func TestRunPassesTheStatusOn(t *testing.T) {
	p := newPlace(t)
	for _, c := range []struct {
		code int
		args []string
	}{
		{0, []string{"true"}},
		{7, []string{"sh", "-c", "exit 7"}},
		{128 + 9, []string{"sh", "-c", "kill -9 $$"}},
		{127, []string{"no-such-command"}},
		{127, []string{"./no-such-file"}},
		{126, []string{"/etc/passwd"}},
	} {
		r := p.baton(append([]string{"run", "--no-nats", "--"}, c.args...)...)
		assert.Equal(t, c.code, r.code, "%v: %s", c.args, r.err)
		assert.Empty(t, p.runs())
	}
}

func TestRunPassesArgumentsAndStreamsOn(t *testing.T) {
	p := newPlace(t)
	r := p.batonWith(strings.NewReader("in"), "run", "--no-nats", "sh", "-c", `cat; echo " $1 $2"; echo err >&2`, "sh", "--memory", "a b")
	assert.Equal(t, 0, r.code, r.err)
	assert.Equal(t, "in --memory a b\n", r.out, "flags behind the command are the command's")
	assert.Equal(t, "err\n", r.err)
}

// What the broker of a command says is what that of `serve` says; by default the command's standard error has warnings alone.
func TestRunSaysWhatItsBrokerIs(t *testing.T) {
	p := newPlace(t)
	p.setenv("BATON_MEMROY", "64MiB")
	r := p.baton("run", "--no-nats", "--", "true")
	assert.Zero(t, r.code)
	assert.Regexp(t, `\A\S+ level=WARN msg="\$BATON_MEMROY is no setting: BATON_MEMORY is"\n\z`, r.err)
	r = p.baton("run", "--no-nats", "--log-level", "info", "--memory", "64MiB", "--", "sh", "-c", `echo "$BATON_ADDRESS"`)
	assert.Zero(t, r.code)
	assert.Regexp(t, `(?m)^\S+ level=INFO msg=serving socket=`+regexp.QuoteMeta(strings.TrimPrefix(lines(r.out)[0], "unix:"))+` pid=\d+ version=\S+ memory="64 MiB" instance=\w+$`, r.err)
	assert.Regexp(t, `(?m)^\S+ level=INFO msg=ended after=\S+ error=none\n\z`, r.err)
}

func TestRunPassesSignalsOn(t *testing.T) {
	p := newPlace(t)
	run, next := p.follow(p.command("run", "--no-nats", "--", "sh", "-c",
		`trap 'echo term; kill $!; exit 3' TERM; trap 'echo hup' HUP; trap 'echo int' INT
		tail -f /dev/null >/dev/null 2>&1 & echo ready; wait; wait; wait`))
	require.Equal(t, "ready", next())
	run.signal(syscall.SIGHUP)
	assert.Equal(t, "hup", next())
	run.signal(syscall.SIGINT) // its input is /dev/null: no terminal has sent this to the command
	assert.Equal(t, "int", next())
	run.signal(syscall.SIGTERM)
	assert.Equal(t, "term", next())
	assert.Equal(t, 3, run.wait().code)
	assert.Empty(t, p.runs())
}

func TestRunRemovesWhatAKilledOneHasLeft(t *testing.T) {
	p := newPlace(t)
	// run starts a command that lasts until its standard input ends.
	run := func() (*running, io.Closer) {
		cmd := p.command("run", "--no-nats", "--", "sh", "-c", "echo up; exec cat")
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		r, next := p.follow(cmd)
		require.Equal(t, "up", next())
		return r, in
	}
	killed, killedIn := run()
	living, livingIn := run()
	require.Len(t, p.runs(), 2)
	killed.signal(syscall.SIGKILL)
	killedIn.Close()
	assert.Equal(t, -int(syscall.SIGKILL), killed.wait().code)
	require.Len(t, p.runs(), 2, "a killed one cannot clean up")

	p.must("run", "--no-nats", "--", "true")
	assert.Len(t, p.runs(), 1, "only that of the living one is left")
	livingIn.Close()
	assert.Zero(t, living.wait().code)
	assert.Empty(t, p.runs())
}

func TestRunRefusesWrongSettings(t *testing.T) {
	p := newPlace(t)
	p.baton("run", "--memory", "lots", "--", "true").fails(t, 2, `"lots" is not a size`, "")
	p.setenv("BATON_MEMORY", "lots")
	p.baton("run", "--", "true").fails(t, 2, "$BATON_MEMORY", "")
}

func TestRunCollectsOrphansAsTheFirstProcess(t *testing.T) {
	testkit.Need(t, "root")
	p := newPlace(t)
	cmd := p.command("run", "--no-nats", "--", "sh", "-c", `for i in 1 2 3 4 5; do (true & ); done; echo ready; read line; exit 5`)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	run, next := p.follow(cmd)
	require.Equal(t, "ready", next())
	// Its children: itself once more, which runs the command, and no process that has ended.
	p.until("all orphans are collected", func() bool {
		var children []string // of all of its threads
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", cmd.Process.Pid))
		require.NoError(t, err)
		for _, file := range files {
			some, _ := os.ReadFile(file) // of a thread that may have ended
			children = append(children, strings.Fields(string(some))...)
		}
		for _, child := range children {
			stat, err := os.ReadFile("/proc/" + child + "/stat")
			if err == nil && strings.Contains(string(stat), ") Z ") {
				return false
			}
		}
		return len(children) == 1
	})
	in.Close()
	assert.Equal(t, 5, run.wait().code)
	assert.Empty(t, p.runs())
}
