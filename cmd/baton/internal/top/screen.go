package top

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/baton-ipc/baton/internal/termtext"
)

// Look takes a sample, with the command line and the container of each session where programs are asked
// for. Its error is shown, and it is asked again.
type Look func(ctx context.Context, programs bool) (*Sample, error)

// Screen is what the terminal shows.
type Screen struct {
	look     Look
	ctx      context.Context
	interval time.Duration

	view   View
	orders [views]Order
	filter string
	typing bool // of the filter
	// programs: the filter wants to know the programs of sessions. Samples are taken in another
	// goroutine, which reads it after a key has set it.
	programs atomic.Bool
	paused   bool
	help     bool
	top      int // first row that is shown

	now, before   *Sample
	err           error
	width, height int
}

// New makes a screen that begins with a view.
func New(ctx context.Context, look Look, view View, by Order, interval time.Duration) *Screen {
	s := &Screen{look: look, ctx: ctx, interval: interval, view: view, width: 80, height: 24}
	for v := range views {
		s.orders[v] = v.Usual()
	}
	s.orders[view] = by
	return s
}

// Run shows the screen until it is left, or ctx ends.
func (s *Screen) Run(options ...tea.ProgramOption) error {
	_, err := tea.NewProgram(s, append(options, tea.WithContext(s.ctx), tea.WithoutSignalHandler())...).Run()
	if s.ctx.Err() != nil {
		return s.ctx.Err()
	}
	return err
}

type sampled struct {
	sample *Sample
	err    error
}

type tick struct{}

// Init takes the first sample.
func (s *Screen) Init() tea.Cmd { return s.sample }

func (s *Screen) sample() tea.Msg {
	sample, err := s.look(s.ctx, s.programs.Load())
	return sampled{sample, err}
}

// Update takes one message in.
func (s *Screen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		s.width, s.height = msg.Width, msg.Height
	case sampled:
		if s.err = msg.err; msg.err == nil && !s.paused {
			s.before, s.now = s.now, msg.sample
			if s.before == nil {
				return s, tea.Tick(min(s.interval, time.Second), func(time.Time) tea.Msg { return tick{} })
			}
		}
		return s, tea.Tick(s.interval, func(time.Time) tea.Msg { return tick{} })
	case tick:
		return s, s.sample
	case tea.KeyPressMsg:
		return s, s.press(msg)
	}
	return s, nil
}

func (s *Screen) press(key tea.KeyPressMsg) tea.Cmd {
	if s.typing {
		switch key.String() {
		case "enter":
			s.typing = false
		case "esc":
			s.typing, s.filter = false, ""
		case "backspace":
			if r := []rune(s.filter); len(r) > 0 {
				s.filter = string(r[:len(r)-1])
			}
		case "ctrl+c":
			return tea.Quit
		default:
			s.filter += key.Key().Text
		}
		s.top = 0
		return nil
	}
	o := &s.orders[s.view]
	switch key.String() {
	case "q", "ctrl+c":
		return tea.Quit
	case "esc":
		s.help, s.filter = false, ""
	case "1", "2", "3", "4":
		s.view, s.top = View(key.String()[0]-'1'), 0
	case "tab":
		s.view, s.top = (s.view+1)%views, 0
	case "right", ">":
		*o = Order{Column: (o.Column + 1) % s.view.Columns()}
	case "left", "<":
		*o = Order{Column: (o.Column + s.view.Columns() - 1) % s.view.Columns()}
	case "r":
		o.Reverse = !o.Reverse
	case "p", "space":
		s.paused = !s.paused
	case "/":
		s.typing = true
		s.programs.Store(true) // from the next look on
	case "?", "h":
		s.help = !s.help
	case "down", "j":
		s.top++
	case "up", "k":
		s.top = max(s.top-1, 0)
	case "pgdown":
		s.top += max(s.room(), 1)
	case "pgup":
		s.top = max(s.top-max(s.room(), 1), 0)
	case "home", "g":
		s.top = 0
	}
	return nil
}

var (
	bold  = lipgloss.NewStyle().Bold(true)
	faint = lipgloss.NewStyle().Faint(true)
	bad   = lipgloss.NewStyle().Foreground(lipgloss.Red)
	mark  = lipgloss.NewStyle().Reverse(true)
)

// View draws the screen.
func (s *Screen) View() tea.View {
	v := tea.NewView(s.content())
	v.AltScreen = true
	v.WindowTitle = "baton top"
	return v
}

// headLines are those above the table's rows.
const headLines = 6

// room is how many rows there is place for.
func (s *Screen) room() int { return s.height - headLines - 1 }

func (s *Screen) content() string {
	var lines []string
	add := func(line string) { lines = append(lines, ansi.Truncate(line, s.width, "…")) }
	switch {
	case s.now == nil && s.err != nil:
		return ansi.Truncate(bad.Render(s.err.Error()), s.width*max(s.height-1, 1), "…")
	case s.now == nil:
		return "looking at the broker"
	case s.help:
		return ansi.Wrap(helpText, s.width, "")
	}
	for _, line := range Head(s.now, s.width) {
		add(line)
	}
	switch {
	case s.err != nil:
		add(bad.Render(s.err.Error()))
	case len(s.now.Events) > 0:
		e := s.now.Events[len(s.now.Events)-1]
		ago := "now"
		if since := s.now.At.Sub(e.At); since >= time.Second {
			ago = termtext.Duration(since.Round(time.Second)) + " ago"
		}
		add(faint.Render(fmt.Sprintf("last event, %s: %s%s", ago, e.Text, termtext.Members(e.Details))))
	default:
		add("")
	}
	add(s.tabs())
	table := s.view.Tabulate(s.now, s.before, s.orders[s.view], s.filter)
	s.top = min(s.top, max(len(table.Rows)-s.room(), 0))
	lines = append(lines, table.Draw(s.width, s.orders[s.view], s.top, s.room())...)
	for len(lines) < s.height-1 {
		lines = append(lines, "")
	}
	add(s.foot(len(table.Rows)))
	return strings.Join(lines, "\n")
}

// Head describes the broker as a whole, in lines that a width has room for: what does not fit is left out.
func Head(now *Sample, width int) []string {
	st := &now.Status
	began := []string{fmt.Sprintf("%s  pid %d", bold.Render("baton"), st.PID)}
	if st.Taking {
		began = append(began, "taking over from the previous broker")
	}
	began = append(began, "version "+st.Version, "up "+termtext.Duration(time.Duration(st.Uptime*float64(time.Second))))

	m := st.Memory
	memory := []string{fmt.Sprintf("%s of %s granted", bytes(m.Granted), bytes(m.Limit)), bytes(m.Held) + " held", bytes(m.Left) + " left"}
	for _, of := range []struct {
		n    uint64
		what string
	}{{m.ForChildren, "held for children"}, {m.Orphans, "of ended owners"}, {m.Lanes, "in lanes"}} {
		if of.n > 0 {
			memory = append(memory, bytes(of.n)+" "+of.what)
		}
	}
	for _, d := range st.Devices {
		memory = append(memory, fmt.Sprintf("cuda:%d: %s granted, %s held", d.ID, bytes(d.Granted), bytes(d.Held)))
	}
	const label = "memory    "
	if room := width - len(label) - len(strings.Join(memory[:3], ", ")) - len("[] "); room >= 10 { // what is said comes before the bar
		memory[0] = bar(m.Granted, m.Limit, min(room, 20)) + " " + memory[0]
	}

	c := st.Counts
	sessions := fmt.Sprintf("sessions  %d", c.Sessions)
	var gone []string
	for _, of := range []struct {
		n    int
		what string
	}{{c.Disconnected, "disconnected"}, {c.Closed, "closed"}, {c.Evicted, "evicted"}} {
		if of.n > 0 {
			gone = append(gone, fmt.Sprintf("%d %s", of.n, of.what))
		}
	}
	if len(gone) > 0 {
		sessions += " (" + strings.Join(gone, ", ") + ")"
	}
	counts := []string{sessions}
	for _, of := range []struct {
		n    int
		what string
	}{{c.Topics, "topics"}, {c.Queues, "queues"}, {c.Functions, "functions"}, {c.Names, "names"}, {c.Leases, "leases"}, {c.Storages, "storages held"}} {
		counts = append(counts, fmt.Sprintf("%d %s", of.n, of.what))
	}
	memory[0] = label + memory[0]
	return []string{fitting(began, width), fitting(memory, width), fitting(counts, width)}
}

// fitting joins the parts that a width has room for, one after the other; the first one at any rate.
func fitting(parts []string, width int) string {
	line := parts[0]
	for _, part := range parts[1:] {
		if more := line + ", " + part; ansi.StringWidth(more) <= width {
			line = more
		}
	}
	return line
}

// bar draws a share.
func bar(part, whole uint64, width int) string {
	full := 0
	if whole > 0 {
		full = int(float64(min(part, whole)) / float64(whole) * float64(width))
	}
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", width-full) + "]"
}

func (s *Screen) tabs() string {
	var parts []string
	for v := range views {
		name := fmt.Sprintf(" %d %s ", int(v)+1, v)
		if v == s.view {
			name = mark.Render(name)
		}
		parts = append(parts, name)
	}
	return strings.Join(parts, "")
}

func (s *Screen) foot(rows int) string {
	switch {
	case s.typing:
		return "filter: " + s.filter + "_"
	case s.filter != "":
		return faint.Render(fmt.Sprintf("%d rows with %q; esc shows all", rows, s.filter))
	case s.paused:
		return bold.Render("paused") + faint.Render("; p goes on")
	}
	if s.view == Topics && s.now.Private > 0 {
		return faint.Render(LeftOut(s.now.Private) + "  ? help")
	}
	return faint.Render("? help  q quit  tab view  ←→ sort  r reverse  / filter  p pause")
}

// helpText has a line for each key and one for each paragraph, which the terminal's width breaks.
const helpText = `Keys

  1 to 4, tab  topics, sessions, names, functions
  ← →          sort by another column
  r            reverse the order
  ↑ ↓, pages   move
  /            show rows with a text in their name or namespace, or in the
               program, pid, user, container or command line behind them; esc
               shows all
  p            pause
  q            quit

` + "Rates are those between the last two looks. Sent and taken count messages; lost are those that " +
	"were overwritten before a reader had them. Waiting are messages that some group of a lossless " +
	"topic, or a taker of a queue, has not taken; unacknowledged are those that a taker of a queue " +
	"with redelivery has and has not released. A message that three readers take is taken three times.\n\n" +
	"Of functions: calls that ended, errors of them, those that run and wait, and the times within " +
	"which half and 99 of 100 of the calls ended. A wider terminal shows more columns.\n\n? goes back"
