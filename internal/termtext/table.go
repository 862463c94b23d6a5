package termtext

import (
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// Table is rows of text in columns.
type Table struct {
	Title  string
	Header []string   // may be nil
	Rows   [][]string // short rows end in empty cells
	Right  []bool     // which columns are set flush right; may be short
}

// Pairs draws a table of two columns: names, and values flush right.
func Pairs(title string, rows [][2]string, s Style) string {
	t := Table{Title: title, Right: []bool{false, true}}
	for _, r := range rows {
		t.Rows = append(t.Rows, r[:])
	}
	return t.Render(s)
}

const minColumn = 6 // what a column is never narrowed below

// Render draws the table. Where it would be wider than the Style, the widest
// columns are narrowed and their cells run over several lines; a table of too many
// columns even for that is left wide.
func (t Table) Render(s Style) string {
	w := table.NewWriter()
	w.SetStyle(table.StyleDefault)
	if s.UTF8 {
		w.SetStyle(table.StyleRounded)
	}
	w.Style().Format.Header = text.FormatDefault // names as they are, not in capitals
	w.SuppressTrailingSpaces()

	var widths []int
	clean := func(cells []string) table.Row {
		row := make(table.Row, len(cells))
		for i, c := range cells {
			c = s.Text(c)
			row[i] = c
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], Columns(c))
		}
		return row
	}
	if t.Header != nil {
		w.AppendHeader(clean(t.Header))
	}
	for _, r := range t.Rows {
		w.AppendRow(clean(r))
	}
	if len(widths) == 0 {
		return s.heading(t.Title) + "(none)"
	}

	t.narrow(widths, s.width())
	configs := make([]table.ColumnConfig, len(widths))
	for i, n := range widths {
		configs[i] = table.ColumnConfig{Number: i + 1, WidthMax: n, WidthMaxEnforcer: text.WrapSoft}
		if i < len(t.Right) && t.Right[i] {
			configs[i].Align, configs[i].AlignHeader = text.AlignRight, text.AlignRight
		}
	}
	w.SetColumnConfigs(configs)
	return s.heading(t.Title) + strings.TrimRight(w.Render(), "\n")
}

// Markdown returns the table as a heading of the third order and a pipe table.
func (t Table) Markdown() string {
	w := table.NewWriter()
	row := func(cells []string) table.Row {
		r := make(table.Row, len(cells))
		for i, c := range cells {
			r[i] = c
		}
		return r
	}
	if t.Header != nil {
		w.AppendHeader(row(t.Header))
	}
	for _, r := range t.Rows {
		w.AppendRow(row(r))
	}
	configs := make([]table.ColumnConfig, len(t.Right))
	for i, right := range t.Right {
		configs[i].Number = i + 1
		if right {
			configs[i].Align, configs[i].AlignHeader = text.AlignRight, text.AlignRight
		}
	}
	w.SetColumnConfigs(configs)
	return "### " + t.Title + "\n" + w.RenderMarkdown()
}

// narrow takes columns from the widest until the table fits.
func (t Table) narrow(widths []int, room int) {
	total := 3*len(widths) + 1 // borders and the space beside them
	for _, n := range widths {
		total += n
	}
	for ; total > room; total-- {
		widestAt := 0
		for i, n := range widths {
			if n > widths[widestAt] {
				widestAt = i
			}
		}
		if widths[widestAt] <= minColumn {
			return
		}
		widths[widestAt]--
	}
}
