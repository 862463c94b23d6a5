package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// bencher measures one group after the other.
type bencher struct {
	opts Options
	*Report
	cpus   []int
	broker *served
	serial int // of topics: each pair has its own
}

// group is a set of measurements that are taken in turn, so that what disturbs
// one disturbs all.
type group struct {
	name  string
	title string
	run   func(*bencher, context.Context, string) error
}

var groups = []group{
	{"one-way", "One way: from one process to another, both busy", (*bencher).oneWay},
	{"cycle", "Round trip: allocate, fill, send, take, read, answer with a tensor, drop", (*bencher).cycle},
	{"wake", "Waking a receiver that sleeps", (*bencher).wake},
	{"take", "Taking and dropping a reference, one process", (*bencher).take},
	{"alloc", "Client: Alloc and Release, from a warm pool", (*bencher).alloc},
	{"tuples", "Tuples on the embedded NATS server, to a nats.go subscriber", (*bencher).tuples},
	{"flat", "Round trip of 4 KiB, beside what does not take part", (*bencher).flat},
	{"recycling", "Alloc and Release of 4 KiB, by sessions attached to the same memory", (*bencher).recycling},
	{"rust", "Rust: round trips against iceoryx2, wakes, take and drop, beside Go; forks", (*bencher).rust},
	{"unpinned", "Round trips of 4 KiB of fresh pairs that wait as programs do: quantiles over pairs", (*bencher).unpinned},
	{"calls", "Functions: calls from one process to another, and what they are compared with", (*bencher).calls},
	{"stream", "Throughput: tensors of 4 KiB, up to 48 under way", (*bencher).streams},
	{"python-busy", "Python: round trips, both busy; the receiver reads the first and the last element", inPython(pythonBusy)},
	{"python-asleep", "Python: round trips of 4 KiB, both asleep", inPython(pythonAsleep)},
	{"python-stream", "Python: throughput, tensors of 4 KiB, up to 48 under way", inPython(pythonStream)},
	{"python-local", "Python: one process", inPython(pythonLocal)},
	{"python-loaders", "Python: DataLoader, a trainer and its workers, not pinned to one CPU each", inPython(pythonLoaders)},
	{"python-models", "Python: models in two processes", inPython(pythonModels)},
	{"many", "Many sessions, several in a process: the broker's CPU time, and counts", (*bencher).many},
	{"locks", "The broker's mutex with many sessions: CPU time of each time that it is held", (*bencher).locks},
	{"rest", "At rest", (*bencher).rest},
}

// Run measures what the options ask for, with a broker of its own. What failed
// is in the error; the report has the rest.
func Run(ctx context.Context, o Options) (*Report, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	cpus, err := ownCPUs()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	b := &bencher{opts: o, cpus: cpus, Report: &Report{Date: began.UTC().Truncate(time.Second),
		Version: o.Version, Quick: o.Quick, Passes: o.Passes, Machine: thisMachine([2]int(cpus))}}
	var failed []error
	for _, g := range groups {
		if !o.wants(g.name) {
			continue
		}
		if g.name == "rust" && o.Rust == "" {
			fmt.Fprintln(o.Log, "rust: left out: it needs the program of rust/bench (`make bench` builds it where cargo is)")
			continue
		}
		if strings.HasPrefix(g.name, "python") && len(o.Python) == 0 {
			fmt.Fprintf(o.Log, "%s: left out: it needs the package and torch in build/venv (`tools/python package` makes that)\n", g.name)
			continue
		}
		// A broker for each group: what one leaves behind must not burden the next.
		if b.broker, err = serve(ctx, o.Binary); err != nil {
			return nil, err
		}
		err = g.run(b, ctx, g.name)
		b.broker.stop()
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", g.name, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	b.Interrupted = ctx.Err() != nil
	b.dropUnmeasured()
	b.derive()
	b.Machine.LoadAfter = loadAverage()
	b.Seconds = time.Since(began).Seconds()
	return b.Report, errors.Join(failed...)
}

// measurement is one case of a group. It notes one pass.
type measurement struct {
	name string
	run  func(context.Context) error
}

// passes takes all measurements of a group in turn, every other time backwards.
func (b *bencher) inTurn(ctx context.Context, group string, ms []measurement) error {
	for pass := range b.opts.Passes {
		for _, m := range ms {
			fmt.Fprintf(b.opts.Log, "%s %d/%d: %s\n", group, pass+1, b.opts.Passes, m.name)
			if err := m.run(ctx); err != nil {
				return fmt.Errorf("%s: %w", m.name, err)
			}
		}
		slices.Reverse(ms)
	}
	return nil
}

// pair runs a job on both CPUs, with topics of its own.
func (b *bencher) pair(ctx context.Context, j job) (*outcome, error) {
	return runPair(ctx, b.cpus, b.addressed(j))
}

// alone runs a job in one process on the first CPU.
func (b *bencher) alone(ctx context.Context, j job) (map[string][]float64, error) {
	p, err := start(ctx, b.addressed(j), b.cpus[:1], nil)
	if err != nil {
		return nil, err
	}
	return p.wait()
}

// addressed says where a job is done: at the group's broker unless it says so itself.
func (b *bencher) addressed(j job) job {
	b.serial++
	if j.Socket == "" {
		j.at(b.broker)
	}
	if j.Path == "" {
		j.Path = fmt.Sprintf("bench/%d", b.serial)
	}
	return j
}

// warm is the share of rounds that do not count.
func warm(n int) int { return n / 10 }
