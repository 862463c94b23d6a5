package topics

import (
	"time"

	"github.com/baton-ipc/baton/protocol"
)

// TopicRow is a row of the listing `topics`: topics and queues.
type TopicRow struct {
	Topic       uint32  `json:"topic"`
	ID          uint64  `json:"id"`
	Name        string  `json:"name"` // "" of a private one
	Kind        string  `json:"kind"`
	Namespace   string  `json:"namespace"`
	State       string  `json:"state"` // open, closed, lingering
	Depth       uint32  `json:"depth"`
	Overwrite   bool    `json:"overwrite"`
	Redeliver   bool    `json:"redeliver"`
	Description uint32  `json:"description"`
	Linger      float64 `json:"linger"`
	Creator     string  `json:"creator"`
	Writers     int     `json:"writers"`
	Readers     int     `json:"readers"`
	Openers     int     `json:"openers"` // sessions that have it open
	Groups      int     `json:"groups"`
	Kept        int     `json:"kept"`    // messages
	Adopted     int     `json:"adopted"` // of them, those of ended sessions
}

// NameRow is a row of the listing `names`.
type NameRow struct {
	Name      string  `json:"name"`
	Namespace string  `json:"namespace"`
	Revision  uint64  `json:"revision"`
	Live      bool    `json:"live"`
	Ephemeral bool    `json:"ephemeral"`
	Tensors   uint16  `json:"tensors"`
	Bytes     uint64  `json:"bytes"`
	Age       float64 `json:"age_seconds"`
	Setter    string  `json:"setter"`
	Readers   int     `json:"readers"`
}

// in tells whether a topic or name is of a namespace that a listing asks for.
func (t *Topic) in(namespace string) bool {
	return namespace == t.key.namespace || namespace == protocol.AnyNamespace
}

// TopicRow is the row of a topic or queue of a namespace, and what it cost to look
// at; nil when there is none, or its name does not match.
func (ts *Topics) TopicRow(namespace string, i int, match func(string) bool) (any, int) {
	t := ts.topics[i]
	if t == nil || t.kind == protocol.TopicKindName || !t.in(namespace) || !match(t.key.name) {
		return nil, 0
	}
	r := TopicRow{Topic: t.index, ID: t.id, Name: t.key.name, Kind: kindName(t.kind), Namespace: t.key.namespace,
		State: "open", Depth: t.depth, Overwrite: !t.lossless, Redeliver: t.redeliver, Description: t.description,
		Linger: t.linger.Seconds(), Creator: t.creator, Openers: len(t.members)}
	switch {
	case t.closed:
		r.State = "closed"
	case len(t.members) == 0:
		r.State = "lingering"
	}
	for _, m := range t.members {
		r.Readers += len(m.readers)
	}
	for _, g := range t.groups {
		if g != nil {
			r.Groups++
		}
	}
	cost := 1
	for _, l := range t.lanes {
		kept := 0
		for k := uint64(0); l.Pages.There() && k < l.View.Slots(); k++ {
			if l.View.Seq(k) != 0 {
				kept++
			}
		}
		cost += int(t.slots / 16)
		r.Kept += kept
		if l.state == protocol.LaneAdopted {
			r.Adopted += kept
		} else {
			r.Writers++
		}
	}
	return r, cost
}

// NameRow is the row of a name, as TopicRow.
func (ts *Topics) NameRow(namespace string, i int, match func(string) bool) (any, int) {
	t := ts.topics[i]
	if t == nil || t.name == nil || !t.name.set || !t.in(namespace) || !match(t.key.name) {
		return nil, 0
	}
	n := t.name
	r := NameRow{Name: t.key.name, Namespace: t.key.namespace, Revision: n.revision, Live: n.live, Ephemeral: n.ephemeral != nil,
		Tensors: n.tensors, Bytes: n.bytes, Age: time.Since(n.at).Seconds(), Setter: n.setter}
	for _, m := range t.members {
		r.Readers += len(m.readers)
	}
	return r, 1
}
