package main_test

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
)

func TestTopCountsWhatFlows(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client(client.WithNamespace("other"))
	topic, err := c.Topic(p.ctx(), "batches", client.Depth(4))
	require.NoError(t, err)
	r, err := topic.Reader(p.ctx())
	require.NoError(t, err)
	x := p.tensor(c, 1024)
	for range 10 {
		require.NoError(t, topic.Send(p.ctx(), x))
	}
	m, err := r.Receive(p.ctx())
	require.NoError(t, err)
	lost := m.Lost
	m.Release()
	var sample struct {
		Topics   []broker.TopicRow
		Sessions []broker.SessionRow
	}
	require.NoError(t, json.Unmarshal([]byte(p.must("top", "--json", "-n", "1")), &sample))
	require.Len(t, sample.Topics, 1)
	assert.Equal(t, broker.Traffic{Sent: 10, SentBytes: 10 * 4096, Taken: 1, Lost: lost}, sample.Topics[0].Traffic)
	assert.Equal(t, sample.Topics[0].Traffic, sample.Sessions[0].Traffic)

	// Tensors of 4 KiB in one storage, which the sender counts for the messages that are kept as well.
	var status broker.Status
	p.json(&status, "status")
	assert.Equal(t, uint64(4096), status.Memory.Held)
	assert.Greater(t, status.Memory.Granted, status.Memory.Held)
	assert.NotZero(t, status.Memory.Lanes)
	text := p.must("status")
	assert.Regexp(t, `(?m)^memory granted +\S+ \S+ of .*, and \S+ \S+ in lanes$`, text)
	assert.Regexp(t, `(?m)^memory held +4\.0 KiB$`, text)
	text = p.must("top", "-n", "1", "-i", "100ms")
	assert.NotContains(t, text, "\x1b", "without a terminal there is no colour")
	assert.Regexp(t, `(?m)^TOPIC +KIND +NAMESPACE +SENT/S +BYTES/S .*READERS$`, text)
	assert.Regexp(t, `(?m)^batches +topic +other +0 +0 B`, text)
	assert.Regexp(t, `(?m)^ +\d+ +tester +\d+ +live`, p.must("top", "sessions", "-n", "1", "-i", "100ms"))
	p.baton("top", "weather").fails(t, 2, "weather", "")
	p.baton("top", "--interval", "1ms").fails(t, 2, "100ms", "")
}

// In a terminal it shows what happens to its broker, in colour unless that is unwanted.
func TestTopInATerminal(t *testing.T) {
	script, err := exec.LookPath("script")
	if err != nil {
		t.Skip("no script(1), which gives a program a terminal (Debian: bsdutils)")
	}
	for columns, colour := range map[int]bool{80: true, 200: false} {
		p := newPlace(t)
		s := p.serve()
		_, err := p.client().Topic(p.ctx(), "batches/train")
		require.NoError(t, err)
		cmd := p.command()
		cmd.Args = []string{script, "-qec", fmt.Sprintf("stty cols %d rows 30; %q top -i 100ms", columns, cmd.Path), "/dev/null"}
		cmd.Path = script
		cmd.Env = append(cmd.Env, "TERM=xterm-256color")
		if !colour {
			cmd.Env = append(cmd.Env, "NO_COLOR=1")
		}
		keys, err := cmd.StdinPipe()
		require.NoError(t, err)
		shown := p.start(cmd)
		shows := func(text string) {
			t.Helper()
			p.until(text, func() bool { return strings.Contains(shown.out.String(), text) })
		}
		shows("granted, 0 B held")
		shows("batches/train")
		for title, from := range map[string]int{"SENT/S": 0, "LOST/S": 80, "READERS": 200} {
			assert.Equal(t, columns >= from, strings.Contains(shown.out.String(), title), "%s of %d columns", title, columns)
		}
		s.freeze()
		shows("no answer: the broker at ")
		s.signal(syscall.SIGCONT)
		io.WriteString(keys, "2") // sessions, of which one is new
		_, err = p.client(client.WithName("later")).Topic(p.ctx(), "batches/later")
		require.NoError(t, err)
		shows("later")
		require.NoError(t, s.cmd.Process.Kill())
		s.wait()
		shows("no broker answers")
		p.serve()
		io.WriteString(keys, "?")
		shows("Keys")
		io.WriteString(keys, "q")
		r := shown.wait()
		assert.Zero(t, r.code, r.out)
		assert.Equal(t, colour, regexp.MustCompile(`\x1b\[[0-9;]*3[0-7]m`).MatchString(r.out), "%q", r.out)
	}
}

func TestASuspendedProcessIsShown(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	_, err := c.Topic(p.ctx(), "batches")
	require.NoError(t, err)
	reader := p.start(p.command("tail", "batches"))
	p.until("it reads", func() bool { return p.hasSession("baton tail") })
	reader.signal(syscall.SIGSTOP)
	stopped := func() (is bool) {
		var rows []broker.SessionRow
		p.json(&rows, "ls", "sessions")
		for _, r := range rows {
			is = is || r.Name == "baton tail" && r.Stopped
		}
		return is
	}
	p.until("it is seen", stopped)
	text := p.must("show", "session", fmt.Sprint(reader.cmd.Process.Pid))
	assert.Regexp(t, `(?m)^process +is suspended`, text)
	assert.Regexp(t, `(?m)^command +.*baton tail batches$`, text)
	assert.Regexp(t, fmt.Sprintf(`(?m)^user +(\w+ \()?uid %d\)?$`, os.Getuid()), text)
	assert.Contains(t, p.must("ls", "sessions"), "live, suspended")
	assert.Contains(t, p.must("why", "session", fmt.Sprint(reader.cmd.Process.Pid)), "live, suspended")
	assert.Regexp(t, `(?m)baton tail +\d+ +suspended`, p.must("top", "sessions", "-n", "1", "-i", "100ms"))
	reader.signal(syscall.SIGCONT)
	p.until("it goes on", func() bool { return !stopped() })
	reader.signal(syscall.SIGINT)
	reader.wait()
}

func TestTopThatASignalEndsSaysSo(t *testing.T) {
	p := newPlace(t)
	p.serve()
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		top := p.start(p.command("top", "-i", "100ms", "--json"))
		p.until("it has printed", func() bool { return top.out.String() != "" })
		top.signal(s)
		assert.Equal(t, 128+int(s), top.wait().code)
	}
}

// A command that goes on without a terminal says that it waits for a broker, and goes on with the
// next one.
func TestWatchingCommandsSayThatTheBrokerHasEnded(t *testing.T) {
	p := newPlace(t)
	first := p.serve()
	var all []*running
	for _, args := range [][]string{{"top", "-i", "100ms", "--json"}, {"top", "-i", "100ms"}, {"events", "-f"}} {
		all = append(all, p.start(p.command(args...)))
	}
	p.client() // an event
	for _, r := range all {
		p.until("it has printed", func() bool { return r.out.String() != "" })
	}
	p.must("stop")
	first.wait()
	printed := make([]int, len(all))
	for i, r := range all {
		p.until("it says so", func() bool {
			return r.err.String() == "baton: the broker has ended, or cannot be reached: waiting for the next one\n"
		})
		printed[i] = len(r.out.String())
	}
	p.serve()
	p.client()
	for i, r := range all {
		p.until("it goes on", func() bool { return len(r.out.String()) > printed[i] })
	}
}

// Private topics, such as those for replies, are counted in one line unless they are asked for; functions have a table.
func TestTopAndLsShowFunctionsAndNoPrivateTopics(t *testing.T) {
	p := newPlace(t)
	p.serve()
	called(p)
	_, err := p.client().Queue(p.ctx(), "items")
	require.NoError(t, err)
	const left = "1 private topic or queue is not shown: --all shows it"
	for _, args := range [][]string{{"ls", "topics"}, {"ls"}, {"top", "-n", "1", "-i", "100ms"}} {
		text := p.must(args...)
		assert.Contains(t, text, "items")
		assert.NotContains(t, text, "(private ", args)
		assert.Contains(t, text, left, args)
		text = p.must(append(args, "--all")...)
		assert.Contains(t, text, "(private ", args)
		assert.NotContains(t, text, left, args)
	}
	var rows []broker.TopicRow
	p.json(&rows, "ls", "topics")
	assert.Len(t, rows, 1)
	p.json(&rows, "ls", "topics", "--all")
	assert.Len(t, rows, 2)

	assert.Regexp(t, `(?m)^vision/scale@2 +default +0 +0 +0 +0 +1 +0 +\S+ \S+ +\S+ \S+ +3 +1 +1$`, p.must("top", "functions", "-n", "1", "-i", "100ms"))
	var sample struct {
		Functions []broker.FunctionRow
		Private   int `json:"private_topics"`
	}
	p.json(&sample, "top", "-n", "1", "-i", "100ms")
	require.Len(t, sample.Functions, 1)
	assert.Equal(t, uint64(3), sample.Functions[0].Calls)
	assert.Equal(t, 1, sample.Private)
	p.baton("top", "weather").fails(t, 2, "topics, sessions, names, functions", "")
}
