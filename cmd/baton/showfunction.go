package main

import (
	"time"

	"github.com/baton-ipc/baton/broker"
)

// providers is the table of the providers of a function.
func (a *app) providers(all []broker.ProviderRow) string {
	var rows [][]string
	for _, p := range all {
		state, since := "live", "-"
		if p.Stopped {
			state = "is suspended, by a signal or a debugger"
		}
		if p.Since != nil {
			since = seconds(time.Since(*p.Since).Seconds())
		}
		rows = append(rows, []string{p.Name, number(p.PID), number(p.UID), number(p.Running), number(p.Concurrency), number(p.Calls), number(p.Errors),
			quantile(p.P50), quantile(p.P99), since, state})
	}
	return a.table(&layout{
		[]string{"provider", "pid", "user", "running", "at a time", "calls", "errors", "p50", "p99", "provides for", "state"},
		[]string{"pid", "user", "running", "at a time", "calls", "errors", "p50", "p99", "provides for"},
		[]string{"state", "provider"}, []string{"user", "at a time", "provides for", "p50", "p99"}, "",
	}, rows)
}

// quantile is a time within which a part of the calls ended.
func quantile(s *float64) string {
	if s == nil {
		return "-"
	}
	return seconds(*s)
}
