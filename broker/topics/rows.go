package topics

import (
	"encoding/json"
	"time"

	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/protocol"
)

// TopicRow is a row of the listing `topics`: topics and queues.
type TopicRow struct {
	Topic       uint32  `json:"topic"`
	ID          uint64  `json:"id"`
	Name        string  `json:"name"`             // "" of a private one
	Former      string  `json:"former,omitempty"` // of a deleted one: what it was called
	Kind        string  `json:"kind"`
	Namespace   string  `json:"namespace"`
	State       string  `json:"state"` // open, closed, lingering, deleted
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
	Waiting     int     `json:"waiting"` // of them, those that some group has not taken
	// Unacknowledged are, of the others, those that a taker has and has not acknowledged.
	Unacknowledged int `json:"unacknowledged"`
	// HeldUp are senders that have no room though fewer of their items wait than the depth: one item whose place is the
	// next is not done with. HeldUpFor is for how long the same item has been seen there, at most.
	HeldUp    int     `json:"held_up"`
	HeldUpFor float64 `json:"held_up_seconds"`
	Lingering
	Traffic

	// OfCalls: its messages are calls or replies, which are counted as calls.
	OfCalls bool `json:"-"`
}

// Traffic counts messages since a topic or session was made. It never decreases in a broker's
// life; what readers that have ended took and lost is not known to the next broker. A message
// that several readers take is taken several times.
type Traffic struct {
	Sent      uint64 `json:"sent"`
	SentBytes uint64 `json:"sent_bytes"` // of their tensors
	Taken     uint64 `json:"taken"`
	Lost      uint64 `json:"lost"` // overwritten before a reader had them
}

// safe is a count as JSON can hold it.
func safe(n uint64) uint64 { return min(n, protocol.MaxSafeInt) }

func (t *Traffic) received(r sessionfiles.Received) {
	sum := sessionfiles.Received{Taken: t.Taken, Lost: t.Lost}
	sum.Add(r)
	t.Taken, t.Lost = sum.Taken, sum.Lost
}

func (t *Traffic) sent(l *Lane) {
	t.Sent, t.SentBytes = safe(t.Sent+l.View.Head()), safe(t.SentBytes+safe(l.View.Total()))
}

// Add sums.
func (t *Traffic) Add(o Traffic) {
	t.Sent, t.SentBytes = safe(t.Sent+o.Sent), safe(t.SentBytes+o.SentBytes)
	t.received(sessionfiles.Received{Taken: o.Taken, Lost: o.Lost})
}

// Ended is what topics and queues that are no more had counted, and how many items were freed
// for others because their takers had left.
func (ts *Topics) Ended() (t Traffic, redelivered uint64) { return ts.ended, ts.freed }

// TrafficOf counts what a session has sent in the lanes that it has, and taken.
func (ts *Topics) TrafficOf(s *Party) (t Traffic) {
	t.Sent, t.SentBytes = s.sent, s.sentBytes
	for l := range ts.lanesIn[s.SessionFile] {
		t.sent(l)
	}
	t.received(s.left)
	for _, m := range s.topics {
		for number := range m.readers {
			t.received(s.Received(number))
		}
	}
	return t
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
	NATS      string  `json:"nats,omitempty"` // how far it is mirrored there; the caller fills it in
	// Hosts says of a name that spans several hosts which has set it, and how far that is here; the caller fills it in.
	// Far: it is not here.
	Hosts string `json:"hosts,omitempty"`
	Far   bool   `json:"far,omitempty"`
	// Contents are there if they were asked for, and if the message can be read; the caller fills them in.
	Contents *NameContents `json:"contents,omitempty"`
}

// NameContents is what a name's setter has described.
type NameContents struct {
	Tensors []TensorRow     `json:"tensors"`
	More    int             `json:"more,omitempty"` // tensors that are left out
	Meta    json.RawMessage `json:"meta,omitempty"` // nil also where it is long
}

// TensorRow describes one tensor.
type TensorRow struct {
	Name     string  `json:"name"`
	DType    string  `json:"dtype"`
	Shape    []int64 `json:"shape"`
	Strides  []int64 `json:"strides,omitempty"`
	Bytes    int64   `json:"bytes"`
	ReadOnly bool    `json:"readonly"`
}

// called is what a topic is called in listings.
func (t *Topic) called() string {
	if t.deleted {
		return t.former
	}
	return t.key.name
}

// in tells whether a topic or name is of a namespace that a listing asks for.
func (t *Topic) in(namespace string) bool {
	return namespace == t.key.namespace || namespace == protocol.AnyNamespace
}

// isRegistered tells whether it is a function that was registered under a name, which has a listing of
// its own.
func (t *Topic) isRegistered() bool {
	return t.function != nil && t.function.registration > 0 && t.key.name != ""
}

// TopicRow is the row of a topic or queue of a namespace, and what it cost to look
// at; nil when there is none, or its name does not match.
func (ts *Topics) TopicRow(namespace string, i int, match func(string) bool) (any, int) {
	t := ts.topics[i]
	if t == nil || t.kind == protocol.TopicKindName || t.isRegistered() || !t.in(namespace) || !match(t.called()) {
		return nil, 0
	}
	r := TopicRow{Topic: t.index, ID: t.id, Name: t.key.name, Former: t.former, Kind: kindName(t.kind), Namespace: t.key.namespace,
		State: "open", Depth: t.depth, Overwrite: !t.lossless, Redeliver: t.redeliver, Description: t.description,
		Linger: t.linger.Seconds(), Creator: t.creator, Openers: len(t.members), Lingering: t.lingers(), OfCalls: t.isOfCalls()}
	switch {
	case t.deleted:
		r.State = "deleted"
	case t.closed:
		r.State = "closed"
	case len(t.members) == 0:
		r.State = "lingering"
	}
	r.Sent, r.SentBytes = t.gone, t.goneBytes
	r.received(t.left)
	for s, m := range t.members {
		r.Readers += len(m.readers)
		for number := range m.readers {
			r.received(s.Received(number))
		}
	}
	for _, g := range t.groups {
		if g != nil {
			r.Groups++
		}
	}
	cost := 1
	for _, l := range t.lanes {
		kept := 0
		for k := uint64(0); l.File.There() && k < l.View.Slots(); k++ {
			if i := l.View.Seq(k); i != 0 {
				kept++
				switch open, done := l.openOrDone(i); {
				case open:
					r.Waiting++
				case !done:
					r.Unacknowledged++
				}
			}
		}
		holding := l.holder()
		if held := l.noteHolding(holding); holding != 0 {
			r.HeldUp, r.HeldUpFor = r.HeldUp+1, max(r.HeldUpFor, held.Seconds())
		}
		r.sent(l)
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
	r := NameRow{Name: t.key.name, Namespace: t.key.namespace, Revision: n.number(), Live: n.live, Ephemeral: n.ephemeral != nil,
		Tensors: n.tensors, Bytes: n.bytes, Age: time.Since(n.at).Seconds(), Setter: n.setter}
	for _, m := range t.members {
		r.Readers += len(m.readers)
	}
	return r, 1
}

// RevisionAt is the lane and the number of the present revision of the name in a place of the table; nil: none is set.
func (ts *Topics) RevisionAt(i int) (*Lane, uint64) {
	if t := ts.topics[i]; t != nil && t.name != nil && t.name.set {
		return t.name.lane, t.name.revision
	}
	return nil, 0
}
