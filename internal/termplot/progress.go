package termplot

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// Progress shows how far a piece of work has come: on a Live terminal a bar that is
// drawn over itself, elsewhere a plain line at each quarter. Its methods may be
// called from any goroutine.
type Progress struct {
	mu    sync.Mutex
	out   io.Writer
	style Style
	every time.Duration

	what   string // safe to print
	note   string // safe to print
	done   int64
	total  int64
	closed bool

	bar   *progressbar.ProgressBar // nil unless Live
	room  int                      // columns for text behind the bar
	shown string                   // the text behind the bar
	drawn time.Time                // when the bar was last drawn

	quarter int64 // quarters reported so far, where there is no bar
}

// ProgressOption adjusts a Progress.
type ProgressOption interface{ applyProgress(*Progress) }

type every time.Duration

func (e every) applyProgress(p *Progress) { p.every = time.Duration(e) }

// Every sets how long a bar is left as it is at least; 50 ms unless set. Reaching
// the end, and Println, draw it at once.
func Every(d time.Duration) ProgressOption { return every(d) }

// NewProgress starts to show progress on w: what is the work's name, total the
// number of steps (below 1 counts as 1). Close ends it. Errors of w are ignored:
// progress is not worth failing for.
func NewProgress(w io.Writer, s Style, total int64, what string, options ...ProgressOption) *Progress {
	p := &Progress{out: w, style: s, every: 50 * time.Millisecond, what: s.Text(what), total: max(total, 1)}
	for _, o := range options {
		o.applyProgress(p)
	}
	if !s.Live {
		return p
	}

	theme := progressbar.ThemeASCII
	if s.UTF8 {
		theme = progressbar.Theme{Saucer: "█", SaucerPadding: "░", BarStart: " ", BarEnd: " "}
	}
	counts := len(" (/) ") + 2*len(fmt.Sprint(p.total))
	// One column stays free at the right: some terminals wrap when it is written.
	p.room = s.width() - 1 - len(" 100% ") - columns(theme.BarStart+theme.BarEnd) - counts - len(" ")
	width := max(min(s.width()/3, 40, p.room), 1)
	p.room -= width
	if s.Color {
		theme.BarStart, theme.BarEnd = theme.BarStart+"\x1b[32m", "\x1b[0m"+theme.BarEnd
	}
	p.shown = s.cut(p.what, p.room)
	p.bar = progressbar.NewOptions64(p.total,
		progressbar.OptionSetDescription(p.shown),
		// A plain writer: the library would flush a file to disk at each drawing.
		progressbar.OptionSetWriter(struct{ io.Writer }{w}),
		progressbar.OptionSetTheme(theme),
		progressbar.OptionSetWidth(width),
		progressbar.OptionShowCount(),
		progressbar.OptionSetElapsedTime(false),
		progressbar.OptionSetPredictTime(false),
		progressbar.OptionShowDescriptionAtLineEnd(),
		progressbar.OptionUseANSICodes(true),
	)
	p.draw()
	return p
}

// Add moves on by n steps; less than none is ignored, more than are left goes to
// the end.
func (p *Progress) Add(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n > 0 {
		p.move(p.done + min(n, p.total-p.done))
	}
}

// Set moves on to step n, and does nothing where that is behind.
func (p *Progress) Set(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n > p.done {
		p.move(min(n, p.total))
	}
}

// Note changes the text behind the bar: "accuracy 97.5 %". It is drawn with the
// next step.
func (p *Progress) Note(note string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.note = p.style.Text(note)
}

// Println writes a line of its own above the bar.
func (p *Progress) Println(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	line = p.style.Text(line) + "\n"
	if p.bar == nil || p.closed {
		p.write(line)
		return
	}
	_ = p.bar.Clear()
	p.write(line)
	p.draw()
}

// Close ends the display with the progress as it stands and the cursor on a new
// line. It may be called again, and later calls of other methods show no bar.
func (p *Progress) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil && !p.closed {
		p.draw()
		p.write("\n")
	}
	p.closed = true
}

// move takes a value between done and total.
func (p *Progress) move(to int64) {
	if p.closed || to == p.done {
		return
	}
	p.done = to
	if p.bar == nil {
		p.report()
		return
	}
	if p.done < p.total && time.Since(p.drawn) < p.every {
		return
	}
	p.draw()
	if p.done == p.total { // the library draws a full bar no more
		p.write("\n")
		p.closed = true
	}
}

// draw draws the bar in its present state.
func (p *Progress) draw() {
	p.drawn = time.Now()
	if label := p.style.cut(p.label(), p.room); label != p.shown {
		p.shown = label
		p.bar.Describe(label) // draws, still with the old count
	}
	_ = p.bar.Set64(p.done) // draws
}

func (p *Progress) label() string {
	if p.note == "" {
		return p.what
	}
	return p.what + "  " + p.note
}

// report writes a line when a quarter is complete.
func (p *Progress) report() {
	percent := int64(100)
	if p.done < p.total { // in floating point, as a hundred times done may overflow
		percent = min(int64(float64(p.done)/float64(p.total)*100), 99)
	}
	if percent/25 == p.quarter {
		return
	}
	p.quarter = percent / 25
	line := fmt.Sprintf("%s: %d %% (%s of %s)", p.what, percent, Count(p.done), Count(p.total))
	if p.note != "" {
		line += ", " + p.note
	}
	p.write(strings.TrimSpace(line) + "\n")
}

func (p *Progress) write(str string) { _, _ = io.WriteString(p.out, str) }
