package bench

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/baton-ipc/baton/internal/termtext"
)

// wide is from how many columns on there is room for the spread of the passes.
const wide = 100

// Render draws the report as tables, one for each group.
func (r *Report) Render(s termtext.Style) string {
	var out []string
	for _, t := range r.tables(s.Width >= wide) {
		out = append(out, t.Render(s))
	}
	return strings.Join(append(out, r.footer(s)), "\n\n")
}

// Markdown is the report as tables for a page.
func (r *Report) Markdown() string {
	out := []string{r.footer(termtext.Style{UTF8: true})}
	for _, t := range r.tables(true) {
		out = append(out, t.Markdown())
	}
	return strings.Join(out, "\n\n")
}

func (r *Report) tables(spread bool) []termtext.Table {
	var out []termtext.Table
	for _, g := range groups {
		t := termtext.Table{Title: g.title + r.nearness(g.name),
			Header: []string{"", "p50", "p99", "p99.9", "× floor", "bar"},
			Right:  []bool{false, true, true, true, true, true, true}}
		if spread {
			t.Header = append(t.Header, "p50 of passes")
		}
		for _, f := range r.Figures {
			if f.Group == g.name {
				t.Rows = append(t.Rows, f.row(spread))
			}
		}
		if len(t.Rows) > 0 {
			out = append(out, t)
		}
	}
	return out
}

// near is below what a word takes there and back, in ns, between processors that share a
// cache.
const near = 220

// nearness says of a group's table whether its two processors were near each other: there
// what is computed counts for more, and far apart what crosses between them.
func (r *Report) nearness(group string) string {
	switch f := r.Find(group, spinTrip); {
	case f == nil:
		return ""
	case f.P50 < near:
		return "; CPUs near"
	default:
		return "; CPUs far"
	}
}

func (f *Figure) row(spread bool) []string {
	cells := []string{f.Name, f.format(f.P50), "", "", "", ""}
	if f.N > len(f.Passes) {
		cells[2], cells[3] = f.format(f.P99), f.format(f.P999)
	}
	if f.Ratio > 0 {
		cells[4] = formatRatio(f.Ratio)
	}
	if f.Bar != nil && f.Met != nil {
		cells[5] = "MISSED " + f.limit()
		if *f.Met {
			cells[5] = "met " + f.limit()
		}
	}
	if least, most := f.spread(); spread && len(f.Passes) > 1 {
		cells = append(cells, f.format(least)+" – "+f.format(most))
	}
	return cells
}

// limit says what the bar asks for.
func (f *Figure) limit() string {
	format, of := f.format, f.Bar.Of+" "
	if f.Bar.Of == "ratio" {
		format, of = func(v float64) string { return formatRatio(v) + "×" }, ""
	}
	if f.Bar.Of == "p50" {
		of = ""
	}
	if f.Bar.Min > 0 {
		return of + "≥" + format(f.Bar.Min)
	}
	return of + "≤" + format(f.Bar.Max)
}

// formatRatio gives large ratios no decimals and small ones enough to compare.
func formatRatio(v float64) string {
	decimals := 2
	switch {
	case v >= 100:
		decimals = 0
	case v < 0.1:
		decimals = 4
	}
	return strconv.FormatFloat(v, 'f', decimals, 64)
}

func (f *Figure) format(v float64) string {
	switch f.Unit {
	case UnitTime:
		if v < 100 {
			return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) + " ns"
		}
		return termtext.Duration(time.Duration(v))
	case UnitRate:
		if v < 100 {
			return strconv.FormatFloat(v, 'f', 1, 64) + "/s"
		}
		return termtext.Rate(int64(v), time.Second)
	case UnitBytes:
		return termtext.Bytes(int64(v))
	case UnitShare:
		return strconv.FormatFloat(100*v, 'f', 3, 64) + " %"
	default:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
}

func (r *Report) footer(s termtext.Style) string {
	m := r.Machine
	missed, bars := 0, 0
	for _, f := range r.Figures {
		if f.Met != nil {
			bars++
			if !*f.Met {
				missed++
			}
		}
	}
	quick := ""
	if r.Quick {
		quick = " Quick: do not believe the figures."
	}
	passes := fmt.Sprintf("medians of %d passes", r.Passes)
	if r.Interrupted {
		passes = fmt.Sprintf("interrupted: medians of %d passes at most", r.Passes)
	}
	python := ""
	if m.Python != "" {
		python = ", " + m.Python
	}
	return s.Text(fmt.Sprintf("%s, %d CPUs, processes pinned to CPU %d and %d, Linux %s, %s%s.",
		m.CPU, m.CPUs, m.Pinned[0], m.Pinned[1], m.Kernel, m.Go, python)) + "\n" +
		s.Text(fmt.Sprintf("%s, %s, load average %.2f before and %.2f after, %s. %d of %d bars met.%s",
			r.Date.Format("2006-01-02 15:04 MST"), termtext.Duration(time.Duration(r.Seconds*1e9)),
			m.LoadBefore, m.LoadAfter, passes, bars-missed, bars, quick))
}
