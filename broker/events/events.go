package events

import (
	"bytes"
	"maps"
	"sync"
	"time"

	"github.com/baton-ipc/baton/protocol"
)

// Kinds of events.
const (
	Session  = "session"  // opened, resumed, closed, disconnected
	Death    = "death"    // of a process that had a session, and what it left
	Refused  = "refused"  // a request, for a limit or a right
	Takeover = "takeover" // from another broker, living or dead
	Function = "function" // a provider registered, or ended
	Name     = "name"     // set for the first time or by another session, or deleted
	Memory   = "memory"   // freed, kept or lost
	Steered  = "steered"  // what an operator asked for
	NATS     = "nats"     // connected, lost, refused
	Broker   = "broker"   // all else
)

// Kinds are all of them.
var Kinds = []string{Session, Death, Refused, Takeover, Function, Name, Memory, Steered, NATS, Broker}

const (
	// Most is how many events are kept.
	Most = 1000
	// mostDetails bounds the details of one event, in bytes.
	mostDetails = 2 << 10
	// mostText bounds its text.
	mostText = 256
	// againWithin is the time in which the same event is only counted in the one before, and
	// againAmong how many events are searched for that.
	againWithin = 10 * time.Second
	againAmong  = 16
	// mostAlike is how many events of one kind and text are kept in that time, each with its details;
	// the rest is counted in one event, so that many of a kind do not push out all others.
	mostAlike = 64
	// mostSeries bounds the texts of which that is known.
	mostSeries = 256
	// others is what the text of that event says behind theirs.
	others = "; others like it"
)

// Ring keeps the last events.
type Ring struct {
	mu   sync.Mutex
	kept protocol.EventsReply // without events
	n    uint64
	ring [Most]protocol.Event // event i at i % Most
	all  map[alike]*series
	next chan struct{} // closed at the next event; nil: no follower waits
	over bool          // another ring goes on from it
}

// alike is what events of one series have in common.
type alike struct{ kind, text string }

// series counts them since a time.
type series struct {
	since time.Time
	n     int
	rest  uint64 // the number of the event that counts the rest
}

// New makes an empty ring. Its epoch differs from that of any ring before.
func New() *Ring {
	return &Ring{kept: protocol.EventsReply{Epoch: protocol.RandomNumber()}, all: map[alike]*series{}}
}

// End keeps no further events: another ring goes on from these, and gives the next numbers.
func (r *Ring) End() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
}

// add numbers and keeps an event, or counts it in one that says the same.
func (r *Ring) add(e protocol.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return
	}
	last := r.kept.Last
	for i := last; i > last-min(r.n, againAmong); i-- {
		if was := &r.ring[i%Most]; same(was, &e) && e.At.Sub(was.At) < againWithin {
			was.Times = max(was.Times, 1) + max(e.Times, 1)
			was.Until = &e.At
			return
		}
	}
	if s := r.seriesOf(&e); s != nil {
		if s.n++; s.n > mostAlike {
			if was := &r.ring[s.rest%Most]; s.rest != 0 && was.Number == s.rest {
				was.Times += max(e.Times, 1)
				was.Until = &e.At
				return
			}
			s.rest = last + 1
			e.Text, e.Details, e.Times, e.Until = cut(e.Text, mostText)+others, nil, max(e.Times, 1), &e.At
		}
	}
	e.Number = last + 1
	r.put(e)
}

// seriesOf is the series that an event belongs to; nil: there are too many.
func (r *Ring) seriesOf(e *protocol.Event) *series {
	key := alike{e.Kind, e.Text}
	s := r.all[key]
	if s != nil && e.At.Sub(s.since) < againWithin {
		return s
	}
	if s == nil && len(r.all) >= mostSeries {
		maps.DeleteFunc(r.all, func(_ alike, s *series) bool { return e.At.Sub(s.since) >= againWithin })
		if len(r.all) >= mostSeries {
			return nil
		}
	}
	s = &series{since: e.At}
	r.all[key] = s
	return s
}

func (r *Ring) put(e protocol.Event) {
	if r.next != nil {
		close(r.next)
		r.next = nil
	}
	r.kept.Last = e.Number
	r.n = min(r.n+1, Most)
	r.ring[e.Number%Most] = e
}

func same(e, o *protocol.Event) bool {
	return e.Kind == o.Kind && e.Text == o.Text && bytes.Equal(e.Details, o.Details)
}

// Next is closed when there is an event after a number.
func (r *Ring) Next(number uint64) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if number != r.kept.Last {
		there := make(chan struct{})
		close(there)
		return there
	}
	if r.next == nil {
		r.next = make(chan struct{})
	}
	return r.next
}

// Since returns the events after a number, the oldest first: the newest limit of them, 0 for all.
func (r *Ring) Since(number uint64, limit int) protocol.EventsReply {
	r.mu.Lock()
	defer r.mu.Unlock()
	reply := r.kept
	n := r.n
	if limit > 0 {
		n = min(n, uint64(limit))
	}
	if number < reply.Last {
		n = min(n, reply.Last-number)
	} else {
		n = 0
	}
	reply.Events = make([]protocol.Event, 0, n)
	for i := reply.Last - n + 1; i <= reply.Last; i++ {
		reply.Events = append(reply.Events, r.ring[i%Most])
	}
	return reply
}

// Continue puts the events of a broker that has handed over first. The events that this ring has
// so far come after them.
func (r *Ring) Continue(from protocol.EventsReply) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if from.Epoch == 0 {
		return
	}
	clear(r.all) // the numbers change
	own := make([]protocol.Event, 0, r.n)
	for i := r.kept.Last - r.n + 1; i <= r.kept.Last; i++ {
		own = append(own, r.ring[i%Most])
	}
	r.kept, r.n = protocol.EventsReply{Epoch: from.Epoch, Last: from.Last - min(from.Last, uint64(len(from.Events)))}, 0
	for _, e := range append(from.Events, own...) {
		e.Number = r.kept.Last + 1
		r.put(e)
	}
}
