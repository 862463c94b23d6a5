package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/protocol"
)

// calling are the calls of a function that run or wait.
type calling struct {
	Calls   []broker.CallRow `json:"calls"`
	LeftOut int              `json:"calls_left_out,omitempty"`
	// Waits says why calls wait; "": none does, or a provider takes them now.
	Waits string `json:"waits,omitempty"`

	providers []broker.ProviderRow // which the function's row has
}

// calls finds the calls of a function, and the storages that its messages name.
func (at *attribution) calls(ctx context.Context, l *looker, function *broker.FunctionRow) (*calling, []uint32, error) {
	c := &calling{providers: function.Providers, Calls: []broker.CallRow{}}
	rows, err := rowsOf[broker.CallsRow](ctx, l, protocol.List{What: protocol.ListCalls, Namespace: function.Namespace, Pattern: function.Name})
	if err != nil {
		return nil, nil, err
	}
	for _, r := range rows {
		if r.ID == function.ID {
			c.Calls, c.LeftOut = r.Calls, r.More
		}
	}
	c.Waits = whyCallsWait(c)
	var storages []uint32
	for _, p := range at.places {
		if p.Kind != protocol.KindFunction || p.Name != function.Name || p.Namespace != function.Namespace {
			continue
		}
		for i := range p.Messages {
			storages = append(storages, p.Messages[i].Storages...)
		}
	}
	slices.Sort(storages)
	return c, slices.Compact(storages), nil
}

// whyCallsWait tells what has to happen before a call that waits is taken.
func whyCallsWait(c *calling) string {
	if !slices.ContainsFunc(c.Calls, func(r broker.CallRow) bool { return r.Provider == nil && !r.Cancelled }) {
		return ""
	}
	places, free, stopped := 0, 0, 0
	for i := range c.providers {
		p := &c.providers[i]
		places += int(p.Concurrency)
		switch {
		case p.Stopped:
			stopped++
		case p.Running < int(p.Concurrency):
			free++
		}
	}
	switch {
	case len(c.providers) == 0:
		return "no process provides the function; start one"
	case free > 0:
		return ""
	case stopped == len(c.providers):
		return "the processes of all providers are suspended; let them go on (kill -CONT), or end them"
	case stopped > 0:
		return "the providers that are not suspended run as many calls as they take at a time"
	}
	return fmt.Sprintf("its providers run as many calls as they take at a time, %d; start another one, or register it with a higher concurrency", places)
}

// endText names the session at one end of a call.
func endText(e *broker.CallEnd) string {
	if e == nil {
		return "-"
	}
	text := sessionText(e.Name, e.PID)
	if e.Ended && e.Session != 0 {
		text += ", ended"
	}
	return text
}

func (a *app) printCalls(c *calling) error {
	text := " none"
	if len(c.providers) > 0 {
		text = "\n" + a.providers(c.providers)
	}
	if err := a.println("providers:" + text); err != nil {
		return err
	}
	text = " none"
	if len(c.Calls) > 0 {
		var rows [][]string
		for i := range c.Calls {
			r := &c.Calls[i]
			state, ran, deadline := r.State, "-", "-"
			if r.Cancelled {
				state += ", not wanted any more"
			}
			if r.Ran != nil {
				ran = seconds(*r.Ran)
			}
			if r.Left != nil {
				deadline = "in " + seconds(*r.Left)
				if *r.Left < 0 {
					deadline = "passed"
				}
			}
			rows = append(rows, []string{state, seconds(r.Age), ran, deadline, number(r.Caller.Session), endText(&r.Caller), endText(r.Provider)})
		}
		text = "\n" + a.table(&layout{[]string{"state", "sent ago", "has run", "deadline", "session", "caller", "provider"},
			[]string{"sent ago", "has run", "deadline", "session"}, []string{"state", "provider", "caller"}, []string{"session", "deadline"}, ""}, rows)
	}
	if err := a.println("calls:" + text); err != nil {
		return err
	}
	if c.LeftOut > 0 {
		if err := a.println(fmt.Sprintf("and %d more", c.LeftOut)); err != nil {
			return err
		}
	}
	if c.Waits != "" {
		return a.say("they wait: " + c.Waits)
	}
	return nil
}
