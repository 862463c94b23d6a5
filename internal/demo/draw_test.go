package demo

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/termtext"
)

func TestDrawingsFitTheTerminal(t *testing.T) {
	r := Result{Killed: 1, curve: []sample{{0.1, 0.4}, {1, 0.75}, {2, 1}}}
	for i := range 12 {
		r.seen = append(r.seen, seen{Picture: i, Predicted: i % 10, Sure: 0.5})
	}
	r.seen = append(r.seen, seen{Picture: -1}, seen{Picture: 1 << 20}) // of another version: they are left out
	for _, s := range []termtext.Style{{}, {UTF8: true}, {Width: 40}, {Width: 200, UTF8: true}, {Width: 41, UTF8: true}} {
		width := max(s.Width, 40)
		if s.Width == 0 {
			width = termtext.DefaultWidth
		}
		for _, r.died = range []float64{0, 0.1, 1, 1.9, 2, 9} {
			drawn, err := r.Draw(s)
			require.NoError(t, err)
			for line := range strings.Lines(drawn) {
				line = strings.TrimRight(line, "\n")
				assert.LessOrEqual(t, utf8.RuneCountInString(line), width, "%q", line)
				assert.Equal(t, strings.TrimRight(line, " "), line)
			}
			assert.Contains(t, drawn, "worker 1 killed")
			assert.Equal(t, 12, strings.Count(drawn, " 50 %"))
		}
	}
}

func TestCurveStandsAsHighAsTheAccuracy(t *testing.T) {
	r := Result{curve: []sample{{0, 0.2}, {5, 0.75}, {10, 1}}}
	lines := strings.Split(r.drawCurve(termtext.Style{Width: 60}), "\n")
	top, bottom := lines[1], lines[curveRows]
	assert.True(t, strings.HasPrefix(top, "100.0 % |"), top)
	assert.Equal(t, 1, strings.Count(top, "#"), "the last moment alone")
	assert.InDelta(t, 51/2, strings.Count(bottom, "#"), 2, "from the middle on")
	assert.Equal(t, strings.Count(bottom, "#"), strings.Count(lines[6], "#"), "three quarters are half of the height")
	assert.Equal(t, 1, strings.Count(lines[5], "#"))
}
