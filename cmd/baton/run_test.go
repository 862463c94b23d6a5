package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// runs lists what `run` has in the user's runtime directory.
func (p *place) runs() []string {
	p.t.Helper()
	found, err := filepath.Glob(p.file("baton/run-*"))
	require.NoError(p.t, err)
	return found
}

// fifo makes a pipe in the file system: opening it waits for the other end.
func (p *place) fifo(name string) string {
	p.t.Helper()
	require.NoError(p.t, exec.Command("mkfifo", p.file(name)).Run())
	return p.file(name)
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

func TestRunPassesSignalsOn(t *testing.T) {
	p := newPlace(t)
	ready := p.fifo("ready")
	run := p.start(p.command("run", "--no-nats", "--", "sh", "-c",
		`trap 'echo term; exit 3' TERM; trap 'echo hup' HUP; echo > ready; while :; do read line < ready; done`))
	wait := func() {
		f, err := os.OpenFile(ready, os.O_RDONLY, 0) // returns when the command has opened it
		require.NoError(t, err)
		f.Close()
	}
	wait()
	run.signal(syscall.SIGTERM)
	// The shell looks at its traps when the read of the pipe is over.
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-run.ended:
				return
			default:
				if f, err := os.OpenFile(ready, os.O_RDWR|syscall.O_NONBLOCK, 0); err == nil {
					f.WriteString("\n")
					f.Close()
				}
			}
		}
	}()
	r := run.wait()
	<-done
	assert.Equal(t, 3, r.code, r.err)
	assert.Equal(t, "term\n", r.out)
	assert.Empty(t, p.runs())
}

func TestRunRemovesWhatAKilledOneHasLeft(t *testing.T) {
	p := newPlace(t)
	ready := p.fifo("ready")
	killed := p.start(p.command("run", "--no-nats", "--", "sh", "-c", `echo $$ > ready; exec cat ready`))
	pid, err := os.ReadFile(ready)
	require.NoError(t, err)
	require.NotEmpty(t, pid)
	living := p.start(p.command("run", "--no-nats", "--", "sh", "-c", `echo up > ready; exec cat ready`))
	_, err = os.ReadFile(ready)
	require.NoError(t, err)
	require.Len(t, p.runs(), 2)
	killed.signal(syscall.SIGKILL)
	killed.wait()
	require.Len(t, p.runs(), 2, "a killed one cannot clean up")

	p.must("run", "--no-nats", "--", "true")
	assert.Len(t, p.runs(), 1, "only that of the living one is left")
	// Both commands end when the pipe does.
	f, err := os.OpenFile(ready, os.O_WRONLY, 0)
	require.NoError(t, err)
	f.Close()
	assert.Zero(t, living.wait().code)
	assert.Empty(t, p.runs())
}

func TestRunRefusesWrongSettings(t *testing.T) {
	p := newPlace(t)
	p.baton("run", "--memory", "lots", "--", "true").fails(t, 2, `size "lots" is none`, "")
	p.setenv("BATON_MEMORY", "lots")
	p.baton("run", "--", "true").fails(t, 2, "$BATON_MEMORY", "")
}
