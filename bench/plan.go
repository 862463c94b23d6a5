package bench

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/baton-ipc/baton/internal/sys"
)

var sizes = []struct {
	name  string
	bytes int64
}{{"4 KiB", 4 << 10}, {"1 MiB", 1 << 20}, {"16 MiB", 16 << 20}}

const (
	heldName  = ", publish → held"
	spinName  = "bare spin"
	spinTrip  = spinName + ", round trip" // says how near the processors are
	futexName = "bare futex"
	bareName  = "bare publish"
)

// oneWay compares the hand-over with a number handed over by a spin, and with
// the bytes copied through a socket.
func (b *bencher) oneWay(ctx context.Context, group string) error {
	n := b.opts.rounds(20000)
	all := []contender{{job{Role: "spin", N: n},
		[]reading{gap(b.figure(group, spinName, UnitTime), seriesArrive, seriesDepart),
			gap(b.figure(group, spinTrip, UnitTime), seriesBack, seriesDepart)}}}
	for _, size := range sizes {
		all = append(all, contender{job{Role: "oneway", N: n, Bytes: size.bytes}, []reading{
			gap(b.figure(group, size.name+heldName, UnitTime).against(spinName, atMost("ratio", 2)), seriesArrive, seriesPublish)}})
	}
	for i, size := range sizes {
		x := &all[1+i].readings
		*x = append(*x, gap(b.figure(group, size.name+", Send → Receive", UnitTime).against(spinName, nil), seriesArrive, seriesDepart))
	}
	ms := []measurement{b.comparison("hand-over", all...)}
	for _, size := range sizes {
		// As many rounds as keep the bytes copied within reason.
		n := min(n, b.opts.rounds(int(max(64, 4<<30/size.bytes/4))))
		ms = append(ms, measurement{"copy " + size.name, func(ctx context.Context) error {
			b.serial++
			o, err := b.pair(ctx, job{Role: "copy", N: n, Bytes: size.bytes, Path: filepath.Join(b.broker.dir, fmt.Sprintf("copy-%d", b.serial))})
			if err == nil {
				b.figure(group, size.name+", copied by a socket", UnitTime).against(spinName, nil).
					add(quantilesOf(o.gaps(seriesArrive, seriesDepart, warm(n))))
			}
			return err
		}})
	}
	if err := b.inTurn(ctx, group, ms); err != nil {
		return err
	}
	small, large := b.Find(group, sizes[0].name+heldName), b.Find(group, sizes[2].name+heldName)
	same := b.figure(group, "16 MiB against 4 KiB", UnitRatio)
	same.Bar = atMost("p50", 1.1)
	for i := range small.Passes {
		same.one(large.Passes[i].P50 / small.Passes[i].P50)
	}
	return nil
}

// cycle is the whole of it.
func (b *bencher) cycle(ctx context.Context, group string) error {
	n := b.opts.rounds(20000)
	all := []contender{b.spinTrip(group)}
	for _, size := range sizes {
		all = append(all, trip(b.figure(group, size.name, UnitTime).against(spinTrip, atMost("ratio", 3)),
			job{Role: "cycle", N: n, Bytes: size.bytes}))
	}
	return b.inTurn(ctx, group, []measurement{b.comparison("round trips", all...)})
}

// spinTrip is one word that goes to and fro: how near the processors are.
func (b *bencher) spinTrip(group string) contender {
	return trip(b.figure(group, spinTrip, UnitTime), job{Role: "spin", N: b.opts.rounds(20000)})
}

// wake compares with two processes that wake each other by a futex alone.
func (b *bencher) wake(ctx context.Context, group string) error {
	n := b.opts.rounds(2000)
	var all []contender
	for _, k := range []struct{ role, name string }{{"futex", futexName}, {"wake", "tensor of 4 KiB"}} {
		way, trip := b.figure(group, k.name+", one way", UnitTime), b.figure(group, k.name+", round trip", UnitTime)
		if k.role == "wake" {
			way.against(futexName+", one way", atMost("ratio", 1.3))
			trip.against(futexName+", round trip", atMost("ratio", 1.3))
		}
		all = append(all, contender{job{Role: k.role, N: n, Bytes: 4096},
			[]reading{gap(way, seriesArrive, seriesDepart), gap(trip, seriesBack, seriesDepart)}})
	}
	return b.inTurn(ctx, group, []measurement{b.comparison("wakes", all...)})
}

// slotStep names the protocol's step of taking a reference, in every language.
const slotStep = "slot: take, recheck, drop"

// take and alloc are of one process alone.
func (b *bencher) take(ctx context.Context, group string) error {
	var ms []measurement
	for _, k := range []struct {
		role, name string
		bar        *Bar
	}{
		{"refcount", "own refcount, up and down", atMost("p50", 50)},
		{"slot", slotStep, atMost("p50", 50)},
		{"open", "client: Open, Release", nil},
		{"message", "client: TryReceive, Release", nil},
	} {
		ms = append(ms, b.local(group, k.name, k.bar, job{Role: k.role, N: b.opts.rounds(500000)}))
	}
	return b.inTurn(ctx, group, ms)
}

func (b *bencher) alloc(ctx context.Context, group string) error {
	var ms []measurement
	for _, size := range sizes {
		ms = append(ms, b.local(group, size.name, atMost("p50", 1000),
			job{Role: "alloc", N: b.opts.rounds(200000), Bytes: size.bytes}))
	}
	return b.inTurn(ctx, group, ms)
}

func (b *bencher) local(group, name string, bar *Bar, j job) measurement {
	f := b.figure(group, name, UnitTime)
	f.Bar = bar
	return measurement{name, func(ctx context.Context) error {
		values, err := b.alone(ctx, j)
		if err == nil {
			f.add(quantilesOf(values["ns"]))
		}
		return err
	}}
}

// tuples compares with bare publishes of as many bytes, through the same server
// to the same kind of subscriber.
func (b *bencher) tuples(ctx context.Context, group string) error {
	kinds := []struct {
		what  string
		n     int
		every time.Duration
	}{
		{"rate", b.opts.rounds(500000), 0},
		{"latency, idle", b.opts.rounds(1000), 5 * time.Millisecond},
		{"latency, busy", b.opts.rounds(5000), 200 * time.Microsecond},
	}
	if err := b.broker.awaitNATS(ctx); err != nil {
		return err
	}
	bytes, err := b.tupleBytes(ctx)
	if err != nil {
		return err
	}
	b.figure(group, "size of a tuple", UnitBytes).one(float64(bytes))
	var ms []measurement
	for _, k := range kinds {
		unit, read := UnitTime, gap
		if k.every == 0 {
			unit, read = UnitRate, rate
		}
		bare := b.figure(group, bareName+", "+k.what, unit)
		tuples := b.figure(group, "tuples, "+k.what, unit).against(bare.Name, nil)
		switch k.what {
		case "rate":
			tuples.Bar = atLeast("ratio", 1/1.2)
		case "latency, busy":
			tuples.Bar = atMost("p99", 1e6)
		}
		j := job{N: k.n, Count: tupleWindow, Every: k.every}
		sent, published := j, j
		sent.Role, sent.Bytes = "tuples", 256
		published.Role, published.Bytes = "bare", bytes
		ms = append(ms, b.comparison(k.what,
			contender{published, []reading{read(bare, seriesArrive, seriesDepart)}},
			contender{sent, []reading{read(tuples, seriesArrive, seriesDepart)}}))
	}
	return b.inTurn(ctx, group, ms)
}

// tupleWindow is how many messages are under way at most: more than the mirror finds
// in the half millisecond that it paces itself by.
const tupleWindow = 2048

// tupleBytes returns how large the tuples are that the comparisons send.
func (b *bencher) tupleBytes(ctx context.Context) (int64, error) {
	o, err := b.pair(ctx, job{Role: "tuples", N: b.opts.rounds(100000), Count: tupleWindow, Bytes: 256})
	if err != nil {
		return 0, err
	}
	return int64(o.values[right]["bytes"][0] + 0.5), nil
}

// flat looks whether a hand-over costs the same, whatever else there is. Each case
// takes turns with a pair at a broker that has nothing else.
func (b *bencher) flat(ctx context.Context, group string) error {
	alone, err := serve(ctx, b.opts.Binary)
	if err != nil {
		return err
	}
	defer alone.stop()
	j := job{Role: "cycle", N: b.opts.rounds(10000), Bytes: 4096}
	j.at(alone)
	plain := trip(b.figure(group, "nothing else", UnitTime), j)
	var ms []measurement
	add := func(name string, j job) {
		f := b.figure(group, name, UnitTime).against("nothing else", atMost("ratio", flatBar))
		j.Role, j.N, j.Bytes = plain.job.Role, plain.job.N, plain.job.Bytes
		ms = append(ms, measurement{name, func(ctx context.Context) error { return b.beside(ctx, plain, trip(f, j)) }})
	}
	for _, k := range []int{1024, 65536} {
		add(fmt.Sprintf("%d storages", k), job{Storages: k})
	}
	for _, k := range []int{100, 1000} {
		add(fmt.Sprintf("%d topics", k), job{Topics: k})
	}
	for _, k := range []int{64, 256} {
		add(fmt.Sprintf("%d other sessions", k), job{Sessions: k})
	}
	return b.inTurn(ctx, group, ms)
}

// flatBar is what counts as flat: more than passes differ among themselves.
const flatBar = 1.1

// beside compares while a crowd of sessions is there, if the other job asks for one.
func (b *bencher) beside(ctx context.Context, plain, other contender) error {
	if n := other.job.Sessions; n > 0 {
		p, _, err := b.alongside(ctx, job{Role: "crowd", Sessions: n})
		if err != nil {
			return err
		}
		defer p.end()
	}
	return b.compare(ctx, plain, other)
}

// alongside starts a process on any CPU and waits until it says that it is ready,
// by a number that is not zero in lineCount.
func (b *bencher) alongside(ctx context.Context, j job) (*process, *seat, error) {
	memory, pg, err := newPage(1)
	if err != nil {
		return nil, nil, err
	}
	defer memory.Close()
	j.Page, j.N = 1, 1
	ctx, cancel := context.WithCancel(ctx)
	p, err := start(ctx, b.addressed(j), nil, memory)
	if err != nil {
		cancel()
		pg.close()
		return nil, nil, err
	}
	s := &seat{page: pg}
	p.end = func() {
		s.store(lineStop, 1)
		sys.FutexWake(s.word32(lineStop))
		cancel()
		<-p.ended
		pg.close()
	}
	for s.load(lineCount) == 0 {
		select {
		case <-p.ended:
			_, err := p.wait()
			p.end()
			return nil, nil, fmt.Errorf("%s ended early: %w", j.Role, err)
		default:
			sys.FutexWait(s.word32(lineCount), 0, time.Second/10)
		}
	}
	return p, s, nil
}

// recycling is a curve, and has no bar: the free test reads a word of each
// session that is attached.
func (b *bencher) recycling(ctx context.Context, group string) error {
	var ms []measurement
	for k := 1; k <= 64; k *= 2 {
		f := b.figure(group, fmt.Sprintf("%d attached", k), UnitTime)
		ms = append(ms, measurement{f.Name, func(ctx context.Context) error {
			o, err := b.pair(ctx, job{Role: "recycling", N: b.opts.rounds(50000), Bytes: 4096, Sessions: k})
			if err == nil {
				f.add(quantilesOf(o.values[left]["ns"]))
			}
			return err
		}})
	}
	return b.inTurn(ctx, group, ms)
}

// rest looks at a broker and at a client that have nothing to do.
func (b *bencher) rest(ctx context.Context, group string) error {
	window := 10 * time.Second
	if b.opts.Quick {
		window = time.Second
	}
	fmt.Fprintf(b.opts.Log, "%s: broker\n", group)
	u, err := watch(ctx, b.broker.pid(), window)
	if err != nil {
		return err
	}
	f := b.figure(group, "broker, resident", UnitBytes)
	f.Bar = atMost("p50", 40e6)
	f.one(float64(u.resident))
	f = b.figure(group, "broker, CPU", UnitShare)
	f.Bar = atMost("p50", 0.002)
	f.one(float64(u.cpu) / float64(window))

	fmt.Fprintf(b.opts.Log, "%s: waiting client\n", group)
	p, s, err := b.alongside(ctx, job{Role: "waiting"})
	if err != nil {
		return err
	}
	defer p.end()
	o, err := observe(ctx, b.broker.socket(), s.load(lineCount))
	if err != nil {
		return err
	}
	defer o.close()
	before := o.awaitParked(0)
	if u, err = watch(ctx, p.cmd.Process.Pid, window); err != nil {
		return err
	}
	// The parked word grows by two with each sleep.
	took := window + restTime(window)
	f = b.figure(group, "waiting client, looks", UnitRate)
	f.Bar = atMost("p50", 1.1)
	f.one(float64(o.parked()-before) / 2 / took.Seconds())
	b.figure(group, "waiting client, CPU", UnitShare).one(float64(u.cpu) / float64(window))
	b.figure(group, "its threads fall asleep", UnitRate).one(float64(u.switches) / window.Seconds())
	return nil
}
