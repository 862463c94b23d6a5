package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/internal/termtext"
	"github.com/baton-ipc/baton/protocol"
)

func init() { register(newEventsCommand) }

type eventFlags struct {
	clientFlags
	follow bool
	count  int
	kinds  []string
	json   bool
}

func newEventsCommand(a *app) *cobra.Command {
	var f eventFlags
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Print what has happened at the broker",
		Long: fmt.Sprintf(`Print the last %d things that happened: sessions that came, went and died, with what
they held; requests that were refused; takeovers; names set and deleted; functions
registered, and their providers ended; what operators asked for. Each is a line of the
broker's log as well, names only at its level debug.

They begin with the broker, and go on where another one has taken over from it while it
ran. What happens the same way within ten seconds is counted in one event, and so is what
goes beyond 64 of one kind and text. A name that is set again by the same session is none.

The kinds are %s.`, events.Most, strings.Join(events.Kinds, ", ")),
		Example: `  baton events -n 20
  baton events -f --kind death,refused
  baton events --json | jq 'select(.kind == "refused")'`,
		GroupID: groupLook,
		Args:    takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, k := range f.kinds {
				if !slices.Contains(events.Kinds, k) {
					return badUsage("--kind %q is none of %s", k, strings.Join(events.Kinds, ", "))
				}
			}
			if f.count < 0 {
				return badUsage("--count %d is below 0", f.count)
			}
			return a.events(cmd.Context(), &f)
		},
	}
	f.add(cmd, waitForBroker)
	cmd.Flags().BoolVarP(&f.follow, "follow", "f", false, "go on with what happens, also when another broker takes over, or this one was suspended")
	cmd.Flags().IntVarP(&f.count, "count", "n", 0, "print the last so many `events` only; 0: all that are kept")
	cmd.Flags().StringSliceVar(&f.kinds, "kind", nil, "print events of these `kinds` only")
	cmd.RegisterFlagCompletionFunc("kind", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return events.Kinds, cobra.ShellCompDirectiveNoFileComp
	})
	cmd.Flags().BoolVar(&f.json, "json", false, "print one line of JSON for each event")
	return cmd
}

// eventPace is how often a follower asks for more, at most; eventWait is for how many seconds the broker waits with an
// answer that has none, so that what happens just before the broker ends is told.
const (
	eventPace = 250 * time.Millisecond
	eventWait = 5
)

func (a *app) events(ctx context.Context, f *eventFlags) error {
	l, err := a.look(ctx, &f.clientFlags)
	if err != nil {
		return err
	}
	defer func() { l.close() }()
	var last protocol.EventsReply
	var failed error // why the last question had no answer
	next := func() (protocol.EventsReply, error) {
		if failed != nil && !l.stillSuspended() {
			other, err := a.look(ctx, f.further(last.Epoch != 0))
			if err != nil {
				return protocol.EventsReply{}, err
			}
			l.close()
			l = other
		}
		return l.eventsAfter(ctx, last)
	}
	for count, gone := f.count, ""; ; {
		asked := time.Now()
		reply, err := next()
		failed = err
		// The first answer has its time, with or without -f.
		goesOn := f.follow && away(err) && (last.Epoch != 0 || !errors.Is(err, protocol.ErrTimeout))
		switch {
		case ctx.Err() != nil && f.follow:
			return ctx.Err()
		case err != nil && !goesOn:
			return err
		case err == nil:
			if err := a.printEvents(f, reply.Events, count); err != nil {
				return err
			}
			last, count = reply, 0
		}
		gone = a.noteGone(gone, err)
		if !f.follow {
			return nil
		}
		if err == nil && len(reply.Events) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(eventPace - time.Since(asked)):
		}
	}
}

// eventsAfter asks for events after the last ones, of a new numbering for all.
func (l *looker) eventsAfter(ctx context.Context, last protocol.EventsReply) (reply protocol.EventsReply, err error) {
	if last.Epoch != 0 {
		l.follow()
	}
	r := protocol.Events{After: last.Last}
	if last.Epoch != 0 {
		r.Wait = eventWait
	}
	if err = l.Broker(ctx, protocol.OpEvents, r, &reply); err == nil && last.Epoch != 0 && reply.Epoch != last.Epoch {
		reply = protocol.EventsReply{}
		err = l.Broker(ctx, protocol.OpEvents, protocol.Events{}, &reply)
	}
	return reply, err
}

func (a *app) printEvents(f *eventFlags, list []protocol.Event, count int) error {
	if len(f.kinds) > 0 {
		list = slices.DeleteFunc(list, func(e protocol.Event) bool { return !slices.Contains(f.kinds, e.Kind) })
	}
	if count > 0 && len(list) > count {
		list = list[len(list)-count:]
	}
	for i := range list {
		e := &list[i]
		print := func() error { return a.println(eventLine(e)) }
		if f.json {
			print = func() error { return a.printLine(e) }
		}
		if err := print(); err != nil {
			return err
		}
	}
	return nil
}

// eventLine is one event as text: when, its kind, what happened, and the details in their order.
func eventLine(e *protocol.Event) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %-8s  %s", e.At.Local().Format("2006-01-02 15:04:05.000"), e.Kind, e.Text)
	if e.Times > 1 && e.Until != nil {
		fmt.Fprintf(&b, " (%d times, until %s)", e.Times, e.Until.Local().Format("15:04:05.000"))
	}
	return b.String() + termtext.Members(e.Details)
}
