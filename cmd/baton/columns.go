package main

import (
	"strings"
	"unicode/utf8"
)

// columns draws rows as plain aligned columns: one line for each row, without
// borders, so that grep and wc can be used on a listing. A header may be nil.
func (a *app) columns(header []string, right []bool, rows [][]string) string {
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
	var b strings.Builder
	for n, cells := range clean {
		line := ""
		for i, c := range cells {
			if i > 0 {
				line += "  "
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

// pairs draws names with their values.
func (a *app) pairs(rows [][2]string) string {
	cells := make([][]string, len(rows))
	for i := range rows {
		cells[i] = rows[i][:]
	}
	return a.columns(nil, nil, cells)
}
