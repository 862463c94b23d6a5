package topics

import (
	"cmp"
	"slices"

	"github.com/baton-ipc/baton/protocol"
)

// FlowRow is a row of the listing `flows`: the senders of a topic or queue, and its takers.
type FlowRow struct {
	Name      string    `json:"name"`             // "" of a private one
	Former    string    `json:"former,omitempty"` // of a deleted one: what it was called
	Namespace string    `json:"namespace"`
	Kind      string    `json:"kind"`
	ID        uint64    `json:"id"`
	Writers   []FlowEnd `json:"writers"`
	Readers   []FlowEnd `json:"readers"`
	More      int       `json:"more,omitempty"`      // ends that are left out
	LastLeft  string    `json:"last_left,omitempty"` // the session that left last
}

// FlowEnd is one session at one end.
type FlowEnd struct {
	Session uint64 `json:"session"` // serial
	Name    string `json:"name"`
	PID     int    `json:"pid"`
	Ended   bool   `json:"ended,omitempty"` // its session is over, and the broker keeps what it sent
	Traffic
}

// mostEnds bounds the ends of a row: those that have moved most stay.
const mostEnds = 64

// FlowRow is the row of a topic, as TopicRow.
func (ts *Topics) FlowRow(namespace string, i int, match func(string) bool) (any, int) {
	t := ts.topics[i]
	if t == nil || t.kind == protocol.TopicKindName || !t.in(namespace) || !match(t.called()) {
		return nil, 0
	}
	r := FlowRow{Name: t.key.name, Former: t.former, Namespace: t.key.namespace, Kind: kindName(t.kind), ID: t.id, Writers: []FlowEnd{}, Readers: []FlowEnd{},
		LastLeft: ts.store.Record.Topic(t.index).LastLeft()}
	for _, l := range t.lanes {
		e := FlowEnd{Session: l.File.Serial, Name: l.File.Name, PID: l.File.PID, Ended: l.state == protocol.LaneAdopted}
		e.sent(l)
		r.Writers = append(r.Writers, e)
	}
	for s, m := range t.members {
		if len(m.readers) == 0 {
			continue
		}
		e := FlowEnd{Session: s.Serial, Name: s.Name, PID: s.PID}
		for number := range m.readers {
			e.received(s.Received(number))
		}
		r.Readers = append(r.Readers, e)
	}
	cost := 1 + len(r.Writers) + len(r.Readers)
	for _, ends := range []*[]FlowEnd{&r.Writers, &r.Readers} {
		slices.SortFunc(*ends, func(a, b FlowEnd) int {
			return cmp.Or(cmp.Compare(b.Sent+b.Taken, a.Sent+a.Taken), cmp.Compare(a.Session, b.Session))
		})
		if more := len(*ends) - mostEnds; more > 0 {
			r.More += more
			*ends = (*ends)[:mostEnds]
		}
	}
	return r, cost
}
