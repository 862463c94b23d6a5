package bench

import (
	"context"
	"fmt"

	"github.com/baton-ipc/baton/internal/sys"
)

// In practice processes are not pinned: where the two processes of a pair begin is chance, and both may
// begin on one CPU, where one waits for the other to be let run. So each sample is a fresh
// pair, and what is told is the distribution over pairs.
const (
	metRounds   = 10    // in which each meets the other's memory
	freshRounds = 1000  // that are told apart
	allRounds   = 40000 // at whose end the kernel has parted any pair
)

func init() { roles["unpinned"] = unpinned }

// unpinned measures fresh pairs that wait as programs do, pinned to two CPUs and not pinned.
func (b *bencher) unpinned(ctx context.Context, group string) error {
	pairs := 40
	if b.opts.Quick {
		pairs = 2
	}
	for _, l := range b.languages(group, "fresh.py") {
		j := job{Role: "unpinned", N: b.opts.rounds(allRounds) + freshRounds, Bytes: 4096, programs: l.programs}
		for _, where := range []string{"pinned", "anywhere"} {
			var first, steady, together []float64
			for k := range pairs {
				fmt.Fprintf(b.opts.Log, "%s: %s, %s %d/%d\n", group, l.name, where, k+1, pairs)
				cpus := b.cpus
				if where == "anywhere" {
					cpus = nil
				}
				o, err := runPair(ctx, cpus, b.addressed(j))
				if err != nil {
					return err
				}
				depart, back := o.series[seriesDepart], o.series[seriesBack]
				// In the very first ones each meets the other's memory.
				first = append(first, float64(back[freshRounds-1]-depart[metRounds])/(freshRounds-metRounds))
				steady = append(steady, quantilesOf(o.gapsOf(seriesBack, seriesDepart, j.N-j.N/4, j.N)).P50)
				if o.values[left]["cpu"][0] == o.values[right]["cpu"][0] {
					together = append(together, first[k])
				}
			}
			begun := float64(len(together)) / float64(pairs)
			for _, k := range []struct {
				name   string
				values []float64
				bar    float64
			}{{fmt.Sprintf("first %d", freshRounds), first, 2.5}, {"of pairs begun on one CPU", together, 2.5}, {"steady", steady, 1.2}} {
				if len(k.values) == 0 {
					continue
				}
				f := b.figure(group, fmt.Sprintf("%s, %s: %s", l.name, where, k.name), UnitTime)
				f.add(quantilesOf(k.values))
				if where == "pinned" {
					continue
				}
				// Of the first against what a pinned pair comes to.
				f.Floor = l.name + ", pinned: steady"
				f.Ratios, f.Bar = []float64{f.Passes[0].P50 / b.Find(group, f.Floor).Passes[0].P50}, atMost("ratio", k.bar)
			}
			if where == "anywhere" {
				b.figure(group, l.name+", anywhere: pairs begun on one CPU", UnitShare).one(begun)
			}
		}
	}
	return nil
}

// unpinned is a cycle that waits as programs do. It reports the CPU on which the process began.
func unpinned(ctx context.Context, s *seat) error {
	depart, back := s.series(seriesDepart), s.series(seriesBack)
	e, err := open(ctx, s)
	if err != nil {
		return err
	}
	defer e.c.Close()
	for i := range s.N {
		if i == 1 { // before the first round it has waited for the other one's start
			s.report("cpu", float64(sys.CPU()))
		}
		if err := e.round(ctx, s, i, e.from.Receive, depart, back); err != nil {
			return err
		}
	}
	s.meet()
	return nil
}
