package topics

import (
	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/protocol"
)

// The end of a session has three steps here, between those of other parts
// (docs/protocol.md, Death): Leave, DropNames, Finish. Each may be done again by a
// successor.

// Leave counts what a session sent up in the broker's refcounts, adopts its lanes,
// and frees its claims for others.
func (ts *Topics) Leave(s *Party) {
	s.touched = map[*Topic]struct{}{}
	ts.adoptLanes(s)
	ts.leaveTopics(s)
}

// adoptLanes counts what the session sent up in the broker's refcounts, and takes its
// lanes over.
func (ts *Topics) adoptLanes(s *Party) {
	budget := ts.adoptable(s.SessionFile)
	for l := range ts.lanesIn[s.SessionFile] {
		if l.state == protocol.LaneLive {
			s.touched[l.Topic] = struct{}{}
			ts.adopt(l, &budget)
			crashpoint.At("broker-adopted")
		}
	}
	if budget <= 0 {
		ts.log.Warn("an ended session named more than can be kept; the rest is dropped", events.Of(events.Death), "serial", s.Serial, "name", s.Name)
	}
}

// leaveTopics frees the session's claims for others and ends its groups of one.
func (ts *Topics) leaveTopics(s *Party) {
	for t, m := range s.topics {
		s.touched[t] = struct{}{}
		for _, rd := range m.readers {
			ts.leaveReader(t, s, m, rd)
		}
		ts.forgetWaiting(t, s)
		for number := range m.opens {
			ts.dropOpening(s, m, number)
		}
		crashpoint.At("broker-end-left")
	}
}

// forgetWaiting takes a session that is over out of the wait sets of a topic: a sender would
// ring it instead of a session that takes the message.
func (ts *Topics) forgetWaiting(t *Topic, s *Party) {
	waits := ts.waits(t)
	waits.All().Remove(s.Slot)
	for _, g := range t.groups {
		if g != nil {
			waits.Group(g.number).Remove(s.Slot)
		}
	}
}

// DropNames deletes the names that end with the session.
func (ts *Topics) DropNames(s *Party) {
	for t := range s.names {
		ts.endEphemeral(t, "the end of its session")
	}
}

// Rest ends all that a session takes part in. The session itself goes on, and may take part
// again.
func (ts *Topics) Rest(s *Party) {
	ts.Leave(s)
	ts.DropNames(s)
	ts.tell(s)
}

// Finish forgets the session.
func (ts *Topics) Finish(s *Party) {
	ts.tell(s)
	delete(ts.parties, s.SessionFile)
}

// tell makes all other sessions on the session's topics look again.
func (ts *Topics) tell(s *Party) {
	for t := range s.touched {
		ts.leftLast(t, s.Name)
		delete(t.members, s)
		if t.name == nil { // of a name's lane nothing has changed
			ts.changed(t)
		}
		ts.removeIfUnused(t)
	}
	clear(s.topics)
	s.touched = nil
}

// Kept is how much of what a session sent is kept.
type Kept struct{ Lanes, Messages int }

// KeptOf counts what the broker keeps of what a session sent.
func (ts *Topics) KeptOf(p *sessionfiles.SessionFile) (k Kept) {
	for l := range ts.lanesIn[p] {
		if l.state == protocol.LaneAdopted {
			k.Lanes++
			k.Messages += len(l.kept)
		}
	}
	return k
}
