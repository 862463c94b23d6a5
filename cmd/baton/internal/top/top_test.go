package top_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/cmd/baton/internal/top"
)

func sample(second int, rows ...*broker.TopicRow) *top.Sample {
	s := &top.Sample{At: time.Unix(int64(second), 0), Topics: rows}
	s.Status.Instance, s.Status.PID = "a", 7
	s.Status.Memory.Limit, s.Status.Memory.Granted = 1<<30, 1<<29
	return s
}

func row(id uint64, name string, sent, lost uint64) *broker.TopicRow {
	return &broker.TopicRow{ID: id, Name: name, Kind: "topic", Traffic: broker.Traffic{Sent: sent, SentBytes: sent << 20, Lost: lost}}
}

// column gives a column of a table by its title.
func column(t *testing.T, table top.Table, title string) (cells []string) {
	t.Helper()
	for i, have := range table.Titles {
		if have == title {
			for _, r := range table.Rows {
				cells = append(cells, r[i])
			}
			return cells
		}
	}
	t.Fatalf("no column %q in %v", title, table.Titles)
	return nil
}

func TestRatesAreThoseBetweenTwoLooks(t *testing.T) {
	before := sample(10, row(1, "slow", 100, 0), row(2, "fast", 100, 10))
	now := sample(12, row(1, "slow", 103, 0), row(2, "fast", 2100, 30), row(3, "new", 5000, 0))
	table := top.Topics.Tabulate(now, before, top.Topics.Usual(), "")
	assert.Equal(t, []string{"fast", "slow", "new"}, column(t, table, "topic"))
	assert.Equal(t, []string{"1,000", "1.5", "0"}, column(t, table, "sent/s"))
	assert.Equal(t, []string{"1000 MiB", "1.5 MiB", "0 B"}, column(t, table, "bytes/s"))
	assert.Equal(t, []string{"10", "0", "0"}, column(t, table, "lost/s"))
	assert.Equal(t, []string{"fast"}, column(t, top.Topics.Tabulate(now, before, top.Order{}, "as"), "topic"))
	assert.Equal(t, []string{"slow", "new", "fast"}, column(t, top.Topics.Tabulate(now, before, top.Order{Reverse: true}, ""), "topic"))

	// Counts begin anew with another broker.
	before.Status.PID = 8
	assert.Equal(t, []string{"0", "0", "0"}, column(t, top.Topics.Tabulate(now, before, top.Order{}, ""), "sent/s"))
	assert.Equal(t, []string{"0", "0", "0"}, column(t, top.Topics.Tabulate(now, nil, top.Order{}, ""), "sent/s"))
	lower := sample(12, row(2, "fast", 5, 0))
	assert.Equal(t, []string{"0"}, column(t, top.Topics.Tabulate(lower, sample(10, row(2, "fast", 100, 10)), top.Order{}, ""), "sent/s"))
}

func TestTablesFitTheTerminal(t *testing.T) {
	now := sample(12, row(1, strings.Repeat("long/", 40), 1<<60, 1<<60), row(2, "日本語のトピック", 1, 1))
	table := top.Topics.Tabulate(now, nil, top.Topics.Usual(), "")
	for _, width := range []int{10, 40, 80, 200, 1000} {
		lines := table.Draw(width, top.Topics.Usual(), 0, 10)
		require.Len(t, lines, 3)
		for _, line := range lines {
			assert.LessOrEqual(t, ansi.StringWidth(line), width, "%d: %s", width, line)
		}
		assert.Contains(t, ansi.Strip(lines[0]), "TOPIC")
	}
	assert.Contains(t, ansi.Strip(table.Draw(80, top.Topics.Usual(), 0, 10)[1]), "long/lo…/long/long/ ")
	assert.Contains(t, ansi.Strip(table.Draw(200, top.Topics.Usual(), 0, 10)[0]), "READERS")
	assert.Len(t, table.Draw(80, top.Topics.Usual(), 1, 10), 2)
	assert.NotContains(t, ansi.Strip(table.Draw(80, top.Topics.Usual(), 0, 10)[0]), "READERS")
	by, _ := top.Topics.Order("readers")
	title := ansi.Strip(table.Draw(80, by, 0, 10)[0])
	assert.Contains(t, title, "READERS↓", "what it is sorted by stays")
	assert.NotContains(t, title, "WRITERS")
}

func TestNamesThatBeginAlikeStayApart(t *testing.T) {
	prefix := strings.Repeat("team/project/", 10)
	now := sample(12, row(1, prefix+"weights", 1, 1), row(2, prefix+"gradients", 1, 1))
	table := top.Topics.Tabulate(now, nil, top.Topics.Usual(), "")
	lines := table.Draw(80, top.Topics.Usual(), 0, 10)
	require.Len(t, lines, 3)
	rows := ansi.Strip(lines[1] + lines[2])
	assert.Contains(t, rows, "/weights ")
	assert.Contains(t, rows, "/gradients ")
	assert.Contains(t, rows, "team/")
}

// terminal keeps what a program draws.
type terminal struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *terminal) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *terminal) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// run shows a screen in a terminal until what it shows has a text, then presses keys, one by
// one, each until the text that stands beside it is shown.
func run(t *testing.T, width int, look top.Look, env []string, begins string, keys ...[2]string) string {
	t.Helper()
	out := &terminal{}
	in, press := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- top.New(context.Background(), look, top.Topics, top.Topics.Usual(), 100*time.Millisecond).Run(
			tea.WithInput(in), tea.WithOutput(out), tea.WithEnvironment(env), tea.WithWindowSize(width, 30))
	}()
	wait := func(text string) {
		t.Helper()
		require.Eventually(t, func() bool { return strings.Contains(out.String(), text) }, 20*time.Second, 5*time.Millisecond, "%q is not in %q", text, out.String())
	}
	wait(begins)
	for _, k := range keys {
		press.Write([]byte(k[0]))
		if k[1] != "" {
			wait(k[1])
		}
	}
	require.NoError(t, <-ended)
	return out.String()
}

func TestScreenObeysItsKeys(t *testing.T) {
	var looks int
	look := func(context.Context, bool) (*top.Sample, error) {
		looks++
		if looks == 3 {
			return nil, errors.New("the broker has gone")
		}
		s := sample(looks, row(1, "batches", uint64(looks)*1000, 0))
		s.Sessions = []*broker.SessionRow{{Serial: 4242, Name: "trainer", State: "live", Stopped: true}}
		s.Names = []*broker.NameRow{{Name: "weights/actor", Revision: 987654}}
		s.Functions = []*broker.FunctionRow{{Name: "vision/scale", Waiting: 4321}}
		return s, nil
	}
	text := run(t, 100, look, []string{"TERM=xterm-256color"}, "the broker has gone",
		[2]string{"2", "suspended"}, [2]string{"3", "987654"}, [2]string{"4", "4,321"}, [2]string{"?", "Keys"}, [2]string{"?", ""},
		[2]string{"1", ""}, [2]string{"/", "filter"}, [2]string{"zz", "zz"}, [2]string{"\r", "0 rows"}, [2]string{"q", ""})
	assert.Contains(t, text, "batches")
}

// A filter finds a row by what stands behind it, too.
func TestFilterLooksAtProgramProcessUserAndContainer(t *testing.T) {
	s := sample(1)
	s.Topics = []*broker.TopicRow{{ID: 1, Name: "batches", Namespace: "training", Creator: "loader.py"}, {ID: 2, Name: "evals", Namespace: "default", Creator: "judge.py"}}
	s.Names = []*broker.NameRow{{Name: "weights", Setter: "train.py", Namespace: "training"}, {Name: "other", Setter: "judge.py"}}
	s.Sessions = []*broker.SessionRow{{Serial: 1, Name: "train.py", PID: 4711, UID: 0, Command: "python train.py --Lr 0.1", Container: "docker-abcdef"},
		{Serial: 2, Name: "judge.py", PID: 815, UID: 4000000000, Namespace: "evaluation"}}
	s.Functions = []*broker.FunctionRow{{ID: 1, Name: "vision/scale", UID: 4000000000, Providers: []broker.ProviderRow{{Name: "serve.py", PID: 4712, UID: 0}}}, {ID: 2, Name: "sum", UID: 4000000000}}
	for _, of := range []struct {
		view   top.View
		filter string
		rows   []string
	}{
		{top.Topics, "LOADER", []string{"batches"}}, {top.Topics, "training", []string{"batches"}},
		{top.Names, "judge", []string{"other"}},
		{top.Sessions, "471", []string{"train.py"}}, {top.Sessions, "root", []string{"train.py"}}, {top.Sessions, "uid 4000000000", []string{"judge.py"}},
		{top.Sessions, "--lr", []string{"train.py"}}, {top.Sessions, "abcdef", []string{"train.py"}}, {top.Sessions, "evaluation", []string{"judge.py"}},
		{top.Sessions, "nothing", nil}, {top.Sessions, "", []string{"judge.py", "train.py"}},
		{top.Functions, "serve.py", []string{"vision/scale"}}, {top.Functions, "4712", []string{"vision/scale"}}, {top.Functions, "root", []string{"vision/scale"}},
	} {
		title := map[top.View]string{top.Topics: "topic", top.Sessions: "name", top.Names: "name", top.Functions: "function"}[of.view]
		assert.Equal(t, of.rows, column(t, of.view.Tabulate(s, nil, of.view.Usual(), of.filter), title), "%s %q", of.view, of.filter)
	}
}

// The programs of sessions, which cost the broker a look at each process, are asked for once there is a filter.
func TestScreenAsksForProgramsWhereAFilterMayNeedThem(t *testing.T) {
	look := func(_ context.Context, programs bool) (*top.Sample, error) {
		s := sample(1)
		s.Sessions = []*broker.SessionRow{{Serial: 1, Name: "trainer", PID: 1}, {Serial: 2, Name: "judge", PID: 2}}
		if programs {
			s.Sessions[0].Name, s.Sessions[0].Command = "looked-at", "python -m second_experiment"
		}
		return s, nil
	}
	text := run(t, 100, look, []string{"TERM=xterm-256color"}, "topics", [2]string{"2", "judge"}, [2]string{"/", "looked-at"}, [2]string{"second_exp", "second_exp"},
		[2]string{"\r", "1 rows"}, [2]string{"q", ""})
	assert.NotContains(t, text, "0 rows")
}

// Each part of what is said of the broker is whole, or left out.
func TestTheHeadFitsTheTerminal(t *testing.T) {
	s := sample(1)
	s.Status.Version = "0.1.0"
	s.Status.Counts.Disconnected = 2
	for _, width := range []int{45, 60, 80, 200} {
		head := top.Head(s, width)
		require.Len(t, head, 3)
		for _, line := range head {
			assert.LessOrEqual(t, ansi.StringWidth(line), width, line)
		}
		assert.Contains(t, head[2], "(2 disconnected)")
		assert.Regexp(t, `\d (topics|queues|functions|names|leases|storages held)$|closed\)$`, head[2])
	}
	assert.Regexp(t, "functions.*names.*leases.*storages held", top.Head(s, 200)[2])
	s.Status.Memory = broker.MemoryStatus{Limit: 1 << 30, Granted: 96 << 20, Held: 40 << 20, Left: 1<<30 - 99<<20, ForChildren: 8 << 20, Lanes: 3 << 20}
	s.Status.Devices = []broker.DeviceStatus{{ID: 1, Granted: 5 << 20, Held: 4 << 20}}
	assert.Regexp(t, `96 MiB of 1.0 GiB granted, 40 MiB held, 925 MiB left, 8.0 MiB held for children, 3.0 MiB in lanes, cuda:1: 5.0 MiB granted, 4.0 MiB held$`, top.Head(s, 200)[1])
	assert.Regexp(t, `96 MiB of 1.0 GiB granted, 40 MiB held, 925 MiB left$`, top.Head(s, 80)[1])
	assert.Regexp(t, `\[#*\.*\] 96`, top.Head(s, 80)[1])
	s.Sessions = []*broker.SessionRow{{Name: "parent", State: "live", ForChildren: true}}
	assert.Contains(t, top.Sessions.Tabulate(s, nil, top.Sessions.Usual(), "").Rows[0], "live, for children")
}

// The help is whole on a narrow terminal, which cuts what is wider.
func TestHelpOfTheScreenFitsTheTerminal(t *testing.T) {
	look := func(context.Context, bool) (*top.Sample, error) { return sample(1), nil }
	for _, width := range []int{60, 80, 200} {
		text := ansi.Strip(run(t, width, look, []string{"TERM=xterm-256color"}, "topics", [2]string{"?", "goes back"}, [2]string{"q", ""}))
		for _, word := range []string{"messages; lost", "lossless", "released", "three times", "half and 99"} {
			words := strings.Fields(word)
			assert.Regexp(t, strings.Join(words, `\s+`), text, "%d", width)
		}
	}
}

func TestNothingOfABrokerIsAnError(t *testing.T) {
	_, known := top.Parse("weather")
	assert.False(t, known)
	_, known = top.Sessions.Order("weather")
	assert.False(t, known)
	by, known := top.Sessions.Order("Granted")
	assert.True(t, known)
	assert.Equal(t, "granted", top.Sessions.SortedBy()[by.Column])
	for _, name := range top.Views() {
		v, known := top.Parse(name)
		assert.True(t, known)
		assert.Equal(t, name, fmt.Sprint(v))
		assert.Empty(t, v.Tabulate(&top.Sample{}, nil, v.Usual(), "").Rows)
		for c := range v.Columns() {
			v.Tabulate(&top.Sample{}, &top.Sample{}, top.Order{Column: c}, "")
		}
	}
}
