package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/baton-ipc/baton/internal/termtext"
)

// layout is how a table is drawn, and how it becomes narrower for a terminal.
type layout struct {
	header []string // nil: none
	right  []string // columns of numbers
	// weak are the columns that are shortened where a terminal is too narrow, the least
	// important first. The last one says what a row is, and keeps more.
	weak []string
	// minor are the columns that are left out where that is not enough, the least important
	// first.
	minor []string
	// under is a column, such as one of commands to copy, that has a line of its own under each row
	// where there is no room for the table, or where its turn in minor comes; "": none. In such a table what is weak goes on in the
	// next line, and is not cut.
	under string
}

// at is where a column stands, which the layout has.
func (l *layout) at(name string) int {
	i := slices.Index(l.header, name)
	if i < 0 {
		panic(fmt.Sprintf("a table of %v has no column %s", l.header, name))
	}
	return i
}

// name is the column that says what a row is; "": no column may be shortened.
func (l *layout) name() string {
	if len(l.weak) == 0 {
		return ""
	}
	return l.weak[len(l.weak)-1]
}

// gap is between two columns.
const gap = "  "

// What a column that is shortened keeps of its width, at least: the one that says what a row is,
// the others, and each where nothing more can be left out.
const (
	leastName   = 24
	leastColumn = 12
	leastWords  = 14 // of one whose words go on in the next line
	leastAtAll  = 4
)

// table draws rows as plain aligned columns: one line for each row, without borders, so that grep
// and wc can be used on a listing. For a terminal that is too narrow it shortens columns, leaves
// some out and names those below. What does not go to a terminal is whole.
func (a *app) table(l *layout, rows [][]string) string {
	cells := make([][]string, 0, len(rows)+1)
	add := func(row []string, change func(string) string) {
		out := make([]string, len(row))
		for i, c := range row {
			out[i] = change(a.text(c))
		}
		cells = append(cells, out)
	}
	add(l.header, strings.ToUpper)
	for _, r := range rows {
		add(r, func(s string) string { return s })
	}
	widths := make([]int, len(l.header))
	for _, row := range cells {
		for i, c := range row {
			widths[i] = max(widths[i], termtext.Columns(c))
		}
	}
	shown := make([]bool, len(l.header))
	for i := range shown {
		shown[i] = true
	}
	var left []string
	if isTerminal(a.out) {
		left = a.narrow(l, cells, widths, shown)
	}
	var lines []string
	for n, row := range cells {
		lines = append(lines, a.row(l, row, widths, shown)...)
		if n > 0 && l.under != "" && !shown[l.at(l.under)] && row[l.at(l.under)] != "" {
			lines = append(lines, gap+l.under+": "+row[l.at(l.under)])
		}
	}
	if len(left) > 0 {
		lines = append(lines, wrap("there is no room for "+strings.Join(left, ", ")+": --json shows them", a.style.Width)...)
	}
	return strings.Join(lines, "\n")
}

// row draws one row: a line, or several where words go on in the next one.
func (a *app) row(l *layout, row []string, widths []int, shown []bool) (lines []string) {
	parts := make([][]string, len(row))
	most := 1
	for i, c := range row {
		parts[i] = []string{c}
		if l.under != "" && slices.Contains(l.weak, l.header[i]) {
			parts[i] = wrap(c, widths[i])
		}
		if shown[i] {
			most = max(most, len(parts[i]))
		}
	}
	for n := range most {
		var line []string
		for i := range row {
			if !shown[i] {
				continue
			}
			c := ""
			if n < len(parts[i]) {
				cut := a.style.Cut
				if l.header[i] == l.name() && !strings.Contains(parts[i][n], " ") { // a name, and no list of them
					cut = a.style.CutMiddle // names that begin alike stay apart
				}
				c = cut(parts[i][n], widths[i])
			}
			room := strings.Repeat(" ", max(widths[i]-termtext.Columns(c), 0))
			if slices.Contains(l.right, l.header[i]) {
				line = append(line, room+c)
			} else {
				line = append(line, c+room)
			}
		}
		lines = append(lines, strings.TrimRight(strings.Join(line, gap), " "))
	}
	return lines
}

// narrow shortens widths so that a line of them fits the terminal, as far as possible, and returns
// the columns that it leaves out. Those that are empty in all rows go before all else, and are not
// among the columns that it returns.
func (a *app) narrow(l *layout, cells [][]string, widths []int, shown []bool) (left []string) {
	over := func() int {
		sum := -len(gap) - a.style.Width
		for i, w := range widths {
			if shown[i] {
				sum += w + len(gap)
			}
		}
		return sum
	}
	shorten := func(least func(i int, name string) int) {
		for _, name := range l.weak {
			if i := l.at(name); shown[i] {
				widths[i] = min(widths[i], max(widths[i]-max(over(), 0), least(i, name)))
			}
		}
	}
	empty := make([]bool, len(widths))
	for _, name := range l.minor {
		i := l.at(name)
		empty[i] = len(cells) > 1 && !slices.ContainsFunc(cells[1:], func(row []string) bool { return row[i] != "" })
		if empty[i] && over() > 0 {
			shown[i] = false
		}
	}
	if l.under != "" && !slices.Contains(l.minor, l.under) && over() > 0 {
		shown[l.at(l.under)] = false
	}
	whole := slices.Clone(widths)
	for n := 0; ; n++ {
		copy(widths, whole)
		shorten(func(i int, name string) int {
			if name == l.name() {
				return leastName
			}
			if l.under != "" {
				return leastWords
			}
			return max(leastColumn, termtext.Columns(l.header[i]))
		})
		if over() <= 0 || n == len(l.minor) {
			break
		}
		shown[l.at(l.minor[n])] = false
	}
	shorten(func(int, string) int { return leastAtAll })
	for i, is := range shown {
		if !is && !empty[i] && l.header[i] != l.under {
			left = append(left, l.header[i])
		}
	}
	return left
}

// pairs draws names with their values. A value that a terminal has no room for goes on in the next
// line, at a space.
func (a *app) pairs(rows [][2]string) string {
	names := 0
	for _, r := range rows {
		names = max(names, termtext.Columns(a.text(r[0])))
	}
	var lines []string
	for _, r := range rows {
		name := a.text(r[0])
		for _, part := range a.wrap(a.text(r[1]), names+len(gap)) {
			room := strings.Repeat(" ", names-termtext.Columns(name))
			lines = append(lines, strings.TrimRight(name+room+gap+part, " "))
			name = ""
		}
	}
	return strings.Join(lines, "\n")
}

// wrap breaks a text at spaces into lines that a terminal has room for beside so many columns.
func (a *app) wrap(text string, beside int) []string {
	if !isTerminal(a.out) {
		return []string{text}
	}
	return wrap(text, a.style.Width-beside)
}

// wrap breaks a text at spaces into lines of so many columns. A word that is longer stays whole, so
// that it can be copied.
func wrap(text string, room int) (lines []string) {
	for termtext.Columns(text) > room {
		at, wide := -1, 0
		for i, r := range text {
			if r == ' ' && i > 0 && (wide <= room || at < 0) {
				at = i
			}
			wide += termtext.Columns(string(r))
		}
		if at < 0 {
			break
		}
		lines = append(lines, text[:at])
		text = text[at+1:]
	}
	return append(lines, text)
}

// say prints a sentence, at a terminal in lines that it has room for.
func (a *app) say(text string) error { return a.println(strings.Join(a.wrap(text, 0), "\n")) }
