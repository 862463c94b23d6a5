package topics

import (
	"cmp"
	"slices"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// CallsRow is a row of the listing `calls`: the calls of one function that have not ended.
type CallsRow struct {
	Name      string    `json:"name"`
	Namespace string    `json:"namespace"`
	ID        uint64    `json:"id"`
	Calls     []CallRow `json:"calls"`          // those that run first, the oldest of each first
	More      int       `json:"more,omitempty"` // calls that are left out
}

// States of a call.
const (
	CallWaits   = "waiting" // no provider has taken it
	CallTaken   = "taken"   // a provider has it, and its function does not run yet
	CallRunning = "running"
)

// CallRow is one call.
type CallRow struct {
	State  string  `json:"state"`
	Caller CallEnd `json:"caller"`
	// Provider is the one that has taken it; nil: none has.
	Provider *CallEnd `json:"provider,omitempty"`
	Age      float64  `json:"age_seconds"`               // since it was sent, as its caller says
	Ran      *float64 `json:"running_seconds,omitempty"` // as the provider says; left out where it does not
	// Left is how many seconds there are until its deadline, below 0 after it; left out where it has none,
	// and where the request is too large to be looked at.
	Left      *float64 `json:"deadline_in,omitempty"`
	Cancelled bool     `json:"cancelled,omitempty"` // its caller does not wait for it any more

	lane   *Lane
	number uint64 // of its message
}

// CallEnd is the session at one end of a call.
type CallEnd struct {
	Session uint64 `json:"session"` // serial; 0: it has ended
	Name    string `json:"name"`
	PID     int    `json:"pid"`
	Ended   bool   `json:"ended,omitempty"`
}

// mostCalls bounds the calls of a row: those that run, and the oldest, stay.
const mostCalls = 256

// CallsRow is the row of a registered function, as FunctionRow.
func (ts *Topics) CallsRow(namespace string, i int, match func(string) bool) (any, int) {
	t := ts.topics[i]
	if t == nil || !t.isRegistered() || !t.in(namespace) || !match(t.key.name) {
		return nil, 0
	}
	r := CallsRow{Name: t.key.name, Namespace: t.key.namespace, ID: t.id, Calls: []CallRow{}}
	now, cost := sys.Monotonic(), 1
	for _, g := range t.groups {
		if g == nil {
			continue
		}
		for _, l := range t.lanes {
			a, ok := g.area(l.Number)
			if !ok || !l.File.There() {
				continue
			}
			cost += int(t.slots / 16)
			for k := uint64(0); k < l.View.Slots(); k++ {
				if call, is := l.call(g, a, l.View.Seq(k), now); is {
					if r.Calls = append(r.Calls, call); len(r.Calls) >= 4*mostCalls {
						r.cut()
					}
				}
			}
		}
	}
	r.cut()
	for k := range r.Calls {
		r.Calls[k].readDeadline(now)
	}
	return r, cost + len(r.Calls)
}

// cut leaves those that run, and the oldest, in their order.
func (r *CallsRow) cut() {
	slices.SortFunc(r.Calls, func(a, b CallRow) int {
		return cmp.Or(cmp.Compare(rank(a.State), rank(b.State)), cmp.Compare(b.Age, a.Age))
	})
	if more := len(r.Calls) - mostCalls; more > 0 {
		r.More += more
		r.Calls = r.Calls[:mostCalls]
	}
}

func rank(state string) int { return slices.Index([]string{CallRunning, CallTaken, CallWaits}, state) }

// call is the row of the call which message i is, if it has not ended.
func (l *Lane) call(g *group, a shm.GroupLane, i, now uint64) (c CallRow, ok bool) {
	if i == 0 || a.Done(i) {
		return c, false
	}
	member, state := a.Call(i)
	c = CallRow{State: CallWaits, Age: seconds(now - min(now, l.stamp(i))), lane: l, number: i, Cancelled: l.View.Cancelled(i),
		Caller: CallEnd{Session: l.File.Serial, Name: l.File.Name, PID: l.File.PID, Ended: l.state == protocol.LaneAdopted}}
	switch state {
	case shm.CallWaits:
		return c, a.Open(i)
	case shm.CallDone:
		return c, false
	case shm.CallClaimed:
		c.State = CallTaken
	case shm.CallBegun:
		c.State = CallRunning
	}
	c.Provider = &CallEnd{Name: "a provider that has left", Ended: true}
	if s := g.owners[member]; s != nil {
		c.Provider = &CallEnd{Session: s.Serial, Name: s.Name, PID: s.PID}
		if p := g.members[member]; p != nil && c.State == CallRunning {
			if ran, known := protocol.RanFor(s.Begun(p.number, l.Number, i), l.Number, i, now); known {
				s := seconds(ran)
				c.Ran = &s
			}
		}
	}
	return c, true
}

// readDeadline reads the deadline of a call from its request, which its caller may write meanwhile.
func (c *CallRow) readDeadline(now uint64) {
	if c.lane.state == protocol.LaneAdopted {
		return
	}
	head, words, ok := c.lane.View.Read(c.number, nil)
	if !ok || !c.lane.View.Has(c.number) {
		return
	}
	body, err := protocol.ParseBody(head.BodyOf(words))
	if err != nil {
		return // a large one stands elsewhere, or its caller is at fault
	}
	var request protocol.Call
	if request.Parse(body.Meta) != nil || request.Deadline == 0 {
		return
	}
	left := seconds(request.Deadline) - seconds(now)
	c.Left = &left
}
