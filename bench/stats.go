package bench

import (
	"math"
	"slices"
)

// Quantiles sums up one series of measurements.
type Quantiles struct {
	N    int     `json:"n"`
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p99_9"`
}

// quantilesOf sorts the samples in place. Each quantile is a sample, the
// smallest that so many do not exceed.
func quantilesOf[T int64 | float64](samples []T) Quantiles {
	n := len(samples)
	if n == 0 {
		return Quantiles{}
	}
	slices.Sort(samples)
	at := func(q float64) float64 {
		return float64(samples[min(n-1, max(0, int(math.Ceil(q*float64(n)))-1))])
	}
	return Quantiles{N: n, P50: at(0.5), P99: at(0.99), P999: at(0.999)}
}

// medianOf leaves its argument as it is; of an even number it takes the mean of
// the middle two. NaN when there is none.
func medianOf(values []float64) float64 {
	n := len(values)
	if n == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(values))
	if n%2 == 1 {
		return s[n/2]
	}
	return (s[n/2-1] + s[n/2]) / 2
}

// medianQuantiles takes the median over passes of each quantile by itself.
func medianQuantiles(passes []Quantiles) Quantiles {
	pick := func(f func(Quantiles) float64) float64 {
		v := make([]float64, len(passes))
		for i, p := range passes {
			v[i] = f(p)
		}
		return medianOf(v)
	}
	m := Quantiles{
		P50:  pick(func(q Quantiles) float64 { return q.P50 }),
		P99:  pick(func(q Quantiles) float64 { return q.P99 }),
		P999: pick(func(q Quantiles) float64 { return q.P999 }),
	}
	for _, p := range passes {
		m.N += p.N
	}
	return m
}
