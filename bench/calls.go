package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/sys"
)

// A call is compared with a round trip of the same client: an item that is put into a queue and an answer that
// comes by a topic, which is the least that a call can cost.
const (
	ownTrip     = "own round trip"
	callNumber  = "call, an int"
	callSix     = "call, six named floats"
	sixOnTop    = "six floats on top"
	pausedName  = "bare futex after a pause"
	pythonCalls = "calls.py"
	betweenPair = 2 * time.Millisecond // the pause, in which both sides fall asleep
)

func init() {
	roles["own-trip"] = ownRoundTrip
	roles["call-int"] = callsInt
	roles["call-six"] = callsSix
	roles["call-tensor"] = callsTensor
	roles["call-many"] = callsMany
	roles["futex-paused"] = futexPaused
}

func callTensor(size string) string { return "call, a tensor of " + size }

// calls measures calls of functions in each language: on two processors, on one, and wherever the processes run.
func (b *bencher) calls(ctx context.Context, group string) error {
	var ms []measurement
	for _, l := range b.languages(group, pythonCalls) {
		for _, place := range []struct {
			name string
			cpus []int
		}{{"two CPUs", b.cpus}, {"one CPU", []int{b.cpus[0], b.cpus[0]}}, {"anywhere", nil}} {
			ms = append(ms, b.callsAt(group, l, place.name, place.cpus))
		}
		ms = append(ms, b.callsAsleep(group, l))
	}
	ms = append(ms, b.callsOfMany(group), b.callsByNATS(group))
	ms = append(ms, b.callsByTVM(group)...)
	if err := b.inTurn(ctx, group, append(ms, b.callPeers(group)...)); err != nil {
		return err
	}
	for _, l := range b.languages(group, pythonCalls) {
		b.derivedCalls(group, l)
	}
	return nil
}

// callName is the name of a figure.
func (l language) callName(place, what string) string { return l.name + ", " + place + ": " + what }

// callsAt compares the kinds of calls in one language at one place.
func (b *bencher) callsAt(group string, l language, place string, cpus []int) measurement {
	n := b.opts.rounds(10000)
	own := l.callName(place, ownTrip)
	all := []contender{trip(b.figure(group, own, UnitTime), job{Role: "own-trip", N: n, programs: l.programs})}
	add := func(what, role string, bytes int64, bar *Bar) {
		f := b.figure(group, l.callName(place, what), UnitTime).against(own, bar)
		all = append(all, trip(f, job{Role: role, N: n, Bytes: bytes, programs: l.programs}))
	}
	bar, tensors := atMost("ratio", 2.5), atMost("ratio", 3)
	switch place {
	case "one CPU":
		bar, tensors = atMost("ratio", 1.35), nil
	case "anywhere":
		bar, tensors = nil, nil
	}
	add(callNumber, "call-int", 0, bar)
	for _, size := range []int{0, 2} {
		add(callTensor(sizes[size].name), "call-tensor", sizes[size].bytes, tensors)
	}
	add(callSix, "call-six", 0, nil)
	return b.comparisonOn(l.callName(place, "calls"), cpus, all...)
}

// callsAsleep compares a call after a pause, in which caller and provider fall asleep, with two processes that wake
// each other by a futex after the same pause.
func (b *bencher) callsAsleep(group string, l language) measurement {
	n, most := b.opts.rounds(1000), 1.0
	if l.name == "Python" {
		most = 1.25
	}
	floor := l.callName("two CPUs", pausedName)
	f := b.figure(group, l.callName("two CPUs", callNumber+", after a pause"), UnitTime)
	floors := b.figure(group, floor, UnitTime)
	return b.comparison(l.callName("two CPUs", "asleep"),
		trip(floors, job{Role: "futex-paused", N: n, Every: betweenPair}),
		trip(f.against(floor, atMost("ratio", most)), job{Role: "call-int", N: n, Every: betweenPair, programs: l.programs}))
}

// manyCallers is how many sessions provide one function, and how many call it.
const manyCallers = 8

// callsOfMany compares the calls a second of many sessions at one function with those of one pair.
func (b *bencher) callsOfMany(group string) measurement {
	one := b.figure(group, "Go: 1 session calls, 1 provides", UnitRate)
	many := b.figure(group, fmt.Sprintf("Go: %d sessions call, %d provide", manyCallers, manyCallers), UnitRate).
		against(one.Name, atLeast("ratio", 0.8*max(1, float64(len(b.cpus))/2)))
	return measurement{many.Name, func(ctx context.Context) error {
		var rates []float64
		for _, count := range []int{1, manyCallers} {
			o, err := b.pair(ctx, job{Role: "call-many", N: b.opts.rounds(40000), Count: count})
			if err != nil {
				return err
			}
			rates = append(rates, o.values[left]["rate"][0])
		}
		one.one(rates[0])
		many.one(rates[1])
		many.Ratios = append(many.Ratios, rates[1]/rates[0])
		return nil
	}}
}

// derivedCalls adds what is told by several figures.
func (b *bencher) derivedCalls(group string, l language) {
	at := func(place, what string) *Figure { return b.Find(group, l.callName(place, what)) }
	on := b.figure(group, l.callName("two CPUs", sixOnTop), UnitTime)
	on.Bar = atMost("p50", 700)
	if l.name == "Python" {
		on.Bar = atMost("p50", 1000)
	}
	number, six := at("two CPUs", callNumber), at("two CPUs", callSix)
	for i := range number.Passes {
		on.one(max(six.Passes[i].P50-number.Passes[i].P50, 1)) // what is less than passes differ by
	}
	size := b.figure(group, l.callName("two CPUs", "16 MiB against 4 KiB"), UnitRatio)
	size.Bar = atMost("p50", 1.1)
	small, large := at("two CPUs", callTensor(sizes[0].name)), at("two CPUs", callTensor(sizes[2].name))
	for i := range small.Passes {
		size.one(large.Passes[i].P50 / small.Passes[i].P50)
	}
	// Wherever the processes run no pass may be worse than both on one processor.
	worst, one := 0.0, at("one CPU", callNumber)
	for _, pass := range at("anywhere", callNumber).Passes {
		worst = max(worst, pass.P50)
	}
	anywhere := b.figure(group, l.callName("anywhere", "the worst pass against one CPU"), UnitRatio)
	anywhere.Bar = atMost("p50", 1.2)
	var passes []float64
	for _, pass := range one.Passes {
		passes = append(passes, pass.P50)
	}
	anywhere.one(worst / medianOf(passes))
}

// calls does the rounds: left measures, right only keeps pace, as a provider works by itself.
func (s *seat) calls(round func(i int) error) error {
	depart, back := s.series(seriesDepart), s.series(seriesBack)
	for i := range s.N {
		s.turn(i)
		if s.Side != left {
			continue
		}
		nap(s.Every)
		depart[i] = sys.Monotonic()
		if err := round(i); err != nil {
			return err
		}
		back[i] = sys.Monotonic()
	}
	s.turn(s.N)
	s.meet()
	return nil
}

// futexPaused is futex with a pause before each round.
func futexPaused(_ context.Context, s *seat) error {
	s.meet()
	if s.Side != left {
		for i := range uint64(s.N) {
			s.turn(int(i))
			s.awaitAsleep(linePing, i+1)
			s.store(linePong, i+1)
			sys.FutexWake(s.word32(linePong))
		}
		s.turn(s.N)
		s.meet()
		return nil
	}
	return s.calls(func(i int) error {
		s.store(linePing, uint64(i)+1)
		sys.FutexWake(s.word32(linePing))
		s.awaitAsleep(linePong, uint64(i)+1)
		return nil
	})
}

// ownRoundTrip puts a number into a queue and waits for it in a topic.
func ownRoundTrip(ctx context.Context, s *seat) error {
	c, err := connect(ctx, s.Socket, "bench")
	if err != nil {
		return err
	}
	defer c.Close()
	q, err := c.Queue(ctx, s.Path+"/there")
	if err != nil {
		return err
	}
	t, err := c.Topic(ctx, s.Path+"/back")
	if err != nil {
		return err
	}
	if s.Side != left {
		s.meet()
		for i := range s.N {
			s.turn(i)
			m, err := q.Get(ctx)
			if err != nil {
				return err
			}
			v, err := m.Value()
			if err != nil {
				return err
			}
			m.Release()
			if err := t.Send(ctx, v); err != nil {
				return err
			}
		}
		s.turn(s.N)
		s.meet()
		return nil
	}
	r, err := t.Reader(ctx)
	if err != nil {
		return err
	}
	s.meet()
	return s.calls(func(i int) error {
		if err := q.Put(ctx, i); err != nil {
			return err
		}
		m, err := r.Receive(ctx)
		if err != nil {
			return err
		}
		defer m.Release()
		v, err := m.Value()
		if err == nil && v != int64(i) {
			err = fmt.Errorf("%v came back, not %d", v, i)
		}
		return err
	})
}

// called provides a function at the right side, and gives the left one to measure it.
func called[In, Out any](ctx context.Context, s *seat, f func(context.Context, In) (Out, error), round func(*client.Client, *client.Function, int) error) error {
	c, err := connect(ctx, s.Socket, "bench")
	if err != nil {
		return err
	}
	defer c.Close()
	if s.Side != left {
		r, err := client.Handle(c, s.Path, f)
		if err != nil {
			return err
		}
		defer r.Close(ctx)
		s.meet()
		return s.calls(nil)
	}
	s.meet()
	known, err := c.Function(ctx, s.Path)
	if err != nil {
		return err
	}
	defer known.Close()
	return s.calls(func(i int) error { return round(c, known, i) })
}

func callsInt(ctx context.Context, s *seat) error {
	same := func(_ context.Context, x int64) (int64, error) { return x, nil }
	return called(ctx, s, same, func(_ *client.Client, f *client.Function, i int) error {
		v, err := client.CallOf[int64](ctx, f, i)
		if err == nil && v != int64(i) {
			err = fmt.Errorf("%d came back, not %d", v, i)
		}
		return err
	})
}

type sixFloats struct{ A, B, C, D, E, F float64 }

func callsSix(ctx context.Context, s *seat) error {
	sum := func(_ context.Context, in sixFloats) (float64, error) {
		return in.A + in.B + in.C + in.D + in.E + in.F, nil
	}
	return called(ctx, s, sum, func(_ *client.Client, f *client.Function, i int) error {
		x := float64(i)
		v, err := client.CallOf[float64](ctx, f, client.Arg("a", x), client.Arg("b", 1.5), client.Arg("c", 2.5),
			client.Arg("d", 3.5), client.Arg("e", 4.5), client.Arg("f", 5.5))
		if err == nil && v != x+17.5 {
			err = fmt.Errorf("%v came back of %v", v, x)
		}
		return err
	})
}

// callsTensor hands over one tensor that it has, by handle, and has it back.
func callsTensor(ctx context.Context, s *seat) error {
	same := func(_ context.Context, x *client.Tensor) (*client.Tensor, error) {
		b, err := x.Bytes()
		if err == nil && b[0] != b[len(b)-1] {
			err = fmt.Errorf("%d and %d are of different rounds", b[0], b[len(b)-1])
		}
		return x, err
	}
	var x *client.Tensor
	return called(ctx, s, same, func(c *client.Client, f *client.Function, i int) (err error) {
		if x == nil {
			if x, err = (&ends{c: c}).fill(ctx, s.Bytes, 0); err != nil {
				return err
			}
		}
		b, err := x.Bytes()
		if err != nil {
			return err
		}
		b[0], b[len(b)-1] = byte(i), byte(i)
		y, err := client.CallOf[*client.Tensor](ctx, f, x)
		if err != nil {
			return err
		}
		defer y.Release()
		if b, err = y.Bytes(); err == nil && b[0] != byte(i) {
			err = fmt.Errorf("%d came back, not %d", b[0], byte(i))
		}
		return err
	})
}

// callsMany has some sessions provide one function at the right side, and as many call it at the left.
func callsMany(ctx context.Context, s *seat) error {
	sessions := make([]*client.Client, s.Count)
	for i := range sessions {
		c, err := connect(ctx, s.Socket, "bench")
		if err != nil {
			return err
		}
		defer c.Close()
		sessions[i] = c
	}
	if s.Side != left {
		for _, c := range sessions {
			r, err := client.Handle(c, s.Path, func(_ context.Context, x int64) (int64, error) { return x, nil })
			if err != nil {
				return err
			}
			defer r.Close(ctx)
		}
		s.meet()
		s.meet()
		return nil
	}
	s.meet()
	functions := make([]*client.Function, len(sessions))
	for k, c := range sessions {
		f, err := c.Function(ctx, s.Path)
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := client.CallOf[int64](ctx, f, k); err != nil { // makes the place of the reply
			return err
		}
		functions[k] = f
	}
	began := sys.Monotonic()
	errs := make([]error, len(sessions))
	var group sync.WaitGroup
	for k, f := range functions {
		group.Go(func() {
			for i := 0; errs[k] == nil && i < s.N/len(functions); i++ {
				_, errs[k] = client.CallOf[int64](ctx, f, i)
			}
		})
	}
	group.Wait()
	s.report("rate", float64(s.N)/float64(sys.Monotonic()-began)*1e9)
	s.meet()
	return errors.Join(errs...)
}
