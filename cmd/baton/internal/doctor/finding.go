package doctor

import (
	"context"
	"fmt"
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
}

// Run looks at everything, in order.
func Run(ctx context.Context, checks []Check) []Finding {
	findings := make([]Finding, 0, len(checks))
	for _, c := range checks {
		f := c.Look(ctx)
		f.Check = c.Name
		findings = append(findings, f)
	}
	return findings
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
