package termplot

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/guptarohit/asciigraph"
)

// Point is a value over time, or over anything else that grows.
type Point struct{ X, Y float64 }

// Mark points out a moment under the X axis.
type Mark struct {
	X    float64
	Text string
}

// Chart is a line through points.
type Chart struct {
	Title  string
	Points []Point // in any order; those with a NaN or infinity are left out
	Height int     // rows of the plot; 0 means 10
	// The vertical axis reaches at least from Min to Max where Max is larger.
	Min, Max float64
	Marks    []Mark // those outside the points' range are left out
	// How the numbers at the axes are written; nil means three digits.
	FormatX, FormatY func(float64) string
}

// unplottable bounds what the plotting arithmetic takes without overflow.
const unplottable = 1e150

// plainAxes spells the axes of the plotting library in ASCII.
var plainAxes = strings.NewReplacer("┤", "|", "┼", "+", "─", "-", "└", "+", "┬", "+")

// Render draws the chart. Points at the same X show the last of them.
func (c Chart) Render(s Style) string {
	points := slices.DeleteFunc(slices.Clone(c.Points), func(p Point) bool {
		return !(math.Abs(p.X) < unplottable && math.Abs(p.Y) < unplottable)
	})
	if len(points) == 0 {
		return s.heading(c.Title) + "(nothing to draw)"
	}
	slices.SortStableFunc(points, func(a, b Point) int {
		switch {
		case a.X < b.X:
			return -1
		case a.X > b.X:
			return 1
		}
		return 0
	})

	// How much of the width the numbers at the axes take is known once drawn.
	n := s.width()
	plot, axis := c.plot(s, points, n)
	for wide := widest(plot); wide > s.width() && n > 2; wide = widest(plot) {
		n = max(n-(wide-s.width()), 2)
		plot, axis = c.plot(s, points, n)
	}

	var b strings.Builder
	b.WriteString(s.heading(c.Title))
	b.WriteString(plot)
	first, last := points[0].X, points[len(points)-1].X
	for _, m := range c.Marks {
		if !(m.X >= first && m.X <= last) {
			continue
		}
		at := axis
		if last > first {
			at += int(math.Round((m.X - first) / (last - first) * float64(n-1)))
		}
		b.WriteString("\n" + s.mark(at, m.Text))
	}
	return b.String()
}

// mark draws an arrow at a column and writes the text on the side with room.
func (s Style) mark(at int, label string) string {
	arrow := "^"
	if s.UTF8 {
		arrow = "▲"
	}
	label = s.Text(label)
	right := s.width() - at - 2
	if columns(label) <= right || at < s.width()/2 {
		return strings.Repeat(" ", at) + s.paint(red, arrow) + " " + s.cut(label, right)
	}
	label = s.cut(label, at-1)
	return strings.Repeat(" ", at-1-columns(label)) + label + " " + s.paint(red, arrow)
}

// plot draws n columns; axis is the column where they start.
func (c Chart) plot(s Style, points []Point, n int) (plot string, axis int) {
	height := c.Height
	if height <= 0 {
		height = 10
	}
	values := resample(points, n)
	lo, hi := slices.Min(values), slices.Max(values)
	if c.Max > c.Min && math.Abs(c.Min) < unplottable && math.Abs(c.Max) < unplottable {
		lo, hi = min(lo, c.Min), max(hi, c.Max)
	}
	// The library works on the range 0 to 1, where its arithmetic cannot overflow;
	// a flat line lies at 0.
	for i := range values {
		values[i] -= lo
		if hi > lo {
			values[i] /= hi - lo
		}
	}
	options := []asciigraph.Option{
		asciigraph.Height(height),
		asciigraph.YAxisValueFormatter(s.axis(c.FormatY, lo, hi)),
		asciigraph.XAxisRange(0, 1),
		asciigraph.XAxisValueFormatter(s.axis(c.FormatX, points[0].X, points[len(points)-1].X)),
	}
	if hi > lo {
		options = append(options, asciigraph.LowerBound(0), asciigraph.UpperBound(1))
	}
	if s.Color {
		options = append(options, asciigraph.SeriesColors(asciigraph.Green))
	}
	if !s.UTF8 {
		options = append(options, asciigraph.SeriesChars(asciigraph.CreateCharSet("*")))
	}
	plot = asciigraph.Plot(values, options...)

	// The axis is the same column in each line; the first has it for certain.
	line, _, _ := strings.Cut(plot, "\n")
	if at := strings.IndexAny(line, "┤┼"); at >= 0 {
		axis = utf8.RuneCountInString(line[:at]) + 1
	}
	if !s.UTF8 {
		plot = plainAxes.Replace(plot)
	}
	return plot, axis
}

// axis writes a share of the way from lo to hi as the number there.
func (s Style) axis(format func(float64) string, lo, hi float64) func(float64) string {
	if format == nil {
		format = axisNumber
	}
	return func(share float64) string {
		return s.cut(s.Text(format(lo+(hi-lo)*share)), s.width()/4)
	}
}

func axisNumber(v float64) string {
	if a := math.Abs(v); a >= 1e6 || (a > 0 && a < 1e-2) {
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	return digits3(v)
}

// resample reads n values off the line through the sorted points, at equal
// distances from the first to the last.
func resample(points []Point, n int) []float64 {
	values := make([]float64, n)
	first, last := points[0].X, points[len(points)-1].X
	at := 0
	for i := range values {
		x := last
		if i < n-1 {
			x = first + (last-first)*float64(i)/float64(n-1)
		}
		for at+1 < len(points) && points[at+1].X <= x {
			at++
		}
		values[i] = points[at].Y
		if at+1 < len(points) {
			a, b := points[at], points[at+1]
			values[i] += (b.Y - a.Y) * (x - a.X) / (b.X - a.X)
		}
	}
	return values
}

func widest(block string) (n int) {
	for line := range strings.Lines(block) {
		n = max(n, columns(strings.TrimSuffix(line, "\n")))
	}
	return n
}
