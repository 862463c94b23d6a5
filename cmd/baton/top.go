package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/cmd/baton/internal/top"
	"github.com/baton-ipc/baton/protocol"
)

func init() { register(newTopCommand) }

type topFlags struct {
	clientFlags
	interval time.Duration
	count    int
	sort     string
	all      bool
	json     bool
}

func newTopCommand(a *app) *cobra.Command {
	var f topFlags
	cmd := &cobra.Command{
		Use:   "top [" + strings.Join(top.Views(), "|") + "]",
		Short: "Watch messages, bytes and memory as they flow",
		Long: `Watch what the broker's topics, sessions, names and functions do: messages, bytes and calls
a second, what was lost, what waits, memory granted and held, processes that are suspended.
The keys are told by "?". All namespaces are shown. The filter (/) looks at names, namespaces,
programs, pids, users, containers and command lines.

Topics and queues without a name are left out, and counted in one line, unless --all is
given: each caller of functions has one for its replies.

Without a terminal, or with --count, it prints tables, one for each look: the first after
one interval, since rates need two looks. --json prints a line of JSON for each look, with
the counts themselves and no rates. Where the broker ends or is suspended, it says so on
standard error and goes on with the next one, or when it answers again.

It asks the broker for its listings and is in the path of nothing.`,
		GroupID: groupLook,
		Args:    takes(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			view := top.Topics
			if len(args) == 1 {
				var known bool
				if view, known = top.Parse(args[0]); !known {
					return badUsage("%q is none of %s", args[0], strings.Join(top.Views(), ", "))
				}
			}
			if f.interval < 100*time.Millisecond || f.count < 0 {
				return badUsage("--interval is 100ms or more, and --count 0 or more")
			}
			by := view.Usual()
			if f.sort != "" {
				var known bool
				if by, known = view.Order(f.sort); !known {
					return badUsage("--sort %q is no column of %s: %s", f.sort, view, strings.Join(view.SortedBy(), ", "))
				}
			}
			return a.top(cmd.Context(), &f, view, by)
		},
		ValidArgs: top.Views(),
	}
	f.add(cmd, waitForBroker)
	cmd.Flags().DurationVarP(&f.interval, "interval", "i", time.Second, "time between two looks, 100ms at least")
	cmd.Flags().IntVarP(&f.count, "count", "n", 0, "print so many `tables` and end; 0: go on")
	cmd.Flags().StringVar(&f.sort, "sort", "", "sort by this `column`, as its title says")
	cmd.RegisterFlagCompletionFunc("sort", completeColumns)
	cmd.Flags().BoolVar(&f.all, "all", false, "show topics and queues without a name as well")
	cmd.Flags().BoolVar(&f.json, "json", false, "print one line of JSON for each look")
	return cmd
}

func (a *app) top(ctx context.Context, f *topFlags, view top.View, by top.Order) error {
	w := &watcher{a: a, f: &f.clientFlags, all: f.all}
	defer w.close()
	if out, is := a.out.(*os.File); is && f.count == 0 && !f.json && term.IsTerminal(int(out.Fd())) && term.IsTerminal(int(os.Stdin.Fd())) {
		if _, err := w.look(ctx, false); err != nil { // said as any command does
			return err
		}
		look := func(ctx context.Context, programs bool) (*top.Sample, error) {
			s, err := w.look(ctx, programs)
			if errors.Is(err, protocol.ErrTimeout) { // first what the narrowest line has room for
				err = errors.New("no answer: " + protocol.Plain(err))
			}
			return s, err
		}
		return top.New(ctx, look, view, by, f.interval).Run(tea.WithOutput(out))
	}
	return a.printTop(ctx, f, w, view, by)
}

// topLayout is that of a table of top: its first column of words says what a row is. The column by which it is
// sorted is not left out.
func topLayout(t *top.Table, by top.Order) *layout {
	l := &layout{header: t.Titles}
	for i := len(t.Titles) - 1; i >= 0; i-- {
		if t.Right[i] {
			l.right = append(l.right, t.Titles[i])
		} else {
			l.weak = append(l.weak, t.Titles[i])
		}
		if i > 1 && i != by.Column {
			l.minor = append(l.minor, t.Titles[i])
		}
	}
	return l
}

// printTop prints one table after the other.
func (a *app) printTop(ctx context.Context, f *topFlags, w *watcher, view top.View, by top.Order) error {
	var before *top.Sample
	tick := time.NewTicker(f.interval)
	defer tick.Stop()
	gone := ""
	for printed := 0; ; {
		now, err := w.look(ctx, false)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && (before == nil || !away(err)):
			return err
		}
		gone = a.noteGone(gone, err)
		switch {
		case err != nil: // another one may take over
		case f.json:
			err = a.printLine(now)
			printed++
		case before != nil:
			t := view.Tabulate(now, before, by, "")
			text := now.At.Local().Format("15:04:05") + "\n" + a.table(topLayout(&t, by), t.Rows)
			if left := top.LeftOut(now.Private); left != "" && view == top.Topics {
				text += "\n" + left
			}
			if printed > 0 {
				text = "\n" + text
			}
			err = a.println(text)
			printed++
		}
		if err != nil && !away(err) {
			return err
		}
		if f.count > 0 && printed >= f.count {
			return nil
		}
		if now != nil {
			before = now
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// noteGone says why a command goes on without an answer, unless that is said already, and returns what was said last; ""
// once there is an answer.
func (a *app) noteGone(said string, err error) string {
	text := ""
	switch {
	case err == nil || !away(err):
		return ""
	case errors.Is(err, protocol.ErrTimeout):
		text = protocol.Plain(err) + ": waiting for it"
		if remedy := a.remedy(err); remedy != "" {
			text += "; what to do: " + remedy
		}
	default:
		text = "the broker has ended, or cannot be reached: waiting for the next one"
	}
	if text != said {
		fmt.Fprintf(a.err, "baton: %s\n", a.lines(text))
	}
	return text
}

// away describes a broker that has gone, and in whose place another one may come, or that does not answer and may go on.
func away(err error) bool {
	return errors.Is(err, protocol.ErrBrokerLost) || errors.Is(err, protocol.ErrNoBroker) || errors.Is(err, protocol.ErrTimeout)
}

// watcher looks at a broker again and again, and at the next one when it has gone.
type watcher struct {
	a *app
	f *clientFlags
	l *looker

	all  bool // private topics as well
	seen bool // a broker has answered
	gone bool // and the last look had no answer
}

func (w *watcher) close() {
	if w.l != nil {
		w.l.close()
		w.l = nil
	}
}

// look takes a sample. With programs it has how each session's process was started, and where: the broker asks the
// kernel about each.
func (w *watcher) look(ctx context.Context, programs bool) (s *top.Sample, err error) {
	if w.l != nil && w.gone {
		if w.l.stillSuspended() {
			return nil, w.l.gaveUp
		}
		w.close()
	}
	if w.l == nil {
		l, err := w.a.look(ctx, w.f.further(w.seen))
		if err != nil {
			return nil, err
		}
		w.l = l
	}
	defer func() {
		w.gone = err != nil
		w.seen = w.seen || err == nil
	}()
	if w.seen {
		w.l.follow()
	}
	s = &top.Sample{}
	if err := w.l.Broker(ctx, protocol.OpStatus, nil, &s.Status); err != nil {
		return nil, err
	}
	all := func(what string) protocol.List {
		return protocol.List{What: what, Namespace: protocol.AnyNamespace, Limit: 1024}
	}
	s.At = time.Now()
	if s.Topics, err = rowsOf[broker.TopicRow](ctx, w.l, all(protocol.ListTopics)); err != nil {
		return nil, err
	}
	if !w.all {
		s.LeaveOutPrivate()
	}
	if s.Functions, err = rowsOf[broker.FunctionRow](ctx, w.l, all(protocol.ListFunctions)); err != nil {
		return nil, err
	}
	sessions := all(protocol.ListSessions)
	sessions.Programs = programs
	if s.Sessions, err = rowsOf[broker.SessionRow](ctx, w.l, sessions); err != nil {
		return nil, err
	}
	if s.Names, err = rowsOf[broker.NameRow](ctx, w.l, all(protocol.ListNames)); err != nil {
		return nil, err
	}
	var events protocol.EventsReply
	if err := w.l.Broker(ctx, protocol.OpEvents, protocol.Events{Limit: 1}, &events); err != nil {
		return nil, err
	}
	s.Events = events.Events
	return s, nil
}
