package broker

import (
	"time"

	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// A closed session takes part in nothing, and yet its process may go on reading what
// the session held. Row and slot stay until the row counts nothing, so that nothing of
// it is recycled or given back before. Only the process counts in its row; the broker
// looks.

// childBound is how long the row of a session stays that was forking when it ended:
// a child has two seconds to connect, and then counts what it inherited.
const childBound = 3 * time.Second

// opBye ends a session as a death does: what it sent is received. A further bye ends it
// wholly once it holds nothing. A client that keeps its memory recycles it itself, as
// before, and may use the session again.
func (b *Broker) opBye(s *session, r *protocol.Bye) (any, []*sys.FD, error) {
	if s.ended { // the collector was faster
		return protocol.ByeReply{}, nil, nil
	}
	if r.Keep && s.state != protocol.SessionClosed {
		b.log.Info("session left all that it took part in", "slot", s.Slot, "serial", s.Serial, "name", s.Name, "pid", s.PID)
		b.topics.Rest(s.party)
		b.leases.EndOf(s.Pages)
		b.settle()
		b.careSoon()
		return protocol.ByeReply{Held: true}, nil, nil
	}
	if s.state != protocol.SessionClosed {
		b.log.Info("session closed", "slot", s.Slot, "serial", s.Serial, "name", s.Name, "pid", s.PID)
	}
	s.counting = false
	b.leave(s)
	b.endIfEmpty(s)
	return protocol.ByeReply{Held: !s.ended}, nil, nil
}

// leave ends a session's part in all, but for its row.
func (b *Broker) leave(s *session) {
	if s.left || s.ended {
		return
	}
	b.setState(s, protocol.SessionClosed)
	crashpoint.At("broker-close-marked")
	b.leaveAll(s)
	crashpoint.At("broker-close-left")
	s.left = true
	b.closed[s] = struct{}{}
	b.careSoon()
}

// endEmpty ends the closed sessions whose rows count nothing any more.
func (b *Broker) endEmpty() (progress bool) {
	for s := range b.closed {
		c := s.conn
		if b.endIfEmpty(s) {
			progress = true
			if c != nil {
				c.finish()
			}
		}
	}
	return progress
}

// endIfEmpty ends a closed session that holds nothing. One that was attached to
// something since its last bye may be about to count.
func (b *Broker) endIfEmpty(s *session) bool {
	if s.counting || s.absent || b.memory.Holds(s.memory) {
		return false
	}
	crashpoint.At("broker-close-empty")
	b.bury(s)
	return true
}

// processEnded ends the session of a process that has ended. If it was forking, the
// child inherits what its row counts, and gets time to count that.
func (b *Broker) processEnded(s *session) {
	c := s.conn
	if rest := s.forking(); rest > 0 {
		b.log.Info("the process ended in a fork: what it held waits for its child", "slot", s.Slot, "serial", s.Serial, "name", s.Name)
		s.counting = false
		b.leave(s)
		b.clock.After(rest, func() { b.bury(s) })
	} else {
		b.bury(s)
	}
	if c != nil {
		c.finish()
	}
}

// forking returns how long a child that the session was making when it ended may
// take to count what it inherited, 0 when it was making none.
func (s *session) forking() time.Duration {
	if !s.There() {
		return 0
	}
	began := s.Session.Region.Load64(protocol.SessionForking)
	past := time.Duration(sys.Monotonic() - began)
	if began == 0 || past < 0 || past >= childBound {
		return 0
	}
	return childBound - past
}
