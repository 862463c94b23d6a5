package doctor

import (
	"cmp"
	"context"
	"fmt"
	"time"
)

// State of a finding.
type State string

// States, from good to bad.
const (
	OK   State = "ok"
	Warn State = "warn" // works, with less than there could be
	Fail State = "fail" // does not work
)

// Finding is what one check has found.
type Finding struct {
	Check  string `json:"check"`
	Kind   string `json:"kind,omitempty"` // of a check that may find several things
	State  State  `json:"state"`
	Text   string `json:"text"`
	Remedy string `json:"remedy,omitempty"`
}

func ok(format string, args ...any) Finding {
	return Finding{State: OK, Text: fmt.Sprintf(format, args...)}
}

func warn(remedy, format string, args ...any) Finding {
	return Finding{State: Warn, Text: fmt.Sprintf(format, args...), Remedy: remedy}
}

func fail(remedy, format string, args ...any) Finding {
	return Finding{State: Fail, Text: fmt.Sprintf(format, args...), Remedy: remedy}
}

// note adds what one may do although all is well.
func (f Finding) note(remedy string) Finding {
	f.Remedy = remedy
	return f
}

// Check is one thing to look at.
type Check struct {
	Name string
	Look func(context.Context) Finding
	Most time.Duration // that it may take; 0: mostTime
	// Each is in the place of Look for a check that may find several things.
	Each func(context.Context) []Finding
}

// mostTime bounds one check: what it asks may give no answer.
const mostTime = 3 * time.Second

// Run looks at everything, in order, and calls each, if not nil, with what a check has found. At
// the end of ctx it stops: the check under way has found nothing.
func Run(ctx context.Context, checks []Check, each func(Finding)) (findings []Finding) {
	findings = make([]Finding, 0, len(checks))
	for _, c := range checks {
		found := c.run(ctx)
		if ctx.Err() != nil {
			return findings
		}
		for _, f := range found {
			f.Check = c.Name
			findings = append(findings, f)
			if each != nil {
				each(f)
			}
		}
	}
	return findings
}

// run looks for as long as the check may take. One that does not heed its context is given up a while later.
func (c *Check) run(ctx context.Context) []Finding {
	most := cmp.Or(c.Most, mostTime)
	bounded, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	found := make(chan []Finding, 1)
	go func() {
		if c.Each != nil {
			found <- c.Each(bounded)
		} else {
			found <- []Finding{c.Look(bounded)}
		}
	}()
	select {
	case f := <-found:
		return f
	case <-time.After(most + mostTime):
		return []Finding{warn("look at what is suspended on this machine", "it cannot be found out within %s", most+mostTime)}
	case <-ctx.Done():
		return nil
	}
}

// Worst is the worst state among findings.
func Worst(findings []Finding) State {
	worst := OK
	for _, f := range findings {
		if f.State == Fail || f.State == Warn && worst == OK {
			worst = f.State
		}
	}
	return worst
}
