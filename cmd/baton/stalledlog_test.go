package main_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/testkit"
)

// filler is what a full pipe has before anything else is written.
const filler = '.'

// fullPipe is a pipe that has room for nothing.
func fullPipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() {
		r.Close()
		w.Close()
	})
	page := []byte(strings.Repeat(string(filler), 4096))
	for err == nil {
		require.NoError(t, w.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
		_, err = w.Write(page)
	}
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	return r, w
}

// stall gives a command a standard error that takes nothing until the returned file is read.
func stall(t *testing.T, cmd *exec.Cmd) *os.File {
	t.Helper()
	r, w := fullPipe(t)
	cmd.Stderr = w
	return r
}

// A broker serves, and its log is told to lose lines, while nothing reads its log; once it is read again, the log says
// at the place how many lines it has lost.
func TestABrokerServesWhileNothingReadsItsLog(t *testing.T) {
	p := newPlace(t)
	endpoint := fmt.Sprintf("127.0.0.1:%d", testkit.HeldPort(t))
	cmd := p.command("serve", "--no-nats", "--log-level", "debug", "--http", endpoint)
	read := stall(t, cmd)
	broker := p.launchAs(cmd)
	broker.notice("READY=1")
	c := p.client()
	x := p.tensor(c, 1)
	set := 0
	lost := func() (n int) {
		_, metrics := fetch(t, "http://"+endpoint+"/metrics", "")
		_, err := fmt.Sscanf(regexp.MustCompile(`(?m)^baton_log_lines_lost_total (\S+)$`).FindString(metrics), "baton_log_lines_lost_total %d", &n)
		require.NoError(t, err, metrics)
		return n
	}
	assert.Zero(t, lost())
	name := func(i int) string { return fmt.Sprintf("%s/%d", strings.Repeat("n", 180), i) }
	for lost() == 0 {
		for range 100 {
			_, err := c.Set(p.ctx(), name(set), x)
			require.NoError(t, err)
			set++
		}
	}
	p.must("ping")
	status, _ := fetch(t, "http://"+endpoint+"/healthz", "")
	assert.Equal(t, 200, status)
	stalls := regexp.MustCompile(`(?m)^log +\d+ lines lost since the broker started; nothing has read it for \d+ s$`)
	p.until("the status shows it", func() bool { return stalls.MatchString(p.must("status")) })
	found := p.findings()["broker's log"]
	assert.Equal(t, "warn", found.State)
	assert.Contains(t, found.Text, "lines lost")

	log := bufio.NewReader(read)
	next := func() string {
		line, err := log.ReadString('\n')
		require.NoError(t, err)
		return strings.TrimLeft(line, string(filler))
	}
	count := 0
	var line string
	for line = next(); !strings.Contains(line, "lines of the log were lost here"); line = next() {
		if strings.Contains(line, `msg="name set"`) {
			require.Contains(t, line, "name="+name(count)+" ", "none is missing before")
			count++
		}
	}
	var told int
	_, err := fmt.Sscanf(line[strings.Index(line, "lines="):], "lines=%d", &told)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, told, set-count)
	assert.Equal(t, lost(), told)
	p.until("the log is read", func() bool { return !strings.Contains(p.must("status"), "nothing has read") })
	go func() { broker.cmd.Process.Signal(syscall.SIGTERM) }()
	for !strings.Contains(line, "msg=ended") { // which is written before the process ends
		line = next()
		require.NotContains(t, line, "lost here")
	}
	require.Zero(t, broker.wait().code)
}

func TestABrokerEndsThoughNothingReadsItsLog(t *testing.T) {
	for what, status := range map[string]int{"TERM": 0, "stop": 0} {
		t.Run(what, func(t *testing.T) {
			p := newPlace(t)
			cmd := p.command("serve", "--no-nats")
			stall(t, cmd)
			broker := p.launchAs(cmd)
			broker.notice("READY=1")
			if what == "stop" {
				p.must("stop")
			} else {
				broker.signal(syscall.SIGTERM)
			}
			assert.Equal(t, status, broker.wait().code)
		})
	}
	t.Run("a second signal", func(t *testing.T) {
		p := newPlace(t)
		url := muteNATS(t) // its answer is what the end waits for
		cmd := p.command("serve", "--nats", url, "--drain-timeout", "1h")
		stall(t, cmd)
		broker := p.launchAs(cmd)
		broker.notice("READY=1")
		p.until("it has joined", func() bool { return strings.Contains(p.must("status"), "joined, connected "+url) })
		broker.signal(syscall.SIGTERM)
		broker.notice("STOPPING=1")
		p.until("it ends", func() bool { return broker.cmd.Process.Signal(syscall.SIGINT) != nil })
		assert.Equal(t, 128+int(syscall.SIGINT), broker.wait().code)
	})
	t.Run("an error", func(t *testing.T) {
		p := newPlace(t)
		p.serve()
		cmd := p.command("serve", "--no-nats")
		stall(t, cmd)
		assert.Equal(t, 1, p.start(cmd).wait().code)
		cmd = p.command("serve", "--no-nats", "--config", p.file("none"))
		stall(t, cmd)
		assert.Equal(t, 2, p.start(cmd).wait().code)
	})
}

func TestRunGoesOnThoughNothingReadsItsLog(t *testing.T) {
	p := newPlace(t)
	cmd := p.command("run", "--no-nats", "--log-level", "info", "--", "sh", "-c", `"$0" limit --memory 1GiB && "$0" ping`, binary)
	stall(t, cmd)
	r := p.start(cmd).wait()
	assert.Zero(t, r.code)
	assert.Contains(t, r.out, ": serving")
}

// The reader of a broker's log may end before it.
func TestRunGoesOnWithoutTheReaderOfItsLog(t *testing.T) {
	p := newPlace(t)
	cmd := p.command("run", "--no-nats", "--log-level", "info", "--", "sh", "-c", `"$0" limit --memory 1GiB && until "$0" status | grep lost; do :; done`, binary)
	read, write, err := os.Pipe()
	require.NoError(t, err)
	defer write.Close()
	read.Close()
	cmd.Stderr = write
	r := p.start(cmd).wait()
	assert.Zero(t, r.code)
	assert.Regexp(t, `(?m)^log +\d+ lines lost since the broker started$`, r.out)
}

// What a broker says before it fails is in its log, with the error behind it.
func TestTheLogOfABrokerThatFailsIsWhole(t *testing.T) {
	p := newPlace(t)
	p.serve()
	for range 10 {
		r := p.launch("--no-nats", "--http", "127.0.0.1:0").wait()
		assert.Equal(t, 1, r.code)
		assert.Regexp(t, `\Atime=.* msg="HTTP endpoint" .*\nbaton: .*\n  what to do: .*\n\z`, r.err)
	}
}
