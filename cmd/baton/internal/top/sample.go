package top

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/internal/termtext"
	"github.com/baton-ipc/baton/protocol"
)

// Sample is what one look at a broker has found.
type Sample struct {
	At       time.Time            `json:"at"`
	Status   broker.Status        `json:"status"`
	Topics   []*broker.TopicRow   `json:"topics"`
	Sessions []*broker.SessionRow `json:"sessions"`
	Names    []*broker.NameRow    `json:"names"`
	// Functions are the registered ones.
	Functions []*broker.FunctionRow `json:"functions"`
	// Private are how many topics and queues without a name were left out of Topics.
	Private int              `json:"private_topics,omitempty"`
	Events  []protocol.Event `json:"events"` // the newest
}

// LeaveOutPrivate leaves out topics and queues without a name: each caller of functions has one for its replies.
func (s *Sample) LeaveOutPrivate() {
	all := len(s.Topics)
	s.Topics = slices.DeleteFunc(s.Topics, IsPrivate)
	s.Private = all - len(s.Topics)
}

// IsPrivate tells whether a topic or queue never had a name.
func IsPrivate(r *broker.TopicRow) bool { return r.Name == "" && r.Former == "" }

// LeftOut says in one line how many private topics are not shown; "": all are.
func LeftOut(private int) string {
	switch private {
	case 0:
		return ""
	case 1:
		return "1 private topic or queue is not shown: --all shows it"
	}
	return termtext.Count(int64(private)) + " private topics and queues are not shown: --all shows them"
}

// View is one of the tables.
type View int

// The tables.
const (
	Topics View = iota
	Sessions
	Names
	Functions
	views
)

func (v View) String() string { return [...]string{"topics", "sessions", "names", "functions"}[v] }

// Views lists the tables by their names.
func Views() (all []string) {
	for v := range views {
		all = append(all, v.String())
	}
	return all
}

// Parse finds a view by its name.
func Parse(name string) (View, bool) {
	for v := range views {
		if v.String() == name {
			return v, true
		}
	}
	return 0, false
}

// Column is one column of a table: its values as text and as what they are sorted by.
type column[Row any] struct {
	title string
	right bool
	text  func(d *delta[Row]) string
	order func(a, b *delta[Row]) int
}

// delta is a row with the one of the look before; nil where there is none.
type delta[Row any] struct {
	now, before *Row
	seconds     float64
}

// rate is how much a count has risen a second.
func (d *delta[Row]) rate(count func(*Row) uint64) float64 {
	if d.before == nil || d.seconds <= 0 {
		return 0
	}
	now, before := count(d.now), count(d.before)
	return float64(now-min(now, before)) / d.seconds
}

// Table is a view of two samples, sorted.
type Table struct {
	Titles []string
	Right  []bool
	Rows   [][]string
}

// Order says by which column a table is sorted.
type Order struct {
	Column  int
	Reverse bool
}

// Columns is how many columns a view has.
func (v View) Columns() int {
	return [...]int{len(topicColumns), len(sessionColumns), len(nameColumns), len(functionColumns)}[v]
}

// Tabulate makes the table of a view; before may be nil, then all rates are 0. Rows are left out where
// neither what they are called nor the program, process, user or container behind them has the filter in it.
func (v View) Tabulate(now, before *Sample, by Order, filter string) Table {
	seconds := 0.0
	if before == nil || before.Status.Instance != now.Status.Instance || before.Status.PID != now.Status.PID {
		before = &Sample{}
	} else {
		seconds = now.At.Sub(before.At).Seconds()
	}
	switch v {
	case Topics:
		return tabulate(topicColumns, now.Topics, before.Topics, seconds, by, filter,
			func(r *broker.TopicRow) uint64 { return r.ID }, TopicName, topicWords)
	case Sessions:
		return tabulate(sessionColumns, now.Sessions, before.Sessions, seconds, by, filter,
			func(r *broker.SessionRow) uint64 { return r.Serial }, func(r *broker.SessionRow) string { return r.Name }, sessionWords)
	case Functions:
		return tabulate(functionColumns, now.Functions, before.Functions, seconds, by, filter,
			func(r *broker.FunctionRow) uint64 { return r.ID }, func(r *broker.FunctionRow) string { return r.Name }, functionWords)
	default:
		return tabulate(nameColumns, now.Names, before.Names, seconds, by, filter,
			func(r *broker.NameRow) string { return r.Namespace + "/" + r.Name }, func(r *broker.NameRow) string { return r.Name }, nameWords)
	}
}

func tabulate[Row any, Key comparable](columns []column[Row], now, before []*Row, seconds float64, by Order, filter string,
	key func(*Row) Key, name func(*Row) string, words func(*Row) []string) (t Table) {
	were := map[Key]*Row{}
	for _, r := range before {
		were[key(r)] = r
	}
	var list []*delta[Row]
	for _, r := range now {
		if passes(words(r), filter) {
			list = append(list, &delta[Row]{r, were[key(r)], seconds})
		}
	}
	order := columns[min(max(by.Column, 0), len(columns)-1)].order
	slices.SortStableFunc(list, func(a, b *delta[Row]) int {
		n := order(a, b)
		if by.Reverse {
			n = -n
		}
		return cmp.Or(n, strings.Compare(name(a.now), name(b.now)))
	})
	for _, c := range columns {
		t.Titles, t.Right = append(t.Titles, c.title), append(t.Right, c.right)
	}
	for _, d := range list {
		cells := make([]string, len(columns))
		for i, c := range columns {
			cells[i] = c.text(d)
		}
		t.Rows = append(t.Rows, cells)
	}
	return t
}

// text is a column of words, sorted as they are written.
func text[Row any](title string, of func(*Row) string) column[Row] {
	return column[Row]{title, false, func(d *delta[Row]) string { return of(d.now) },
		func(a, b *delta[Row]) int { return strings.Compare(of(a.now), of(b.now)) }}
}

// count is a column of numbers, the largest first.
func count[Row any](title string, of func(*Row) uint64, write func(uint64) string) column[Row] {
	return column[Row]{title, true, func(d *delta[Row]) string { return write(of(d.now)) },
		func(a, b *delta[Row]) int { return cmp.Compare(of(b.now), of(a.now)) }}
}

// speed is a column of a count's rate, the largest first.
func speed[Row any](title string, of func(*Row) uint64, write func(uint64) string) column[Row] {
	return column[Row]{title, true, func(d *delta[Row]) string {
		r := d.rate(of)
		if r > 0 && r < 9.95 {
			return strconv.FormatFloat(r, 'f', 1, 64)
		}
		return write(uint64(r + 0.5))
	}, func(a, b *delta[Row]) int { return cmp.Compare(b.rate(of), a.rate(of)) }}
}

// bytesSpeed is as speed, of bytes.
func bytesSpeed[Row any](title string, of func(*Row) uint64) column[Row] {
	return column[Row]{title, true, func(d *delta[Row]) string { return bytes(uint64(d.rate(of) + 0.5)) },
		func(a, b *delta[Row]) int { return cmp.Compare(b.rate(of), a.rate(of)) }}
}

func number(n uint64) string { return termtext.Count(int64(min(n, 1<<62))) }
func bytes(n uint64) string  { return termtext.Bytes(int64(min(n, 1<<62))) }
func natural(n int) uint64   { return uint64(max(n, 0)) }

// TopicName is what tables call a topic or queue.
func TopicName(r *broker.TopicRow) string {
	switch {
	case r.Former != "":
		return r.Former + " (deleted)"
	case IsPrivate(r):
		return fmt.Sprintf("(private %d)", r.ID)
	}
	return r.Name
}

var topicColumns = []column[broker.TopicRow]{
	text("topic", TopicName),
	text("kind", func(r *broker.TopicRow) string { return r.Kind }),
	text("namespace", func(r *broker.TopicRow) string { return r.Namespace }),
	speed("sent/s", func(r *broker.TopicRow) uint64 { return r.Sent }, number),
	bytesSpeed("bytes/s", func(r *broker.TopicRow) uint64 { return r.SentBytes }),
	speed("taken/s", func(r *broker.TopicRow) uint64 { return r.Taken }, number),
	speed("lost/s", func(r *broker.TopicRow) uint64 { return r.Lost }, number),
	count("lost", func(r *broker.TopicRow) uint64 { return r.Lost }, number),
	count("waiting", func(r *broker.TopicRow) uint64 { return natural(r.Waiting) }, number),
	count("unacknowledged", func(r *broker.TopicRow) uint64 { return natural(r.Unacknowledged) }, number),
	count("kept", func(r *broker.TopicRow) uint64 { return natural(r.Kept) }, number),
	count("writers", func(r *broker.TopicRow) uint64 { return natural(r.Writers) }, number),
	count("readers", func(r *broker.TopicRow) uint64 { return natural(r.Readers) }, number),
}

var sessionColumns = []column[broker.SessionRow]{
	count("session", func(r *broker.SessionRow) uint64 { return r.Serial }, func(n uint64) string { return strconv.FormatUint(n, 10) }),
	text("name", func(r *broker.SessionRow) string { return r.Name }),
	count("pid", func(r *broker.SessionRow) uint64 { return natural(r.PID) }, func(n uint64) string { return strconv.FormatUint(n, 10) }),
	text("state", func(r *broker.SessionRow) string {
		switch {
		case r.Stopped:
			return "suspended"
		case r.ForChildren:
			return r.State + ", for children"
		}
		return r.State
	}),
	speed("sent/s", func(r *broker.SessionRow) uint64 { return r.Sent }, number),
	bytesSpeed("bytes/s", func(r *broker.SessionRow) uint64 { return r.SentBytes }),
	speed("taken/s", func(r *broker.SessionRow) uint64 { return r.Taken }, number),
	count("lost", func(r *broker.SessionRow) uint64 { return r.Lost }, number),
	count("granted", func(r *broker.SessionRow) uint64 { return r.Granted }, bytes),
	count("held", func(r *broker.SessionRow) uint64 { return r.Held }, bytes),
	count("lanes", func(r *broker.SessionRow) uint64 { return r.Lanes }, bytes),
}

var nameColumns = []column[broker.NameRow]{
	text("name", func(r *broker.NameRow) string { return r.Name }),
	text("namespace", func(r *broker.NameRow) string { return r.Namespace }),
	speed("set/s", func(r *broker.NameRow) uint64 { return r.Revision }, number),
	count("revision", func(r *broker.NameRow) uint64 { return r.Revision }, func(n uint64) string { return strconv.FormatUint(n, 10) }),
	count("bytes", func(r *broker.NameRow) uint64 { return r.Bytes }, bytes),
	count("readers", func(r *broker.NameRow) uint64 { return natural(r.Readers) }, number),
	{"age", true, func(d *delta[broker.NameRow]) string {
		return termtext.Duration(time.Duration(min(d.now.Age, 1e9) * float64(time.Second)))
	}, func(a, b *delta[broker.NameRow]) int { return cmp.Compare(a.now.Age, b.now.Age) }},
	text("set by", func(r *broker.NameRow) string { return r.Setter }),
}

var functionColumns = []column[broker.FunctionRow]{
	text("function", func(r *broker.FunctionRow) string { return r.Name }),
	text("namespace", func(r *broker.FunctionRow) string { return r.Namespace }),
	speed("calls/s", func(r *broker.FunctionRow) uint64 { return r.Calls }, number),
	speed("errors/s", func(r *broker.FunctionRow) uint64 { return r.Errors }, number),
	count("running", func(r *broker.FunctionRow) uint64 { return natural(r.Running) }, number),
	count("waiting", func(r *broker.FunctionRow) uint64 { return natural(r.Waiting) }, number),
	count("providers", func(r *broker.FunctionRow) uint64 { return natural(len(r.Providers)) }, number),
	count("suspended", func(r *broker.FunctionRow) (n uint64) {
		for i := range r.Providers {
			if r.Providers[i].Stopped {
				n++
			}
		}
		return n
	}, number),
	within("p50", func(r *broker.FunctionRow) *float64 { return r.P50 }),
	within("p99", func(r *broker.FunctionRow) *float64 { return r.P99 }),
	count("calls", func(r *broker.FunctionRow) uint64 { return r.Calls }, number),
	count("errors", func(r *broker.FunctionRow) uint64 { return r.Errors }, number),
	count("callers", func(r *broker.FunctionRow) uint64 { return natural(r.Callers) }, number),
}

// within is a column of times within which a part of the calls ended, the longest first.
func within[Row any](title string, of func(*Row) *float64) column[Row] {
	value := func(r *Row) float64 {
		if s := of(r); s != nil {
			return *s
		}
		return -1
	}
	return column[Row]{title, true, func(d *delta[Row]) string {
		s := value(d.now)
		if s < 0 {
			return "-"
		}
		return termtext.Duration(time.Duration(min(s, 1e9) * float64(time.Second)))
	}, func(a, b *delta[Row]) int { return cmp.Compare(value(b.now), value(a.now)) }}
}

// Order finds the order by a column's title, as the table has it.
func (v View) Order(title string) (Order, bool) {
	for i, have := range v.titles() {
		if strings.EqualFold(have, title) {
			return Order{Column: i}, true
		}
	}
	return Order{}, false
}

func (v View) titles() []string { return v.Tabulate(&Sample{}, nil, Order{}, "").Titles }

// SortedBy lists what Order finds.
func (v View) SortedBy() []string { return v.titles() }

// Usual is by what a view is sorted at first: what moves most.
func (v View) Usual() Order { return Order{Column: [...]int{3, 4, 2, 2}[v]} }
