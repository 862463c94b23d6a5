package top

import (
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/baton-ipc/baton/internal/termtext"
)

// least is how narrow a column of words may become, and leastName the one that says what a
// row is: before that is cut, columns at the end are left out.
const (
	least     = 8
	leastName = 24
)

// Draw gives the lines of a table that fits a width: its titles, then rows from one on. Words
// are cut where there is no room for them, and columns are left out from the end on, except the one
// by which the table is sorted.
func (t *Table) Draw(width int, by Order, from, most int) []string {
	widths := make([]int, len(t.Titles))
	titles := make([]string, len(t.Titles))
	for i, title := range t.Titles {
		titles[i] = strings.ToUpper(title)
		if i == by.Column {
			titles[i] += sign(by.Reverse)
		}
		widths[i] = ansi.StringWidth(titles[i])
	}
	for _, row := range t.Rows {
		for i, cell := range row {
			widths[i] = max(widths[i], ansi.StringWidth(cell))
		}
	}
	shown := t.fit(widths, width, by.Column)
	line := func(cells []string) string {
		var b strings.Builder
		for n, i := range shown {
			if n > 0 {
				b.WriteString("  ")
			}
			cut := style.Cut
			if t.isName(i) {
				cut = style.CutMiddle // names that begin alike stay apart
			}
			cell := cut(cells[i], widths[i])
			room := strings.Repeat(" ", max(widths[i]-ansi.StringWidth(cell), 0))
			if t.Right[i] {
				b.WriteString(room + cell)
			} else {
				b.WriteString(cell + room)
			}
		}
		return ansi.Truncate(strings.TrimRight(b.String(), " "), width, "…")
	}
	lines := []string{bold.Render(line(titles))}
	for i := from; i < len(t.Rows) && i-from < most; i++ {
		lines = append(lines, line(t.Rows[i]))
	}
	return lines
}

// style is what the screen draws with: it is for terminals that have characters beyond ASCII.
var style = termtext.Style{UTF8: true}

// isName tells whether a column says what a row is: the first one of words, which is among the first two.
func (t *Table) isName(i int) bool {
	return i < 2 && !t.Right[i] && !slices.Contains(t.Right[:i], false)
}

func sign(reverse bool) string {
	if reverse {
		return "↑"
	}
	return "↓"
}

// fit narrows the widest columns of words until all fit, and returns the columns that do: of those behind the
// first two it leaves out the last ones, but not the one that is to be kept.
func (t *Table) fit(widths []int, width, keep int) (shown []int) {
	for i := range widths {
		shown = append(shown, i)
	}
	total := func() int {
		sum := 2 * (len(shown) - 1)
		for _, i := range shown {
			sum += widths[i]
		}
		return sum
	}
	for total() > width {
		widest := -1
		for i, w := range widths {
			narrow := least
			if t.isName(i) {
				narrow = leastName
			}
			if !t.Right[i] && w > narrow && (widest < 0 || w > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break
		}
		widths[widest]--
	}
	for n := len(shown) - 1; n > 0 && total() > width; n-- {
		if shown[n] != keep || n < 2 {
			shown = slices.Delete(shown, n, n+1)
		}
	}
	return shown
}
