package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/baton-ipc/baton/client"
)

func init() {
	roles["micro"] = microService
	roles["call-nats"] = callsOverNATS
}

// peer is another way to call in Python; its role is one of python/bench/calls.py.
type peer struct {
	role, name, module string
	small, large       float64 // how many times slower it is than a call at least, at 4 KiB and at 16 MiB
}

var peers = []peer{
	{"connection", "multiprocessing.connection", "multiprocessing", 8, 600},
	{"zeromq", "pyzmq", "zmq", 12, 600},
	{"grpc", "gRPC", "grpc", 40, 600},
	{"torch-rpc", "torch.distributed.rpc", "torch", 30, 600},
	{"ray", "Ray", "ray", 100, 600},
}

// callPeers compares calls in Python with what else there is there, at 4 KiB and 16 MiB that come back.
func (b *bencher) callPeers(group string) (ms []measurement) {
	if len(b.opts.Python) != 2 {
		return nil
	}
	python := language{"Python", b.inPythonFile(pythonCalls)}
	for _, p := range peers {
		if !b.pythonHas(group, p.module) {
			continue
		}
		for _, size := range []int{0, 2} {
			n, least := b.opts.rounds(2000), p.small
			if size > 0 {
				n, least = 40, p.large
			}
			own := python.callName("two CPUs", callTensor(sizes[size].name))
			f := b.figure(group, python.callName("two CPUs", p.name+", "+sizes[size].name), UnitTime).against(own, atLeast("ratio", least))
			j := job{Role: p.role, N: n, Bytes: sizes[size].bytes, programs: python.programs}
			call := job{Role: "call-tensor", N: b.opts.rounds(10000), Bytes: sizes[size].bytes, programs: python.programs}
			ms = append(ms, measurement{f.Name, func(ctx context.Context) error { return b.comparePeer(ctx, f, j, call) }})
		}
	}
	return ms
}

// pythonHas says whether a module is installed; one that is not is left out, and that is logged.
func (b *bencher) pythonHas(group, module string) bool {
	look := fmt.Sprintf("import importlib.util, sys; sys.exit(importlib.util.find_spec(%q) is None)", module)
	if err := exec.Command(b.opts.Python[0], "-c", look).Run(); err != nil {
		fmt.Fprintf(b.opts.Log, "%s: %s is left out: it is not installed\n", group, module)
		return false
	}
	return true
}

// comparePeer runs a peer and a call one after the other: it is so much slower that slices would be of a few rounds.
func (b *bencher) comparePeer(ctx context.Context, f *Figure, peer, call job) error {
	theirs, err := b.roundTrips(ctx, peer)
	ours, err2 := b.roundTrips(ctx, call)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	f.add(theirs)
	f.Ratios = append(f.Ratios, theirs.P50/ours.P50)
	return nil
}

// roundTrips are the times of a pair's rounds.
func (b *bencher) roundTrips(ctx context.Context, j job) (Quantiles, error) {
	o, err := b.pair(ctx, j)
	if err != nil {
		return Quantiles{}, err
	}
	return quantilesOf(o.gaps(seriesBack, seriesDepart, warm(j.N))), nil
}

// callsByTVM is what a call costs more that is made of a function in tvm-ffi's global table.
func (b *bencher) callsByTVM(group string) (ms []measurement) {
	if len(b.opts.Python) != 2 || !b.pythonHas(group, "tvm_ffi") {
		return nil
	}
	python := language{"Python", b.inPythonFile(pythonCalls)}
	f := b.figure(group, python.callName("two CPUs", "tvm-ffi on top of a call"), UnitTime)
	f.Bar = atMost("p50", 1500)
	return []measurement{{f.Name, func(ctx context.Context) error {
		n := b.opts.rounds(10000)
		direct, err := b.roundTrips(ctx, job{Role: "call-int", N: n, programs: python.programs})
		table, err2 := b.roundTrips(ctx, job{Role: "call-tvm", N: n, programs: python.programs})
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		f.one(max(table.P50-direct.P50, 1)) // what is less than passes differ by
		return nil
	}}}
}

// callsByNATS compares a call that comes over NATS, which the broker makes for its client, with one of NATS's own
// micro services and the two hops to the provider and back.
func (b *bencher) callsByNATS(group string) measurement {
	bare := b.figure(group, "Go, anywhere: a call of a micro service of NATS", UnitTime)
	least := b.figure(group, "Go, anywhere: that, and two calls without NATS", UnitTime)
	through := b.figure(group, "Go, anywhere: a call over NATS, through the broker", UnitTime).
		against(least.Name, atMost("ratio", 1.5))
	return measurement{through.Name, func(ctx context.Context) error {
		if err := b.broker.awaitNATS(ctx); err != nil {
			return err
		}
		n := b.opts.rounds(4000)
		var times [3]Quantiles
		for i, role := range []string{"micro", "call-nats", "call-int"} {
			o, err := runPair(ctx, nil, b.addressed(job{Role: role, N: n}))
			if err != nil {
				return err
			}
			times[i] = quantilesOf(o.gaps(seriesBack, seriesDepart, warm(n)))
		}
		bare.add(times[0])
		sum := times[0].P50 + 2*times[2].P50
		least.one(sum)
		through.add(times[1])
		through.Ratios = append(through.Ratios, times[1].P50/sum)
		return nil
	}}
}

// requests asks for an answer to a number in each round.
func (s *seat) requests(nc *nats.Conn, subject string) error {
	return s.calls(func(i int) error {
		m, err := nc.Request(subject, fmt.Appendf(nil, "[%d]", i), 10*time.Second)
		if err != nil {
			return err
		}
		if code := m.Header.Get(micro.ErrorCodeHeader); code != "" {
			return fmt.Errorf("%s answers %s: %s", subject, code, m.Header.Get(micro.ErrorHeader))
		}
		var v int
		if err := json.Unmarshal(m.Data, &v); err != nil || v != i {
			return fmt.Errorf("%q came back, not %d", m.Data, i)
		}
		return nil
	})
}

// microService is a service of NATS's own at the right side, which the left one asks.
func microService(_ context.Context, s *seat) error {
	nc, err := s.nats()
	if err != nil {
		return err
	}
	defer nc.Close()
	subject := "bench." + strings.ReplaceAll(s.Path, "/", ".")
	if s.Side == left {
		s.meet()
		return s.requests(nc, subject)
	}
	service, err := micro.AddService(nc, micro.Config{Name: "bench", Version: "1.0.0"})
	if err != nil {
		return err
	}
	defer service.Stop()
	err = service.AddEndpoint("same", micro.HandlerFunc(func(r micro.Request) {
		var in []int
		if err := json.Unmarshal(r.Data(), &in); err != nil {
			r.Error("400", err.Error(), nil)
			return
		}
		r.RespondJSON(in[0])
	}), micro.WithEndpointSubject(subject))
	if err != nil {
		return err
	}
	if err := nc.Flush(); err != nil {
		return err
	}
	s.meet()
	return s.calls(nil)
}

// callsOverNATS calls a function of the right side by requests of a client of NATS, which the broker takes.
func callsOverNATS(ctx context.Context, s *seat) error {
	if s.Side == left {
		nc, err := s.nats()
		if err != nil {
			return err
		}
		defer nc.Close()
		s.meet()
		subject := "baton.default.call." + strings.ReplaceAll(s.Path, "/", ".")
		for { // the broker answers for a function a moment after it was registered
			_, err := nc.Request(subject, []byte("[0]"), stalled)
			if err == nil {
				return s.requests(nc, subject)
			}
			if !errors.Is(err, nats.ErrNoResponders) || ctx.Err() != nil {
				return err
			}
			nap(time.Millisecond)
		}
	}
	c, err := connect(ctx, s.Socket, "bench")
	if err != nil {
		return err
	}
	defer c.Close()
	r, err := client.Handle(c, s.Path, func(_ context.Context, x int64) (int64, error) { return x, nil }, client.OverNATS())
	if err != nil {
		return err
	}
	defer r.Close(ctx)
	s.meet()
	return s.calls(nil)
}
