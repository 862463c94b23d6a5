package topics

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"time"

	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/protocol"
)

// FunctionRow is a row of the listing `functions`.
type FunctionRow struct {
	Name         string          `json:"name"`
	Namespace    string          `json:"namespace"`
	Topic        uint32          `json:"topic"`
	ID           uint64          `json:"id"`
	Registration uint32          `json:"registration"`
	UID          uint32          `json:"uid"`
	Idempotent   bool            `json:"idempotent"`
	Exclusive    bool            `json:"exclusive"`
	Description  json.RawMessage `json:"description"`
	Since        time.Time       `json:"since"`
	Callers      int             `json:"callers"`
	Waiting      int             `json:"waiting"` // calls that no provider has taken
	Running      int             `json:"running"`
	CallTotals
	Providers []ProviderRow `json:"providers"`
	Lingering

	// Counted is what all its providers have counted, also those that have left.
	Counted sessionfiles.Provided `json:"-"`
}

// CallTotals are what providers say of the calls that they ran. A provider that breaks the protocol
// spoils these numbers and nothing else.
type CallTotals struct {
	Calls  uint64  `json:"calls"`  // that ended
	Errors uint64  `json:"errors"` // of them
	Ran    float64 `json:"ran_seconds"`
	// P50 and P99 are the seconds within which so much of them ended; left out where there were none.
	P50 *float64 `json:"p50_seconds,omitempty"`
	P99 *float64 `json:"p99_seconds,omitempty"`
}

func totals(p *sessionfiles.Provided) CallTotals {
	return CallTotals{Calls: p.Calls, Errors: min(p.Failed, p.Calls), Ran: seconds(p.Took), P50: quantile(p, 0.5), P99: quantile(p, 0.99)}
}

// Add sums, all but the quantiles. There are at most as many errors as calls.
func (t *CallTotals) Add(o *CallTotals) {
	t.Calls, t.Errors, t.Ran = safe(t.Calls+o.Calls), safe(t.Errors+o.Errors), t.Ran+o.Ran
}

func seconds(ns uint64) float64 { return float64(ns) / 1e9 }

func quantile(p *sessionfiles.Provided, part float64) *float64 {
	ns, ok := p.Quantile(part)
	if !ok {
		return nil
	}
	s := seconds(ns)
	return &s
}

// ProviderRow is one provider of a function.
type ProviderRow struct {
	Session     uint64 `json:"session"`
	Name        string `json:"name"`
	PID         int    `json:"pid"`
	UID         uint32 `json:"uid"`
	Concurrency uint32 `json:"concurrency"`
	Running     int    `json:"running"`
	// Since is when it registered, by its own word; left out where it does not say.
	Since   *time.Time `json:"since,omitempty"`
	Stopped bool       `json:"stopped,omitempty"` // its process is suspended; the caller fills it in
	CallTotals

	// Start is the start time of its process; 0: its number is of another pid namespace.
	Start uint64 `json:"-"`
}

// FunctionRow is the row of a registered function of a namespace, as TopicRow.
func (ts *Topics) FunctionRow(namespace string, i int, match func(string) bool) (any, int) {
	t := ts.topics[i]
	if t == nil || !t.isRegistered() || !t.in(namespace) || !match(t.key.name) {
		return nil, 0
	}
	f := t.function
	r := FunctionRow{Name: t.key.name, Namespace: t.key.namespace, Topic: t.index, ID: t.id, Registration: f.registration, UID: f.uid,
		Idempotent: f.idempotent, Exclusive: f.exclusive, Description: json.RawMessage(f.description), Since: f.made, Providers: []ProviderRow{}, Lingering: t.lingers()}
	if !json.Valid(r.Description) {
		r.Description = nil
	}
	running := map[uint16]int{}
	cost := 1
	for _, l := range t.lanes {
		if l.state == protocol.LaneLive {
			r.Callers++
		}
		for _, g := range t.groups {
			if g == nil || !l.File.There() {
				continue
			}
			a, ok := g.area(l.Number)
			for k := uint64(0); ok && k < l.View.Slots(); k++ {
				i := l.View.Seq(k)
				switch m := a.Claimant(i); {
				case i == 0:
				case m != 0:
					running[m]++
					r.Running++
				case a.Open(i):
					r.Waiting++
				}
			}
		}
		cost += int(t.slots / 16)
	}
	if f.left != nil {
		r.Counted = *f.left
	}
	for _, g := range t.groups {
		if g == nil {
			continue
		}
		for member, p := range g.members {
			s := g.owners[member]
			if s == nil {
				continue
			}
			counted, since := s.Provided(p.number)
			if counted != nil {
				r.Counted.Add(counted)
			}
			cost += protocol.ProviderBuckets / 16
			if p.calls > 0 {
				r.Providers = append(r.Providers, providerRow(s, p, counted, since))
				last := &r.Providers[len(r.Providers)-1]
				last.Running = running[member]
			}
		}
	}
	r.CallTotals = totals(&r.Counted)
	slices.SortFunc(r.Providers, func(a, b ProviderRow) int { return cmp.Compare(a.Session, b.Session) })
	return r, cost
}

func providerRow(s *Party, p *reader, counted *sessionfiles.Provided, since uint64) ProviderRow {
	row := ProviderRow{Session: s.Serial, Name: s.Name, PID: s.PID, Concurrency: p.calls}
	row.Start, row.UID = s.Process.Began()
	if counted != nil {
		row.CallTotals = totals(counted)
		at := time.Unix(0, int64(min(since, math.MaxInt64)))
		row.Since = &at
	}
	return row
}

// EndedCalls is what functions that are no more had counted.
func (ts *Topics) EndedCalls() CallTotals { return ts.endedCalls }
