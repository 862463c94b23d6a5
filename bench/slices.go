package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/baton-ipc/baton/internal/sys"
)

// sliceCount is how many slices a job is cut into that is compared with others: so
// short that a phase in which a processor does less falls on neighbours alike.
const sliceCount = 20

// contender is a job that is compared with others, and what is read off it.
type contender struct {
	job      job
	readings []reading
}

// reading is a figure, and its samples in the rounds of a slice from first to end.
type reading struct {
	f       *Figure
	samples func(o *outcome, first, end int) []int64
}

// gap reads the time from one series to another.
func gap(f *Figure, to, from int) reading {
	return reading{f, func(o *outcome, first, end int) []int64 { return o.gapsOf(to, from, first, end) }}
}

// rate reads how many rounds a second come to their end.
func rate(f *Figure, to, _ int) reading {
	return reading{f, func(o *outcome, first, end int) []int64 {
		took := o.series[to][end-1] - o.series[to][first]
		return []int64{int64(float64(end-1-first) / float64(took) * 1e9)}
	}}
}

// trip is a job whose round trips are read.
func trip(f *Figure, j job) contender {
	return contender{j, []reading{gap(f, seriesBack, seriesDepart)}}
}

// turn ends a slice before round i, where one ends, and waits asleep until it is the
// pair's turn again. The last one, before the round that is not there any more,
// comes when nothing is measured.
func (s *seat) turn(i int) {
	if s.Slice == 0 || i%s.Slice != 0 {
		return
	}
	k := uint64(i/s.Slice) + 1
	if s.Side == left {
		s.store(lineDone, k)
		sys.FutexWake(s.word32(lineDone))
	}
	s.awaitAsleep(lineTurn, k)
}

// grant lets a couple do slice k, the first being 1.
func (c *couple) grant(k uint64) {
	c.page.store(lineTurn, k)
	sys.FutexWake(c.page.word32(lineTurn))
}

// await waits until a couple is ready for slice k; false when it has ended.
func (c *couple) await(k uint64) bool {
	for {
		now := c.page.load(lineDone)
		if now >= k {
			return true
		}
		for _, p := range c.sides {
			select {
			case <-p.ended:
				return false
			default:
			}
		}
		sys.FutexWait(c.page.word32(lineDone), uint32(now), time.Second/10)
	}
}

// comparison is one of the measurements of a group.
func (b *bencher) comparison(name string, all ...contender) measurement {
	return b.comparisonOn(name, b.cpus, all...)
}

// comparisonOn is a comparison of pairs that may use some CPUs alone, one each; nil: all of ours.
func (b *bencher) comparisonOn(name string, cpus []int, all ...contender) measurement {
	return measurement{name, func(ctx context.Context) error { return b.compareOn(ctx, cpus, all...) }}
}

// compare does one pass of several jobs; see compareOn.
func (b *bencher) compare(ctx context.Context, all ...contender) error {
	return b.compareOn(ctx, b.cpus, all...)
}

// compareOn does one pass of several jobs, a slice of each in turn and every other
// time backwards, while the others sleep. Each figure gets a pass and, where its
// floor is among them, a ratio for each slice.
func (b *bencher) compareOn(ctx context.Context, cpus []int, all ...contender) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var couples []*couple
	var err error
	for i := 0; i < len(all) && err == nil; i++ {
		j := all[i].job
		j.Slice = max(j.N/sliceCount, 1)
		j.N = sliceCount * j.Slice
		var c *couple
		if c, err = startCouple(ctx, cpus, b.addressed(j)); err == nil {
			couples = append(couples, c)
		}
	}
	if err == nil {
		err = takeTurns(couples)
	}
	if err != nil {
		cancel()
	}
	var outcomes []*outcome
	errs := []error{err}
	for _, c := range couples {
		o, err := c.finish()
		outcomes, errs = append(outcomes, o), append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	p50s := map[string][]float64{}
	for i, x := range all {
		for _, r := range x.readings {
			p50s[r.f.Name] = r.note(outcomes[i], couples[i].job.Slice)
		}
	}
	for _, x := range all {
		for _, r := range x.readings {
			for k, floor := range p50s[r.f.Floor] {
				r.f.Ratios = append(r.f.Ratios, p50s[r.f.Name][k]/floor)
			}
		}
	}
	return nil
}

// takeTurns lets couples do their slices.
func takeTurns(couples []*couple) error {
	turns := slices.Clone(couples)
	for k := range uint64(sliceCount + 1) {
		for _, c := range turns {
			if k > 0 {
				c.grant(k)
			}
			if !c.await(k + 1) {
				return fmt.Errorf("%s ended early", c.job.Role)
			}
		}
		slices.Reverse(turns)
	}
	for _, c := range couples {
		c.grant(sliceCount + 1)
	}
	return nil
}

// note adds a pass to a figure and returns the p50 of each slice. The first rounds
// of a slice warm it up.
func (r reading) note(o *outcome, slice int) (p50s []float64) {
	var pass []int64
	for k := range sliceCount {
		samples := r.samples(o, k*slice+warm(slice), (k+1)*slice)
		pass = append(pass, samples...)
		p50s = append(p50s, quantilesOf(samples).P50)
	}
	if r.f.Unit == UnitRate {
		r.f.one(medianOf(p50s))
	} else {
		r.f.add(quantilesOf(pass))
	}
	return p50s
}
