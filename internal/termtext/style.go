package termtext

import (
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/term"
)

// Widths in columns. A Style outside them is treated as the nearest.
const (
	MinWidth     = 40
	MaxWidth     = 200
	DefaultWidth = 80
)

// Style says what the output may use. The zero Style is plain ASCII, DefaultWidth
// columns, suited to files and logs.
type Style struct {
	Width int  // columns; 0 means DefaultWidth
	Color bool // colours and bold by escape sequences
	UTF8  bool // characters beyond ASCII
}

// Detect finds the Style for w. Only a terminal that is not "dumb" is coloured, unless
// NO_COLOR is set. UTF8 follows LC_ALL, LC_CTYPE and LANG; the width follows COLUMNS,
// then the terminal. getenv is os.Getenv, or a stand-in.
func Detect(w io.Writer, getenv func(string) string) Style {
	s := Style{Width: DefaultWidth}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		s.Color = getenv("TERM") != "dumb" && getenv("NO_COLOR") == ""
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			s.Width = columns
		}
	}
	if columns, err := strconv.Atoi(getenv("COLUMNS")); err == nil && columns > 0 {
		s.Width = columns
	}
	for _, name := range [...]string{"LC_ALL", "LC_CTYPE", "LANG"} { // the first that is set counts
		if locale := getenv(name); locale != "" {
			locale = strings.ToLower(locale)
			s.UTF8 = strings.Contains(locale, "utf-8") || strings.Contains(locale, "utf8")
			break
		}
	}
	s.Width = s.width()
	return s
}

func (s Style) width() int {
	if s.Width == 0 {
		return DefaultWidth
	}
	return min(max(s.Width, MinWidth), MaxWidth)
}

// ascii spells the few characters beyond ASCII that this package and its callers
// like to use.
var ascii = strings.NewReplacer("µ", "u", "μ", "u", "→", "->", "…", "...", "×", "x", "·", "-", "–", "-", "—", "-", "≥", ">=", "≤", "<=", "✓", "ok", "≠", "!=")

// Text makes a string of unknown origin safe to print on one line: control
// characters, text-direction and other invisible marks and broken UTF-8 become
// question marks, and so does what is beyond ASCII where the Style has no UTF8.
func (s Style) Text(str string) string {
	if !s.UTF8 {
		str = ascii.Replace(str)
	}
	clean := true
	for _, r := range str {
		clean = clean && s.printable(r)
	}
	if clean {
		return str
	}
	return strings.Map(func(r rune) rune {
		if s.printable(r) {
			return r
		}
		return '?'
	}, str)
}

func (s Style) printable(r rune) bool {
	if r < utf8.RuneSelf {
		return r >= ' ' && r != 0x7f
	}
	// IsGraphic leaves out controls, format characters and private use; the
	// space separators it lets in are of no harm. Broken UTF-8 arrives as RuneError.
	return s.UTF8 && r != utf8.RuneError && unicode.IsGraphic(r)
}

func init() {
	// The library would count box and block characters as two columns in East
	// Asian locales; terminals of today draw them in one.
	text.OverrideRuneWidthEastAsianWidth(false)
}

// Columns is the width of a string on the terminal, in cells; escape sequences take none.
func Columns(str string) int { return text.StringWidthWithoutEscSequences(str) }

// Cut shortens plain text to n columns, and marks that it did.
func (s Style) Cut(str string, n int) string {
	if Columns(str) <= n {
		return str
	}
	mark := s.cutMark()
	if n < Columns(mark) {
		return ""
	}
	return text.Snip(str, n, mark)
}

// CutMiddle shortens plain text to n columns as Cut does, but keeps both ends: names that begin alike
// stay apart.
func (s Style) CutMiddle(str string, n int) string {
	mark := s.cutMark()
	whole, room := Columns(str), n-Columns(mark)
	if whole <= n || room < 2 {
		return s.Cut(str, n)
	}
	short := ansi.Truncate(str, (room+1)/2, "") + mark
	// A wide character at the cut may take one column more than there is.
	for tail := room / 2; ; tail-- {
		if all := short + ansi.TruncateLeft(str, whole-tail, ""); Columns(all) <= n {
			return all
		}
	}
}

// cutMark stands where text was left out.
func (s Style) cutMark() string {
	if s.UTF8 {
		return "…"
	}
	return "..."
}

// heading is a title line with its newline, or nothing.
func (s Style) heading(title string) string {
	if title == "" {
		return ""
	}
	title = s.Cut(s.Text(title), s.width())
	if s.Color {
		title = "\x1b[1m" + title + "\x1b[0m"
	}
	return title + "\n"
}
