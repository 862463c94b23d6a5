package termplot

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Bar is one line of a bar chart.
type Bar struct {
	Label string
	Value float64 // its length; what is not above zero has none
	Text  string  // written behind it
}

// Bars draws horizontal bars, the largest as long as there is room for.
func Bars(title string, bars []Bar, s Style) string {
	if len(bars) == 0 {
		return s.heading(title) + "(none)"
	}
	labels, texts, top := 0, 0, 0.0
	for _, b := range bars {
		labels = max(labels, columns(s.Text(b.Label)))
		texts = max(texts, columns(s.Text(b.Text)))
		if b.Value > top && !math.IsInf(b.Value, 0) {
			top = b.Value
		}
	}
	labels, texts = min(labels, s.width()/3), min(texts, s.width()/3)
	room := s.width() - labels - texts - len(" | ") - len(" ")

	edge := "|"
	if s.UTF8 {
		edge = "│"
	}
	lines := make([]string, len(bars))
	for i, b := range bars {
		share := 0.0
		if b.Value > 0 && top > 0 {
			share = min(b.Value/top, 1)
		}
		label := s.cut(s.Text(b.Label), labels)
		line := strings.Repeat(" ", labels-columns(label)) + label + " " + s.paint(dim, edge)
		if bar := s.bar(share, room); bar != "" {
			line += s.paint(green, bar)
		}
		if b.Text != "" {
			line += " " + s.cut(s.Text(b.Text), texts)
		}
		lines[i] = line
	}
	return s.heading(title) + strings.Join(lines, "\n")
}

// bar is a share of the room as a bar. Anything above nothing shows.
func (s Style) bar(share float64, room int) string {
	if share <= 0 {
		return ""
	}
	if !s.UTF8 {
		return strings.Repeat("#", max(int(math.Round(share*float64(room))), 1))
	}
	eighths := max(int(math.Round(share*float64(room)*8)), 1)
	bar := strings.Repeat("█", eighths/8)
	if rest := eighths % 8; rest > 0 {
		bar += string([]rune("▏▎▍▌▋▊▉")[rest-1])
	}
	return bar
}

// Latencies draws how a number of durations spread: a bar for each step of 1, 2, 5,
// 10, 20, … that holds some, and for those between, then a line with the median,
// the 99th percentile and the extremes. Negative ones count as zero. The samples
// are not changed.
func Latencies(title string, samples []time.Duration, s Style) string {
	if len(samples) == 0 {
		return s.heading(title) + "(no samples)"
	}
	sorted := slices.Clone(samples)
	for i := range sorted {
		sorted[i] = max(sorted[i], 0)
	}
	slices.Sort(sorted)
	last := len(sorted) - 1

	var bars []Bar
	step := stepUnder(sorted[0])
	for rest := sorted; len(rest) > 0; {
		end := stepAfter(step)
		n, _ := slices.BinarySearch(rest, end)
		if end == step { // the last step there is takes all
			n = len(rest)
		}
		bar := Bar{Label: "≥ " + Duration(step), Value: float64(n)}
		if n > 0 {
			bar.Text = fmt.Sprintf("%s  %s", Count(int64(n)), Percent(float64(n)/float64(len(sorted))))
		}
		bars = append(bars, bar)
		rest, step = rest[n:], end
	}
	summary := fmt.Sprintf("%s samples: min %s · p50 %s · p99 %s · max %s", Count(int64(len(sorted))),
		Duration(sorted[0]), Duration(Percentile(sorted, 50)), Duration(Percentile(sorted, 99)), Duration(sorted[last]))
	return Bars(title, bars, s) + "\n" + s.cut(s.Text(summary), s.width())
}

// Percentile returns the smallest of the sorted samples that at least p percent of
// them do not exceed; p is held within 0 to 100. It is 0 for no samples.
func Percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank-1, 0), len(sorted)-1)]
}

// stepUnder returns the largest of 0, 1, 2, 5, 10, … nanoseconds not above d.
func stepUnder(d time.Duration) time.Duration {
	step := time.Duration(0)
	for next := stepAfter(step); next <= d && next > step; next = stepAfter(step) {
		step = next
	}
	return step
}

// stepAfter returns the step that follows, or step itself where 64 bits end.
func stepAfter(step time.Duration) time.Duration {
	if step == 0 {
		return 1
	}
	lead := step
	for lead >= 10 {
		lead /= 10
	}
	next := step * 2
	if lead == 2 {
		next = step / 2 * 5
	}
	if next < step {
		return step
	}
	return next
}
