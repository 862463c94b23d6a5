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
	r.derive()
	assert.Equal(t, []float64{1.5, 2.5, 1.9}, f.Ratios)
	assert.Equal(t, 1.9, f.Ratio)
	assert.True(t, *f.Met)
	f.Bar = atMost("ratio", 1.8)
	r.derive()
	assert.False(t, *f.Met)
	f.Bar = atLeast("ratio", 1.9)
	r.derive()
	assert.True(t, *f.Met)
	assert.Nil(t, floor.Met)
}

func TestSlicesAreReadOneByOneWithoutTheirFirstRounds(t *testing.T) {
	const slice = 10
	o := &outcome{}
	for i := range uint64(sliceCount * slice) {
		depart, took := 1000*i, 100+i/slice // one more in each slice
		if i%slice == 0 {
			took = 900
		}
		o.series[seriesDepart] = append(o.series[seriesDepart], depart)
		o.series[seriesBack] = append(o.series[seriesBack], depart+took)
		o.series[seriesArrive] = append(o.series[seriesArrive], depart)
	}
	r := &Report{}
	f := r.figure("g", "f", UnitTime)
	p50s := trip(f, job{}).readings[0].note(o, slice)
	assert.Len(t, p50s, sliceCount)
	assert.Equal(t, 100.0, p50s[0])
	assert.Equal(t, 119.0, p50s[sliceCount-1])
	assert.Equal(t, []Quantiles{{N: sliceCount * (slice - 1), P50: 109, P99: 119, P999: 119}}, f.Passes)

	f.Ratios = []float64{3, 1, 2}
	r.figure("g", "floor", UnitTime).one(1)
	f.against("floor", nil)
	r.derive()
	assert.Equal(t, 2.0, f.Ratio, "not that of the passes")

	per := r.figure("g", "per second", UnitRate)
	p50s = rate(per, seriesArrive, seriesDepart).note(o, slice)
	assert.Len(t, p50s, sliceCount)
	assert.Equal(t, 1e6, per.Passes[0].P50)
}

func TestRowShowsBarsAndUnits(t *testing.T) {
	r := &Report{}
	f := r.figure("g", "f", UnitTime)
	f.one(42.5)
	f.Bar = atMost("p50", 50)
	r.derive()
	assert.Equal(t, []string{"f", "42.5 ns", "", "", "", "met ≤50 ns"}, f.row(false))
	f.add(Quantiles{N: 100, P50: 1500, P99: 2e6, P999: 3e9})
	r.derive()
	assert.Equal(t, []string{"f", "771 ns", "1 ms", "1.5 s", "", "MISSED ≤50 ns", "42.5 ns – 1.5 µs"}, f.row(true))
	assert.Equal(t, "0.184 %", (&Figure{Unit: UnitShare}).format(0.00184))
	assert.Equal(t, "2.5/s", (&Figure{Unit: UnitRate}).format(2.5))
}
