package bench

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// Many sessions on few CPUs are slow, so what is measured is the broker's CPU time and
// counts, and not how long it takes.

func init() {
	roles["members"] = members
	roles["takers"] = takers
	roles["puts"] = puts
	roles["gets"] = gets
	roles["watchers"] = watchers
	roles["lanes"] = lanes
}

// perProcess is how many sessions share a process: each has its own descriptors, and a
// process may have few.
const perProcess = 16

// many looks at what grows with the number of sessions.
func (b *bencher) many(ctx context.Context, group string) error {
	sizes := []int{16, 64, 256, 500}
	if b.opts.Quick {
		sizes = []int{16}
	}
	most := sizes[len(sizes)-1]
	for _, n := range sizes {
		if err := b.join(ctx, group, n, false); err != nil {
			return err
		}
		if err := b.join(ctx, group, n, true); err != nil {
			return err
		}
	}
	f := b.Find(group, fmt.Sprintf("%d read, 1 writes: broker, CPU", most))
	f.Bar = atMost("p50", 1e9)
	f = b.Find(group, fmt.Sprintf("%d read and write: broker, CPU", most))
	f.Bar = atMost("p50", 1e9)
	for _, step := range []func(context.Context, string, int) error{b.getBeside, b.putAsleep, b.amongLanes, b.allocBeside, b.watched, b.idleBeside} {
		if err := step(ctx, group, most); err != nil {
			return err
		}
	}
	return nil
}

// crowdOf are processes with sessions that go through phases together.
type crowdOf struct {
	processes []*process
	seats     []*seat
}

// gather starts processes with n sessions in all and waits until they are connected.
func (b *bencher) gather(ctx context.Context, n int, j job) (*crowdOf, error) {
	if _, err := atRest(b.broker.pid()); err != nil { // it has cleaned up after those before
		return nil, err
	}
	j = b.addressed(j)
	c := &crowdOf{}
	for n > 0 {
		j.Sessions = min(n, perProcess)
		p, s, err := b.alongside(ctx, j)
		if err != nil {
			c.end()
			return nil, err
		}
		c.processes, c.seats = append(c.processes, p), append(c.seats, s)
		n -= j.Sessions
		j.Count = 0 // what the first one alone does
	}
	return c, nil
}

func (c *crowdOf) end() {
	for _, p := range c.processes {
		p.end()
	}
}

// phase has all go through a phase and waits until they have.
func (c *crowdOf) phase(k uint64) error {
	for _, s := range c.seats {
		s.store(lineTurn, k)
		sys.FutexWake(s.word32(lineTurn))
	}
	for i, s := range c.seats {
		for s.load(lineCount) <= k {
			select {
			case <-c.processes[i].ended:
				_, err := c.processes[i].wait()
				return fmt.Errorf("phase %d: %w", k, err)
			default:
				sys.FutexWait(s.word32(lineCount), uint32(s.load(lineCount)), time.Second/10)
			}
		}
	}
	return nil
}

// reached tells the parent that a phase is over, and waits for the next one.
func (s *seat) reached(k uint64) {
	s.store(lineCount, k+1)
	sys.FutexWake(s.word32(lineCount))
	s.awaitAsleep(lineTurn, k+1)
}

// spent does something and returns how much of a CPU the broker took for it, until it is
// at rest again.
func (b *bencher) spent(pid int, f func() error) (float64, error) {
	before, err := usageOf(pid)
	if err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	after, err := atRest(pid)
	return float64(after.cpu - before.cpu), err
}

// atRest waits until a process takes less than a hundredth of a CPU.
func atRest(pid int) (usage, error) {
	last, err := usageOf(pid)
	for err == nil {
		time.Sleep(300 * time.Millisecond)
		var now usage
		if now, err = usageOf(pid); now.cpu-last.cpu < 3*time.Millisecond {
			return now, err
		}
		last = now
	}
	return last, err
}

// join measures sessions that join one topic: all read it, and one or all write.
func (b *bencher) join(ctx context.Context, group string, n int, all bool) error {
	what, role := fmt.Sprintf("%d read, 1 writes", n), job{Role: "members", Count: 1}
	if all {
		what, role = fmt.Sprintf("%d read and write", n), job{Role: "members", Storages: 1}
	}
	fmt.Fprintf(b.opts.Log, "%s: %s\n", group, what)
	c, err := b.gather(ctx, n, role)
	if err != nil {
		return err
	}
	defer c.end()
	ns, err := b.spent(b.broker.pid(), func() error {
		err := c.phase(1) // readers
		if err == nil {
			err = c.phase(2) // writers
		}
		return err
	})
	if err != nil {
		return err
	}
	b.figure(group, what+": broker, CPU", UnitTime).one(ns)
	if ns, err = b.spent(b.broker.pid(), func() error { return c.phase(3) }); err != nil {
		return err
	}
	b.figure(group, what+", and each receives from each: broker, CPU", UnitTime).one(ns)
	var files []float64
	for _, s := range c.seats {
		files = append(files, float64(s.load(linePing)))
	}
	f := b.figure(group, what+": descriptors of a session", UnitCount)
	f.Bar = atMost("p50", 100)
	f.one(slices.Max(files))
	return nil
}

// members are sessions that join a topic. Count: the first one writes; Storages: all do.
func members(ctx context.Context, s *seat) error {
	clients, before := make([]*client.Client, s.Sessions), openFiles()
	if err := s.sessions(ctx, func(k int, c *client.Client) error { clients[k] = c; return nil }); err != nil {
		return err
	}
	s.reached(0)
	topics, readers := make([]*client.Topic, len(clients)), make([]*client.Reader, len(clients))
	for k, c := range clients {
		var err error
		if topics[k], err = c.Topic(ctx, s.Path, client.Linger(0)); err != nil {
			return err
		}
		if readers[k], err = topics[k].Reader(ctx); err != nil {
			return err
		}
	}
	s.reached(1)
	for k, t := range topics {
		if s.Storages == 0 && k >= s.Count {
			break
		}
		if err := (&ends{c: clients[k]}).send(ctx, t); err != nil {
			return err
		}
	}
	s.reached(2)
	for _, r := range readers {
		for {
			m, err := r.TryReceive(ctx)
			if err != nil {
				return err
			}
			if m == nil {
				break
			}
			m.Release()
		}
	}
	s.store(linePing, uint64((openFiles()-before+len(clients)-1)/len(clients))) // of its own as well, rounded up
	s.reached(3)
	s.awaitAsleep(lineStop, 1)
	for _, c := range clients {
		if s.Orderly {
			c.Close()
		}
	}
	return nil
}

// openFiles counts the descriptors of this process.
func openFiles() int {
	all, _ := os.ReadDir("/proc/self/fd")
	return len(all)
}

// getBeside compares a Get of a name alone and beside sessions that watch it.
func (b *bencher) getBeside(ctx context.Context, group string, n int) error {
	alone := b.figure(group, "Get of a name", UnitTime)
	beside := b.figure(group, fmt.Sprintf("Get of a name that %d watch", n), UnitTime).against(alone.Name, atMost("ratio", 1.5))
	get := func(f *Figure, path string) error {
		fmt.Fprintf(b.opts.Log, "%s: %s\n", group, f.Name)
		values, err := b.alone(ctx, job{Role: "gets", N: b.opts.rounds(50000), Path: path})
		if err == nil {
			f.add(quantilesOf(values["ns"]))
		}
		return err
	}
	if err := get(alone, "bench/alone"); err != nil {
		return err
	}
	c, err := b.gather(ctx, n, job{Role: "watchers", Path: "bench/watched"})
	if err != nil {
		return err
	}
	defer c.end()
	return get(beside, "bench/watched")
}

func watchers(ctx context.Context, s *seat) error {
	if err := s.sessions(ctx, func(_ int, c *client.Client) error {
		w, err := c.Watch(ctx, s.Path)
		if err == nil {
			go w.Next(ctx)
		}
		return err
	}); err != nil {
		return err
	}
	s.reached(0)
	return nil
}

// gets times a Get of a name that this process sets and has not read before: each time by a
// session that has not opened it.
func gets(ctx context.Context, s *seat) error {
	c, err := connect(ctx, s.Socket, "bench-gets")
	if err != nil {
		return err
	}
	defer c.Close()
	t, err := c.Alloc(ctx, dlpack.Uint8, []int64{64})
	if err != nil {
		return err
	}
	if _, err := c.Set(ctx, s.Path, t); err != nil {
		return err
	}
	return timed(s, "ns", func(int) error {
		m, err := c.Get(ctx, s.Path)
		if err == nil {
			m.Release()
		}
		return err
	})
}

// putAsleep compares a put where one taker sleeps and where many do.
func (b *bencher) putAsleep(ctx context.Context, group string, _ int) error {
	const takersAsleep = 60
	name := func(n int) string { return fmt.Sprintf("put, takers asleep: %d", n) }
	for _, n := range []int{1, takersAsleep} {
		f := b.figure(group, name(n), UnitTime)
		if n > 1 {
			f.against(name(1), atMost("ratio", 1.5))
		}
		fmt.Fprintf(b.opts.Log, "%s: %s\n", group, f.Name)
		path := fmt.Sprintf("bench/takers-%d", n)
		c, err := b.gather(ctx, n, job{Role: "takers", Path: path})
		if err != nil {
			return err
		}
		values, err := b.alone(ctx, job{Role: "puts", N: max(b.opts.rounds(2000), 200), Path: path, Every: 3 * time.Millisecond})
		c.end()
		if err != nil {
			return err
		}
		f.add(quantilesOf(values["ns"]))
		wakes := b.figure(group, f.Name+", woken by each", UnitCount)
		wakes.Bar = atMost("p50", 2)
		wakes.one(values["rung"][0])
	}
	return nil
}

func takers(ctx context.Context, s *seat) error {
	if err := s.sessions(ctx, func(_ int, c *client.Client) error {
		q, err := c.Queue(ctx, s.Path)
		if err != nil {
			return err
		}
		go func() {
			for {
				m, err := q.Get(ctx)
				if err != nil {
					return
				}
				m.Release()
			}
		}()
		return nil
	}); err != nil {
		return err
	}
	s.reached(0)
	return nil
}

// puts times puts, each after a pause in which the takers fall asleep, and counts the rings
// of all bells.
func puts(ctx context.Context, s *seat) error {
	c, err := connect(ctx, s.Socket, "bench-puts")
	if err != nil {
		return err
	}
	defer c.Close()
	q, err := c.Queue(ctx, s.Path)
	if err != nil {
		return err
	}
	o, err := observe(ctx, s.Socket, c.Session())
	if err != nil {
		return err
	}
	defer o.close()
	var rung uint64
	for i := -s.N / 10; i < s.N; i++ {
		t, err := c.Alloc(ctx, dlpack.Uint8, []int64{64})
		if err != nil {
			return err
		}
		nap(s.Every)
		before := o.rings()
		from := sys.Monotonic()
		if err := q.Put(ctx, t); err != nil {
			return err
		}
		ns := sys.Monotonic() - from
		if i >= 0 {
			s.report("ns", float64(ns))
			rung += o.rings() - before
		}
		t.Release()
	}
	s.report("rung", float64(rung)/float64(s.N))
	return nil
}

// amongLanes compares a message in a topic of few writers with one where most are silent.
func (b *bencher) amongLanes(ctx context.Context, group string, _ int) error {
	const speak = 4
	counts := []int{speak, 256}
	name := func(n int) string { return fmt.Sprintf("message among %d lanes of which %d speak", n, speak) }
	for _, n := range counts {
		f := b.figure(group, name(n), UnitTime)
		if n > speak {
			f.against(name(speak), atMost("ratio", 2))
		}
		fmt.Fprintf(b.opts.Log, "%s: %s\n", group, f.Name)
		values, err := b.alone(ctx, job{Role: "lanes", Sessions: n, Count: speak, N: b.opts.rounds(20000)})
		if err != nil {
			return err
		}
		f.add(quantilesOf(values["ns"]))
	}
	return nil
}

// lanes times the receipt of a message in a topic to which many sessions have sent.
func lanes(ctx context.Context, s *seat) error {
	reader, err := connect(ctx, s.Socket, "bench-reader")
	if err != nil {
		return err
	}
	t, err := reader.Topic(ctx, s.Path)
	if err != nil {
		return err
	}
	r, err := t.Reader(ctx)
	if err != nil {
		return err
	}
	writers, topics := make([]*client.Client, s.Sessions), make([]*client.Topic, s.Sessions)
	if err := s.sessions(ctx, func(k int, c *client.Client) error {
		writers[k] = c
		if topics[k], err = c.Topic(ctx, s.Path); err != nil {
			return err
		}
		return (&ends{c: c}).send(ctx, topics[k])
	}); err != nil {
		return err
	}
	for i := -s.Sessions; i < s.N; i++ {
		if i >= 0 {
			k := i % s.Count
			if err := (&ends{c: writers[k]}).send(ctx, topics[k]); err != nil {
				return err
			}
		}
		from := sys.Monotonic()
		m, err := r.Receive(ctx)
		if err != nil {
			return err
		}
		ns := sys.Monotonic() - from
		m.Release()
		if i >= s.N/10 {
			s.report("ns", float64(ns))
		}
	}
	return nil
}

// allocBeside compares a pool alone and while many sessions are attached to the memory of
// another one.
func (b *bencher) allocBeside(ctx context.Context, group string, n int) error {
	alone := b.figure(group, "alloc and release of 4 KiB", UnitTime)
	beside := b.figure(group, fmt.Sprintf("alloc and release of 4 KiB, %d attached elsewhere", n), UnitTime).against(alone.Name, atMost("ratio", 1.5))
	measure := func(f *Figure) error {
		fmt.Fprintf(b.opts.Log, "%s: %s\n", group, f.Name)
		values, err := b.alone(ctx, job{Role: "alloc", N: b.opts.rounds(200000), Bytes: 4096})
		if err == nil {
			f.add(quantilesOf(values["ns"]))
		}
		return err
	}
	if err := measure(alone); err != nil {
		return err
	}
	c, err := b.gather(ctx, n, job{Role: "members", Count: 1})
	if err != nil {
		return err
	}
	defer c.end()
	for phase := range uint64(3) {
		if err := c.phase(1 + phase); err != nil {
			return err
		}
	}
	return measure(beside)
}

// idleBeside looks at a broker beside sessions that have nothing to do, and at the one that
// takes over from it.
func (b *bencher) idleBeside(ctx context.Context, group string, n int) error {
	c, err := b.gather(ctx, n, job{Role: "members", Count: 1})
	if err != nil {
		return err
	}
	defer c.end()
	window := 10 * time.Second
	if b.opts.Quick {
		window = time.Second
	}
	fmt.Fprintf(b.opts.Log, "%s: broker beside %d idle sessions\n", group, n)
	if _, err := atRest(b.broker.pid()); err != nil { // what follows their coming is none of idleness
		return err
	}
	u, err := watch(ctx, b.broker.pid(), window)
	if err != nil {
		return err
	}
	f := b.figure(group, fmt.Sprintf("broker beside %d idle sessions, resident", n), UnitBytes)
	f.Bar = atMost("p50", 60e6)
	f.one(float64(u.resident))
	f = b.figure(group, fmt.Sprintf("broker beside %d idle sessions, CPU", n), UnitShare)
	f.Bar = atMost("p50", 0.002)
	f.one(float64(u.cpu) / float64(window))

	for phase := range uint64(3) {
		if err := c.phase(1 + phase); err != nil {
			return err
		}
	}
	fmt.Fprintf(b.opts.Log, "%s: takeover with %d sessions\n", group, n)
	if err := b.broker.kill(ctx); err != nil {
		return err
	}
	ns, err := b.spent(b.broker.pid(), func() error { return b.broker.awaitBack(ctx, n) })
	if err != nil {
		return err
	}
	used, err := usageOf(b.broker.pid())
	if err != nil {
		return err
	}
	f = b.figure(group, fmt.Sprintf("takeover with %d sessions: broker, CPU", n), UnitTime)
	f.Bar = atMost("p50", 1e9)
	f.one(max(ns, float64(used.cpu))) // all that it has taken since it began
	return nil
}

// awaitBack waits until sessions have returned to a broker that took over.
func (b *served) awaitBack(ctx context.Context, n int) error {
	c, err := b.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		var st broker.Status
		if err := c.Broker(ctx, protocol.OpStatus, struct{}{}, &st); err != nil {
			return err
		}
		if st.Counts.Sessions-st.Counts.Disconnected > n {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}
