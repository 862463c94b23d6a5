package bench

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestQuantilesAreSamples(t *testing.T) {
	samples := make([]int64, 1000)
	for i := range samples {
		samples[len(samples)-1-i] = int64(i + 1)
	}
	assert.Equal(t, Quantiles{N: 1000, P50: 500, P99: 990, P999: 999}, quantilesOf(samples))
	assert.Equal(t, Quantiles{N: 1, P50: 7, P99: 7, P999: 7}, quantilesOf([]float64{7}))
	assert.Equal(t, Quantiles{}, quantilesOf([]int64{}))
}

func TestMedianOfPassesTakesEachQuantileByItself(t *testing.T) {
	m := medianQuantiles([]Quantiles{{N: 10, P50: 3, P99: 10, P999: 11}, {N: 10, P50: 1, P99: 30, P999: 31}, {N: 10, P50: 2, P99: 20, P999: 90}})
	assert.Equal(t, Quantiles{N: 30, P50: 2, P99: 20, P999: 31}, m)
	assert.Equal(t, 1.5, medianOf([]float64{2, 1}))
	assert.True(t, math.IsNaN(medianOf(nil)))
}

func TestRatioComparesWithTheFloorOfTheSamePass(t *testing.T) {
	r := &Report{}
	floor := r.figure("g", "floor", UnitTime)
	f := r.figure("g", "f", UnitTime).against("floor", atMost("ratio", 2))
	for _, p := range [][2]float64{{100, 150}, {200, 500}, {10, 19}} {
		floor.one(p[0])
		f.one(p[1])
	}
	r.settle()
	assert.Equal(t, []float64{1.5, 2.5, 1.9}, f.Ratios)
	assert.Equal(t, 1.9, f.Ratio)
	assert.True(t, *f.Met)
	f.Bar = atMost("ratio", 1.8)
	r.settle()
	assert.False(t, *f.Met)
	f.Bar = atLeast("ratio", 1.9)
	r.settle()
	assert.True(t, *f.Met)
	assert.Nil(t, floor.Met)
}

func TestRowShowsBarsAndUnits(t *testing.T) {
	r := &Report{}
	f := r.figure("g", "f", UnitTime)
	f.one(42.5)
	f.Bar = atMost("p50", 50)
	r.settle()
	assert.Equal(t, []string{"f", "42.5 ns", "", "", "", "met ≤50 ns"}, f.row(false))
	f.add(Quantiles{N: 100, P50: 1500, P99: 2e6, P999: 3e9})
	r.settle()
	assert.Equal(t, []string{"f", "771 ns", "1 ms", "1.5 s", "", "MISSED ≤50 ns", "42.5 ns – 1.5 µs"}, f.row(true))
	assert.Equal(t, "0.184 %", (&Figure{Unit: UnitShare}).format(0.00184))
	assert.Equal(t, "2.5/s", (&Figure{Unit: UnitRate}).format(2.5))
}
