package bench

import (
	"context"
	"fmt"
	"strings"
)

// Ways of Baton, and of torch.multiprocessing: what people get by default, its
// fastest, and that asked until it has something, so that neither sleeps.
const (
	queueName   = "Baton queue"
	topicName   = "Baton topic"
	defaultName = "torch, Queue, descriptors"
	fastestName = "torch, SimpleQueue, names"
	namesName   = "shared_memory in place, names by SimpleQueue"
	dropInName  = "baton.torch.multiprocessing, Queue"
	underName   = "torch, SimpleQueue, install()"
)

// python measures the package for Python, in a group of measurements.
type python struct {
	*bencher
	*talker
	group string
	ms    []measurement
}

// inPython starts the program of python/bench, lets plan say what to measure, and
// measures it.
func inPython(plan func(*python)) func(*bencher, context.Context, string) error {
	return func(b *bencher, ctx context.Context, group string) error {
		t, err := talk(ctx, b.opts.Python, [2]int(b.cpus), b.broker.socket())
		if err != nil {
			return err
		}
		b.Machine.Python = t.about
		p := &python{bencher: b, talker: t, group: group}
		plan(p)
		if err := b.inTurn(ctx, group, p.ms); err != nil {
			t.cmd.Process.Kill()
			t.cmd.Wait()
			return err
		}
		return t.end()
	}
}

// measure adds a measurement of times; its role is one of python/bench.
func (p *python) measure(name string, j job) *Figure {
	f := p.figure(p.group, name, UnitTime)
	p.ms = append(p.ms, measurement{name, func(context.Context) error {
		values, err := p.do(j)
		if err == nil {
			f.add(quantilesOf(values["ns"]))
		}
		return err
	}})
	return f
}

// both measures a peer, by whose name its values go, and Baton in one run.
func (p *python) both(peers *Figure, peer string, batons *Figure, j job) {
	p.ms = append(p.ms, measurement{batons.Name, func(context.Context) error {
		values, err := p.do(j)
		if err == nil {
			peers.one(medianOf(values[peer]))
			batons.one(medianOf(values["baton"]))
		}
		return err
	}})
}

// rounds is a number of rounds, fewer when it must be quick: some of these take
// tenths of a second.
func (p *python) rounds(n int) int {
	if p.opts.Quick {
		return max(n/200, 2)
	}
	return n
}

// times says that a figure is to be so many times the one that it stands against.
func times(v float64) *Bar { return atLeast("ratio", v) }

// pythonBusy is of two processes neither of which sleeps longer than it must.
func pythonBusy(p *python) {
	p.spin()
	trip := func(name, role string, n int, bytes int64) *Figure {
		return p.measure(name, job{Role: role, N: p.rounds(n), Bytes: bytes})
	}
	small, large := sizes[0], sizes[2]
	name := func(what, size string) string { return size + ", " + what }
	born := name(queueName, small.name)
	trip(born, "queue born", 10000, small.bytes)
	trip(name(topicName, small.name), "topic born", 10000, small.bytes)
	trip(name(queueName+", copied in", small.name), "queue copied", 10000, small.bytes)
	trip(name(queueName+", read as torch", small.name), "queue torch", 10000, small.bytes)
	trip(name(fastestName, small.name), "fastest", 300, small.bytes).against(born, times(40))
	trip(name(dropInName, small.name), "drop-in", 10000, small.bytes).against(name(fastestName, small.name), atMost("ratio", 1.0/25))
	trip(name(underName, small.name), "installed", 300, small.bytes).against(name(fastestName, small.name), atMost("ratio", 1/1.5))
	trip(name(defaultName, small.name), "default", 300, small.bytes).against(born, times(100))
	trip(name(fastestName+", polled", small.name), "polled", 300, small.bytes).against(born, nil)
	trip(name(namesName, small.name), "names", 2000, small.bytes).against(born, times(8))

	middle := sizes[1]
	torchs := trip(name(fastestName, middle.name), "fastest", 100, middle.bytes)
	trip(name(underName, middle.name), "installed", 100, middle.bytes).against(torchs.Name, atMost("ratio", 1.0/2))

	born, copied := name(queueName, large.name), name(queueName+", copied in", large.name)
	trip(born, "queue born", 10000, large.bytes)
	torchs = trip(name(defaultName, large.name), "default", 20, large.bytes).against(born, times(1000))
	trip(name(fastestName, large.name), "fastest", 20, large.bytes).against(born, nil)
	trip(name(dropInName, large.name), "drop-in", 40, large.bytes).against(name(fastestName, large.name), atMost("ratio", 1.0/9))
	trip(name(dropInName+", born in Baton", large.name), "drop-in born", 40, large.bytes).against(name(fastestName, large.name), atMost("ratio", 1.0/12))
	trip(name(underName, large.name), "installed", 40, large.bytes).against(name(fastestName, large.name), atMost("ratio", 1.0/5))
	trip(copied, "queue copied", 40, large.bytes).against(torchs.Name, atMost("ratio", 1.0/10))
	trip(name(namesName, large.name), "names", 2000, large.bytes).against(born, times(8))

	for _, many := range []struct {
		kind         string
		count, bytes int64
		n, peer      int
	}{{"dict", 300, 4096, 100, 5}, {"list", 1000, 256, 50, 3}} {
		for _, reads := range []struct {
			role, name string
			bar        *Bar
		}{{"outer", "the first and the last read", times(200)}, {"each", "each read", nil}} {
			name := fmt.Sprintf("%s of %d × %d B, %s, ", many.kind, many.count, many.bytes, reads.name)
			j := job{Role: fmt.Sprintf("queue %s %s", many.kind, reads.role), N: p.rounds(many.n), Bytes: many.bytes, Count: int(many.count)}
			own := p.measure(name+queueName+", copied in", j)
			j.Role, j.N = fmt.Sprintf("fastest %s %s", many.kind, reads.role), p.rounds(many.peer)
			peer := p.measure(name+fastestName, j).against(own.Name, reads.bar)
			j.Role, j.N = fmt.Sprintf("drop-in %s %s", many.kind, reads.role), p.rounds(many.n)
			p.measure(name+dropInName, j).against(peer.Name, atMost("ratio", 1.0/50))
			j.Role, j.N = fmt.Sprintf("installed %s %s", many.kind, reads.role), p.rounds(many.peer)
			p.measure(name+underName, j).against(peer.Name, atMost("ratio", 1.0/5))
			if many.kind == "dict" && reads.role == "outer" {
				j.Role, j.N = "queue dict born", p.rounds(many.n)
				p.measure(name+queueName, j).against(peer.Name, atMost("ratio", 1.0/200))
			}
		}
	}
}

// spin measures how near the processors are.
func (p *python) spin() {
	n, f := p.opts.rounds(20000), p.figure(p.group, spinTrip, UnitTime)
	p.ms = append(p.ms, measurement{f.Name, func(ctx context.Context) error {
		o, err := p.pair(ctx, job{Role: "spin", N: n})
		if err == nil {
			f.add(quantilesOf(o.gaps(seriesBack, seriesDepart, warm(n))))
		}
		return err
	}})
}

// pythonStream is of one process that sends as fast as another receives.
func pythonStream(p *python) {
	p.spin()
	var own string
	for _, k := range []struct {
		name, role string
		n          int
		bar        *Bar
	}{
		{queueName, "stream queue", 50000, nil},
		{topicName, "stream topic", 50000, nil},
		{"Baton lossless topic", "stream lossless", 50000, nil},
		{fastestName, "stream fastest", 2000, nil},
		{defaultName, "stream default", 2000, nil},
	} {
		f := p.figure(p.group, k.name, UnitRate)
		if own == "" {
			own = k.name
		} else {
			f.against(own, nil)
		}
		j := job{Role: k.role, N: p.rounds(k.n), Bytes: sizes[0].bytes, Count: underWay}
		p.ms = append(p.ms, measurement{k.name, func(context.Context) error {
			values, err := p.do(j)
			if err == nil {
				f.one(medianOf(values["rate"]))
			}
			return err
		}})
	}
}

// pythonAsleep is of two processes each of which sleeps until the other wakes it.
func pythonAsleep(p *python) {
	n := p.rounds(1000)
	floor := p.figure(p.group, futexName+", round trip", UnitTime)
	p.ms = append(p.ms, measurement{floor.Name, func(ctx context.Context) error {
		o, err := p.pair(ctx, job{Role: "futex", N: n})
		if err == nil {
			floor.add(quantilesOf(o.gaps(seriesBack, seriesDepart, warm(n))))
		}
		return err
	}})
	for _, k := range []struct {
		name, role string
		n          int
		bar        *Bar
	}{
		{queueName, "queue born", n, atMost("ratio", 1.5)},
		{topicName, "topic born", n, atMost("ratio", 1.5)},
		{defaultName, "default", p.rounds(300), nil},
		{fastestName, "fastest", p.rounds(300), nil},
		{namesName, "names", n, nil},
	} {
		p.measure(k.name, job{Role: "asleep " + k.role, N: k.n, Bytes: sizes[0].bytes}).against(floor.Name, k.bar)
	}
}

// pythonLocal is of one process alone.
func pythonLocal(p *python) {
	buffer := p.measure("np.asarray of an array.array", job{Role: "array", N: p.rounds(100000), Bytes: sizes[0].bytes})
	p.measure("np.asarray(x)", job{Role: "asarray", N: p.rounds(100000), Bytes: sizes[0].bytes}).
		against(buffer.Name, atMost("p50", 500))
	for _, k := range []struct {
		name, role string
		n          int
		bar        *Bar
	}{
		{"x.torch(), writable", "torch", 100000, atMost("p50", 1500)},
		{"x.torch(), copy-on-write", "torch-copy-on-write", 10000, nil},
		{"baton.empty and drop", "allocate", 100000, nil},
		{"topic.send(x)", "send", 100000, atMost("p50", 2000)},
		{"reader.receive().value and drop", "receive", 100000, atMost("p50", 2000)},
		{"baton.get(name), read before", "get", 100000, atMost("p50", 40000)},
	} {
		p.measure(k.name, job{Role: k.role, N: p.rounds(k.n), Bytes: sizes[0].bytes}).Bar = k.bar
	}
	large := sizes[2]
	memcpy := p.figure(p.group, "memcpy into warm shared memory, "+large.name, UnitTime)
	share := p.figure(p.group, "baton.share, "+large.name, UnitTime).against(memcpy.Name, atMost("ratio", 1.1))
	p.ms = append(p.ms, measurement{share.Name, func(context.Context) error {
		values, err := p.do(job{Role: "share", N: p.rounds(100), Bytes: large.bytes})
		if err == nil {
			memcpy.add(quantilesOf(values["memcpy"]))
			share.add(quantilesOf(values["share"]))
		}
		return err
	}})
	p.measure("import baton, in a new process", job{Role: "import", N: p.rounds(5)}).Bar = atMost("p50", 50e6)
}

// pythonModels is of models that two processes train or hand over.
func pythonModels(p *python) {
	torchs := p.figure(p.group, "Hogwild on the digits, 2 workers, torch: samples", UnitRate)
	batons := p.figure(p.group, "the same, Baton: samples", UnitRate).against(torchs.Name, times(1))
	p.both(torchs, "torch", batons, job{Role: "hogwild", N: p.rounds(2000)})
	n := p.rounds(300)
	p.measure("live parameter written → read by a worker", job{Role: "model live", N: n}).Bar = atMost("p50", 200e3)
	published := p.measure("publish_module → loaded by a worker that slept", job{Role: "model published", N: n})
	published.Bar = atMost("p50", 200e3)
	p.measure("the same by torch, "+fastestName, job{Role: "model by torch", N: p.rounds(100)}).
		against(published.Name, nil)
	p.measure("104 MB sent 5 times a second → bound by an actor", job{Role: "weights sent", N: max(p.rounds(25), 3)}).Bar = atMost("p50", 30e6)
	p.measure("a version of 300 parameters, bound by an actor", job{Role: "weights bound", N: max(p.rounds(25), 3)})
	if strings.Contains(p.about, withGymnasium) {
		pythonEnvironments(p)
	}
	if strings.Contains(p.about, withRay) {
		pythonRay(p)
	}
}

// These stand in what the program in Python says of itself where they are installed.
const (
	withGymnasium = "Gymnasium "
	withRay       = "Ray "
)

// pythonRay is of tensors that one of Ray's actors makes and another reads.
func pythonRay(p *python) {
	for _, size := range []struct {
		name  string
		bytes int64
		bar   *Bar
	}{{sizes[0].name, sizes[0].bytes, nil}, {sizes[2].name, sizes[2].bytes, times(3)}} {
		own := p.figure(p.group, size.name+" from one of Ray's actors to another, baton.ray", UnitTime)
		store := p.figure(p.group, "the same "+size.name+", Ray's object store", UnitTime).against(own.Name, size.bar)
		p.both(store, "store", own, job{Role: "ray", N: max(p.rounds(20), 2), Bytes: size.bytes})
	}
}

// fewestBatches is the least of a loader. Workers are up to four batches ahead when
// the measurement begins, and the kernel adds what a running thread used to its
// times only at a tick: of fewer batches a worker may be seen to have used nothing.
const fewestBatches = 24

// pythonLoaders is of a DataLoader, its workers and the trainer, on both CPUs.
func pythonLoaders(p *python) {
	memcpy := p.measure("memcpy of 38.5 MB into warm memory", job{Role: "loader copied", N: p.rounds(100)})
	loader := func(name, way, kind string, workers, n int) (rate, trainer, others *Figure) {
		if workers == 1 {
			name += ", 1 worker"
		} else {
			name += fmt.Sprintf(", %d workers", workers)
		}
		rate = p.figure(p.group, name+": batches", UnitRate)
		trainer = p.figure(p.group, name+": CPU of the trainer a batch", UnitTime)
		others = p.figure(p.group, name+": CPU of the workers a batch", UnitTime)
		p.ms = append(p.ms, measurement{name, func(context.Context) error {
			values, err := p.do(job{Role: fmt.Sprintf("loader %s %s %d", way, kind, workers), N: max(p.rounds(n), fewestBatches)})
			if err == nil {
				rate.one(medianOf(values["rate"]))
				trainer.one(medianOf(values["trainer"]))
				others.one(medianOf(values["workers"]))
			}
			return err
		}})
		return rate, trainer, others
	}
	for _, of := range []struct {
		name, kind               string
		stock, n                 int
		install, context, cpu    *Bar
		againstDefault, inMemcpy bool
	}{
		{"64 pictures of 3 × 224 × 224 float32", "images", 60, 600, times(15), times(15), atMost("ratio", 0.1), false, true},
		{"the same, normalised from bytes", "normalised", 60, 120, times(2.5), times(2.5), atMost("ratio", 0.1), false, false},
		{"8 dicts of 20 × 4 float32", "small", 150, 1500, times(2.5), times(20), nil, true, false},
	} {
		for _, workers := range []int{1, 2} {
			descriptors, theirs, _ := loader(of.name+", torch, descriptors", "default", of.kind, workers, of.stock)
			names, fewer, _ := loader(of.name+", torch, names", "fastest", of.kind, workers, of.stock)
			if !of.againstDefault {
				descriptors, theirs = names, fewer
			}
			rate, trainer, others := loader(of.name+", torch, install()", "installed", of.kind, workers, of.n)
			rate.against(descriptors.Name, of.install)
			trainer.against(theirs.Name, of.cpu)
			if of.inMemcpy {
				others.against(memcpy.Name, atMost("ratio", 1.3))
			}
			rate, trainer, _ = loader(of.name+", Baton's context", "context", of.kind, workers, of.n)
			rate.against(descriptors.Name, of.context)
			trainer.against(theirs.Name, of.cpu)
		}
	}
}

// pythonEnvironments is of environments in processes of their own.
func pythonEnvironments(p *python) {
	stock := p.figure(p.group, "8 environments of (4, 84, 84) uint8, Gymnasium's AsyncVectorEnv: steps", UnitRate)
	own := p.figure(p.group, "the same, baton.gymnasium: steps", UnitRate).against(stock.Name, times(2.4))
	p.both(stock, "gymnasium", own, job{Role: "environments", N: p.rounds(1000)})
}
