package termplot_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/baton-ipc/baton/internal/termplot"
)

func learning() termplot.Chart {
	c := termplot.Chart{
		Title: "Accuracy on held-out pictures",
		Min:   0, Max: 1,
		FormatX: func(x float64) string { return fmt.Sprintf("%.0f s", x) },
		FormatY: termplot.Percent,
		Marks:   []termplot.Mark{{X: 10, Text: "worker 3 killed → training goes on"}, {X: 99, Text: "never drawn"}},
	}
	for i := range 30 {
		x := 20 * float64(i) / 29
		c.Points = append(c.Points, termplot.Point{X: x, Y: 0.97 - 0.87*math.Exp(-x/3)})
	}
	return c
}

func TestChart(t *testing.T) {
	for name, s := range map[string]termplot.Style{"plain": plain, "narrow": narrow, "utf8": utf8, "full": full} {
		t.Run(name, func(t *testing.T) {
			got := learning().Render(s)
			fits(t, s, got)
			golden(t, "chart-"+name, got)
		})
	}
}

func TestChartOfOddPoints(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for name, points := range map[string][]termplot.Point{
		"none":       nil,
		"unusable":   {{nan, 1}, {1, nan}, {inf, 1}, {1, -inf}, {1e300, 1}},
		"one":        {{3, 4}},
		"same x":     {{1, 1}, {1, 2}, {1, 3}},
		"flat":       {{0, 5}, {9, 5}},
		"flat zero":  {{0, 0}, {9, 0}},
		"huge":       {{0, -1e149}, {1e149, 1e149}},
		"tiny":       {{0, 1e-200}, {1e-200, 2e-200}},
		"close":      {{0, 1e9}, {1, math.Nextafter(1e9, inf)}},
		"backwards":  {{5, 1}, {0, 0}, {3, nan}, {2, 9}},
		"subnormal":  {{0, 0}, {math.SmallestNonzeroFloat64, math.SmallestNonzeroFloat64}},
		"long label": {{0, 123456789.125}, {1, 987654321.25}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, s := range []termplot.Style{plain, narrow, full} {
				c := termplot.Chart{Title: name, Points: points, Marks: []termplot.Mark{{X: 1, Text: strings.Repeat("m", 300)}, {X: nan}}}
				before := slices.Clone(points)
				got := c.Render(s)
				fits(t, s, got)
				assert.Equal(t, len(before), len(points))
				if name == "none" || name == "unusable" {
					assert.Contains(t, got, "nothing to draw")
				}
			}
		})
	}
}

func TestChartDrawsTheLineItIsGiven(t *testing.T) {
	// Half the time at the bottom, half at the top.
	step := termplot.Chart{Height: 4, Points: []termplot.Point{{0, 0}, {5, 0}, {5, 1}, {10, 1}}}
	lines := strings.Split(step.Render(plain), "\n")
	top, bottom := lines[0], lines[4]
	assert.Contains(t, top, "1 |")
	assert.Contains(t, bottom, "0 +")
	assert.InDelta(t, 40, strings.Index(top, "*"), 4)
	assert.InDelta(t, strings.Count(top, "*"), strings.Count(bottom, "*"), 2)
	assert.Greater(t, strings.Count(bottom, "*"), 30)
}

func digit(t *testing.T, rows ...string) []float32 {
	t.Helper()
	var p []float32
	for _, row := range rows {
		for _, c := range row {
			p = append(p, float32(strings.IndexRune(" .:-=+*#%@", c))/9)
		}
	}
	return p
}

func pictures(t *testing.T) []termplot.Picture {
	seven := digit(t,
		" :####@ ",
		" =*++#% ",
		"     *# ",
		"    .#: ",
		"  .+%*= ",
		"  +@#:  ",
		"   #-   ",
		"  =#    ")
	return []termplot.Picture{
		{Pixels: seven, Label: 7, Predicted: 7, Sure: 0.994},
		{Pixels: seven, Label: 7, Predicted: 2, Sure: 0.5},
		{Pixels: seven[:32], Label: 0, Predicted: 0, Sure: 7},
		{Pixels: []float32{float32(math.NaN()), -3, 9, float32(math.Inf(1))}, Label: 3, Predicted: 3, Sure: -1},
		{Label: 1, Predicted: 1, Sure: 1},
	}
}

func TestPictures(t *testing.T) {
	for name, s := range map[string]termplot.Style{
		"plain": plain, "narrow": narrow, "utf8": utf8, "full": full, "color": {Color: true},
	} {
		t.Run(name, func(t *testing.T) {
			got := termplot.Pictures(pictures(t), s)
			fits(t, s, got)
			golden(t, "pictures-"+name, got)
		})
	}
	assert.Empty(t, termplot.Pictures(nil, full))
}

func TestTable(t *testing.T) {
	pairs := [][2]string{
		{"accuracy", termplot.Percent(0.983)},
		{"samples per second", termplot.Count(183_402)},
		{"bytes handed over", termplot.Bytes(48_000_000)},
		{"bytes copied on the way", termplot.Bytes(0)},
		{"wake, p50", termplot.Duration(4_210)},
	}
	for name, s := range map[string]termplot.Style{"plain": plain, "utf8": utf8, "full": full} {
		t.Run("pairs-"+name, func(t *testing.T) {
			got := termplot.Pairs("What happened", pairs, s)
			fits(t, s, got)
			golden(t, "pairs-"+name, got)
		})
	}

	listing := termplot.Table{
		Header: []string{"Name", "Shape", "Bytes", "Holders"},
		Rows: [][]string{
			{"weights/digits", "[64, 64]", "16 KiB", "worker 1 (pid 4711), worker 2 (pid 4712), evaluator (pid 4720)"},
			{"weights/\x1b[2Jevil\x07\u202e", "[]", "4 B", "日本語"},
			{"short"},
		},
		Right: []bool{false, false, true},
	}
	for name, s := range map[string]termplot.Style{"plain": plain, "narrow": narrow, "utf8": utf8} {
		t.Run("listing-"+name, func(t *testing.T) {
			got := listing.Render(s)
			fits(t, s, got)
			golden(t, "listing-"+name, got)
		})
	}
	assert.Equal(t, "T\n(none)", termplot.Table{Title: "T"}.Render(plain))
}

func TestBars(t *testing.T) {
	bars := []termplot.Bar{
		{Label: "torch.multiprocessing", Value: 120, Text: "120 µs"},
		{Label: "baton", Value: 1.2, Text: "1.2 µs"},
		{Label: "nothing", Value: 0, Text: "0"},
		{Label: "not a number", Value: math.NaN()},
		{Label: "endless", Value: math.Inf(1), Text: "∞"},
		{Label: "negative", Value: -5, Text: "-5"},
		{Label: strings.Repeat("日本語", 20), Value: 30, Text: strings.Repeat("日本語", 20)},
		{Label: strings.Repeat("long ", 30), Value: 60, Text: strings.Repeat("text ", 30)},
	}
	for name, s := range map[string]termplot.Style{"plain": plain, "narrow": narrow, "utf8": utf8, "full": full} {
		t.Run(name, func(t *testing.T) {
			got := termplot.Bars("Time for one hand-over", bars, s)
			fits(t, s, got)
			golden(t, "bars-"+name, got)
		})
	}
	assert.Contains(t, termplot.Bars("", nil, plain), "none")
}

func TestLatencies(t *testing.T) {
	var samples []time.Duration
	for i := range 1000 {
		samples = append(samples, time.Duration(60+i%40)*time.Nanosecond)
	}
	samples = append(samples, 3*time.Microsecond, 3*time.Microsecond, 45*time.Microsecond, -1)
	before := slices.Clone(samples)
	for name, s := range map[string]termplot.Style{"plain": plain, "utf8": utf8} {
		t.Run(name, func(t *testing.T) {
			got := termplot.Latencies("One way", samples, s)
			fits(t, s, got)
			golden(t, "latencies-"+name, got)
		})
	}
	assert.Equal(t, before, samples)
	assert.Contains(t, termplot.Latencies("", nil, plain), "no samples")

	got := termplot.Latencies("", []time.Duration{math.MaxInt64, 7e18, 0, math.MinInt64}, plain)
	fits(t, plain, got)
	assert.Contains(t, got, "4 samples: min 0 ns")
	assert.Equal(t, 2, strings.Count(got, " 2  50.0 %"), "two in the first step and two in the last")
}

func TestPercentile(t *testing.T) {
	sorted := []time.Duration{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for p, want := range map[float64]time.Duration{-1: 1, 0: 1, 10: 1, 11: 2, 50: 5, 99: 10, 100: 10, 200: 10} {
		assert.Equal(t, want, termplot.Percentile(sorted, p), "%v", p)
	}
	assert.Zero(t, termplot.Percentile(nil, 50))
}
