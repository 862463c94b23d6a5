package main_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/termtext"
)

// atTerminal gives the lines that a command prints at a terminal of a width.
func (p *place) atTerminal(columns int, args ...string) []string {
	p.t.Helper()
	r := p.onTerminal("", columns, args...)
	require.Zero(p.t, r.code, r.out)
	return lines(strings.ReplaceAll(r.out, "\r", ""))
}

// busy has a broker in which there is something of each kind, with names of usual lengths.
func (p *place) busy() (storage string) {
	p.t.Helper()
	c, d := p.client(client.WithName("collect_rollouts.py")), p.client(client.WithName("train_the_policy.py"))
	x := p.tensor(c, 1024)
	_, err := c.Set(p.ctx(), "weights/actor", x)
	require.NoError(p.t, err)
	_, err = x.Handle(p.ctx(), client.LeaseFor(time.Hour))
	require.NoError(p.t, err)
	topic, err := c.Topic(p.ctx(), "batches/train", client.Overwrite(false))
	require.NoError(p.t, err)
	same, err := d.Topic(p.ctx(), "batches/train")
	require.NoError(p.t, err)
	_, err = same.Reader(p.ctx())
	require.NoError(p.t, err)
	require.NoError(p.t, topic.Send(p.ctx(), x))
	queue, err := c.Queue(p.ctx(), "rollouts", client.Redeliver(true))
	require.NoError(p.t, err)
	taker, err := d.Queue(p.ctx(), "rollouts")
	require.NoError(p.t, err)
	require.NoError(p.t, queue.Put(p.ctx(), x))
	_, err = taker.Get(p.ctx())
	require.NoError(p.t, err)
	asked, let := make(chan struct{}), make(chan struct{})
	p.t.Cleanup(func() { close(let) })
	provides(p, d, "vision/scale@1.2", func(_ context.Context, in scaled) (*client.Tensor, error) {
		close(asked)
		<-let
		return in.Image, nil
	})
	go client.Call[*client.Tensor](context.Background(), c, "vision/scale", x)
	<-asked
	var rows []broker.StorageRow
	p.json(&rows, "ls", "storages")
	require.NotEmpty(p.t, rows)
	return strconv.Itoa(int(rows[0].Index))
}

// Each table fits a terminal of 80 columns, and one of 60.
func TestEachTableFitsTheTerminal(t *testing.T) {
	p := newPlace(t)
	p.serve()
	storage := p.busy()
	var commands [][]string
	for _, what := range []string{"names", "topics", "functions", "sessions", "segments", "storages", "leases"} {
		commands = append(commands, []string{"ls", what})
	}
	for _, kind := range [][]string{{"name", "weights/actor"}, {"topic", "batches/train"}, {"queue", "rollouts"}, {"function", "vision/scale@1.2"}, {"session", "collect_rollouts.py"}, {"storage", storage}} {
		commands = append(commands, append([]string{"show"}, kind...), append([]string{"why"}, kind...))
	}
	for _, view := range []string{"topics", "sessions", "names", "functions"} {
		commands = append(commands, []string{"top", view, "-n", "1", "-i", "100ms"})
	}
	commands = append(commands, []string{"status"}, []string{"limit"})
	for _, columns := range []int{60, 80} {
		for _, args := range commands {
			what := strings.Join(args, " ")
			text := p.atTerminal(columns, args...)
			for _, line := range text {
				if len(strings.Fields(line)) == 1 {
					continue // a path, or the like, stays whole
				}
				assert.LessOrEqual(t, len([]rune(line)), columns, "%s at %d: %s", what, columns, line)
			}
		}
	}
}

// What is left out of a table is named below it, commands stay whole, and nothing is left out of what
// does not go to a terminal.
func TestWhatATableHasNoRoomForIsNamed(t *testing.T) {
	p := newPlace(t)
	p.serve()
	p.busy()
	const no = "there is no room for "
	text := strings.Join(p.atTerminal(80, "ls", "sessions"), "\n")
	assert.Regexp(t, `^SESSION +NAME +PID +UID +STATE +GRANTED +HELD +LANES\n`, text)
	assert.True(t, strings.HasSuffix(text, "\n"+no+"language, namespace, connected: --json shows them"), text)
	text = strings.Join(p.atTerminal(60, "ls", "sessions"), "\n")
	assert.Regexp(t, `^SESSION +NAME +PID +STATE +GRANTED +HELD\n`, text)
	assert.Contains(t, text, " collect_rollouts.py ")
	assert.NotContains(t, strings.Join(p.atTerminal(120, "ls", "sessions"), "\n"), no)
	assert.NotContains(t, p.must("ls", "sessions"), no)
	text = strings.Join(p.atTerminal(60, "why", "name", "weights/actor"), "\n")
	assert.Regexp(t, `\n  or: baton revoke \d+\n`, text)
	assert.Contains(t, text, "\n  or: baton delete weights/actor\n")
	assert.Regexp(t, `(?m) ENDS +OR$`, p.must("why", "name", "weights/actor"))
}

// Characters that take two cells of a terminal count as two.
func TestTablesFitWhereNamesAreWide(t *testing.T) {
	p := newPlace(t)
	p.setenv("LC_ALL", "C.UTF-8")
	p.serve()
	c := p.client(client.WithName("训练数据预处理程序第1号.py"))
	_, err := c.Set(p.ctx(), "weights/actor", p.tensor(c, 1))
	require.NoError(t, err)
	for _, columns := range []int{60, 80} {
		for _, args := range [][]string{{"ls", "sessions"}, {"ls", "names"}, {"ls", "storages"}, {"why", "name", "weights/actor"}} {
			r := p.onTerminal("", columns, args...)
			require.Zero(t, r.code, r.out)
			assert.Contains(t, r.out, "训练")
			for line := range strings.Lines(r.out) {
				assert.LessOrEqual(t, termtext.Columns(strings.TrimRight(line, "\r\n")), columns, "%v: %s", args, line)
			}
		}
	}
	assert.Contains(t, p.must("why", "session", "训练数据预处理程序第1号.py"), fmt.Sprintf("训练数据预处理程序第1号.py (pid %d)", os.Getpid()))
	for _, args := range [][]string{{"show", ""}, {"why", "queue", ""}} {
		p.baton(args...).fails(t, 2, "has an empty name", "")
	}
}

// At 80 columns each listing keeps what it is asked for, however long the names and paths are: these are
// shortened first, then columns that matter less are left out.
func TestListingsKeepWhatTheyAreReadFor(t *testing.T) {
	p := newPlace(t)
	p.serveNATS()
	const program = "train_the_policy_of_the_second_experiment.py"
	c := p.client(client.WithName(program))
	d := p.client(client.WithName("evaluate_all_checkpoints_of_the_week.py"))
	long := "experiments/2026/second/policy/weights/of/the/actor"
	x := p.tensor(c, 1<<20)
	for range 3 {
		_, err := c.Set(p.ctx(), long, x)
		require.NoError(t, err)
	}
	_, err := c.Set(p.ctx(), "live", x, client.Live(), client.Ephemeral())
	require.NoError(t, err)
	_, err = d.Watch(p.ctx(), long)
	require.NoError(t, err)
	held, err := d.Get(p.ctx(), long)
	require.NoError(t, err)
	defer held.Release()
	_, err = x.Handle(p.ctx(), client.LeaseFor(time.Hour))
	require.NoError(t, err)
	topic, err := c.Topic(p.ctx(), long, client.Overwrite(false), client.Depth(1000))
	require.NoError(t, err)
	same, err := d.Topic(p.ctx(), long)
	require.NoError(t, err)
	_, err = same.Reader(p.ctx())
	require.NoError(t, err)
	require.NoError(t, topic.Send(p.ctx(), x))
	provides(p, d, long, func(_ context.Context, in scaled) (*client.Tensor, error) { return in.Image, nil })
	// Both ends of what a row is called, and each column that the listing is read for.
	for what, columns := range map[string][]string{
		"names":     {"NAME", "REVISION", "BYTES", "READERS"},
		"topics":    {"TOPIC", "KIND", "STATE", "READERS", "KEPT"},
		"functions": {"FUNCTION", "PROVIDERS", "RUNNING", "WAITING"},
		"sessions":  {"SESSION", "NAME", "PID", "STATE", "GRANTED", "HELD"},
		"segments":  {"SEGMENT", "BYTES", "STATE", "OWNER", "STORAGES"},
		"storages":  {"STORAGE", "BYTES", "MADE BY", "HELD BY"},
		"leases":    {"LEASE", "MADE BY", "UNREAD", "ENDS"},
	} {
		text := p.atTerminal(80, "ls", what)
		all := strings.Join(text, "\n")
		head := "  " + text[0] + "  "
		for _, column := range columns {
			assert.Contains(t, head, " "+column+" ", "%s\n%s", what, all)
		}
		shown := long
		if !strings.Contains("names topics functions", what) {
			shown = program
		}
		ends := regexp.QuoteMeta(shown[:12]) + `\S*…\S*` + regexp.QuoteMeta(shown[len(shown)-5:])
		if what == "storages" { // a list
			ends = regexp.QuoteMeta(shown[:8]) + `\S*…`
		}
		assert.Regexp(t, ends, all, what)
		for _, line := range text {
			assert.LessOrEqual(t, termtext.Columns(line), 80, line)
		}
	}
	text := p.atTerminal(80, "top", "sessions", "--sort", "held", "-n", "1", "-i", "100ms")
	assert.Regexp(t, ` HELD$`, text[1], "what it is sorted by stays")
	text = p.atTerminal(80, "top", "names", "-n", "1", "-i", "100ms")
	for _, column := range []string{"NAME", "REVISION", "BYTES", "READERS"} {
		assert.Contains(t, text[1]+" ", column+" ")
	}
}
