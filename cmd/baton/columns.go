package main

import (
	"strings"
	"unicode/utf8"
)

// columns draws rows as plain aligned columns: one line for each row, without
// borders, so that grep and wc can be used on a listing. A header may be nil.
func (a *app) columns(header []string, right []bool, rows [][]string) string {
	return a.fitted(header, right, rows, nil)
}

// gap is between two columns.
const gap = "  "

// leastColumn is what a column keeps of its width, at least.
const leastColumn = 8

// fitted is columns for a terminal that may be too narrow: there it shortens the columns that
// weak names, by their positions, the least important first. What does not go to a terminal
// is whole.
func (a *app) fitted(header []string, right []bool, rows [][]string, weak []int) string {
	var widths []int
	clean := make([][]string, 0, len(rows)+1)
	add := func(cells []string, change func(string) string) {
		out := make([]string, len(cells))
		for i, c := range cells {
			out[i] = change(a.text(c))
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(out[i]))
		}
		clean = append(clean, out)
	}
	if header != nil {
		add(header, strings.ToUpper)
	}
	for _, r := range rows {
		add(r, func(s string) string { return s })
	}
	if isTerminal(a.out) {
		a.narrow(widths, clean, weak, header != nil)
	}
	var b strings.Builder
	for n, cells := range clean {
		line := ""
		for i, c := range cells {
			if i > 0 {
				line += gap
			}
			room := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c))
			if i < len(right) && right[i] {
				line += room + c
			} else {
				line += c + room
			}
		}
		if n > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(strings.TrimRight(line, " "))
	}
	return b.String()
}

// narrow shortens cells so that a line of them fits the terminal, as far as possible.
func (a *app) narrow(widths []int, cells [][]string, weak []int, headed bool) {
	over := (len(widths)-1)*len(gap) - a.style.Width
	for _, w := range widths {
		over += w
	}
	for _, i := range weak {
		if over <= 0 || i >= len(widths) {
			return
		}
		least := leastColumn
		if headed {
			least = max(least, utf8.RuneCountInString(cells[0][i]))
		}
		to := max(widths[i]-over, least)
		if to >= widths[i] {
			continue
		}
		over -= widths[i] - to
		widths[i] = to
		for _, row := range cells {
			if i < len(row) {
				row[i] = a.style.Cut(row[i], to)
			}
		}
	}
}

// pairs draws names with their values.
func (a *app) pairs(rows [][2]string) string {
	cells := make([][]string, len(rows))
	for i := range rows {
		cells[i] = rows[i][:]
	}
	return a.columns(nil, nil, cells)
}
