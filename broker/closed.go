package broker

import (
	"time"

	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// A closed session takes part in nothing, and yet its process may go on reading what
// the session held. Refcounts and slot stay until the refcounts count nothing, so that nothing of
// it is recycled or given back before. Only the process counts in its refcounts; the broker
// looks.

// childBound is how long the refcounts of a session stay whose process ended in a fork, where no
// memory file shows whether there is a child. A child has two seconds to connect, and then
// counts what it inherited.
const childBound = 3 * time.Second

// forkBound is how long a process waits for a child that it forks to count what it
// inherits.
const forkBound = 10 * time.Second

// opBye ends a session as a death does: what it sent is received. A further bye ends it
// wholly once it holds nothing. A client that keeps its memory recycles it itself, as
// before, and may use the session again.
func (b *Broker) opBye(s *session, r *protocol.Bye) (any, []*sys.FD, error) {
	if s.ended { // the reaper was faster
		return protocol.ByeReply{}, nil, nil
	}
	if r.Keep && s.state != protocol.SessionClosed {
		b.log.Info("session left all that it took part in", events.Of(events.Session), "slot", s.Slot, "serial", s.Serial, "name", s.Name, "pid", s.PID)
		s.party.LivesOn = true
		b.topics.Rest(s.party)
		s.party.LivesOn = false
		crashpoint.At("broker-rest-left")
		b.leases.EndOf(s.SessionFile)
		b.finishRecovery()
		b.reapSoon()
		return protocol.ByeReply{Held: true}, nil, nil
	}
	if s.state != protocol.SessionClosed {
		b.log.Info("session closed", events.Of(events.Session), "slot", s.Slot, "serial", s.Serial, "name", s.Name, "pid", s.PID)
	}
	s.counting = false
	b.leave(s)
	b.endIfEmpty(s)
	return protocol.ByeReply{Held: !s.ended}, nil, nil
}

// leave ends all that a session takes part in; its refcounts stay.
func (b *Broker) leave(s *session) {
	if s.left || s.ended {
		return
	}
	b.setState(s, protocol.SessionClosed)
	crashpoint.At("broker-close-marked")
	s.party.LivesOn = true
	b.leaveAll(s)
	crashpoint.At("broker-close-left")
	s.left = true
	b.closed[s] = struct{}{}
	b.custody.Close(s.custody)
	b.assignSoon()
	b.reapSoon()
	s.endEviction()
}

// endIfEmptyToo is endIfEmpty for a session whose client does not ask: its connection ends too.
func (b *Broker) endIfEmptyToo(s *session) bool {
	c := s.conn
	if !b.endIfEmpty(s) {
		return false
	}
	if c != nil {
		c.finish()
	}
	return true
}

// endIfEmpty ends a closed session that holds nothing. One that was attached to
// something since its last bye may be about to count; so may one whose client is not back.
func (b *Broker) endIfEmpty(s *session) bool {
	if s.counting || s.absent && !s.returnless || b.memory.Holds(s.memory) {
		return false
	}
	crashpoint.At("broker-close-empty")
	b.endSession(s)
	return true
}

// processEnded ends the session of a process that has ended. If it was forking, its
// refcounts stay for the child, which counts what that says.
func (b *Broker) processEnded(s *session) {
	c := s.conn
	if b.childInherits(s) {
		b.log.Info("the process ended in a fork: what it held waits for its child", events.Of(events.Session), "slot", s.Slot, "serial", s.Serial, "name", s.Name)
		s.counting = false
		b.leave(s)
		b.forked[s] = struct{}{}
		s.endEviction()
		b.reapSoon()
	} else {
		b.endSession(s)
	}
	if c != nil {
		c.finish()
	}
}

// isForked tells whether the process of a session has ended, and its refcounts count for children that it has
// forked.
func (b *Broker) isForked(s *session) bool {
	_, forked := b.forked[s]
	return forked
}

// keepsForChildren tells whether the refcounts of a session count, or may count, memory that a
// child has mapped and did not count itself. A fork that is under way does not matter.
func (b *Broker) keepsForChildren(s *session) bool {
	if b.isForked(s) {
		return true
	}
	if !s.There() {
		return false
	}
	began := s.File.Region.Load64(protocol.SessionForking)
	return began != 0 && time.Duration(sys.Monotonic()-began) > forkBound
}

// programFile is the memory file that children of a session's process have mapped which it has forked, and which did not
// count what they inherited; nil where there is none, or no fork was under way for whose child the refcounts
// count.
func (b *Broker) programFile(s *session) *ProgramFile {
	if s.alive == nil || !s.There() || !b.isForked(s) && s.File.Region.Load64(protocol.SessionForking) == 0 {
		return nil
	}
	_, id, err := s.alive.Stat()
	if err != nil {
		return nil
	}
	return &ProgramFile{id.Dev, id.Ino}
}

// childInherits tells whether a child that the process was making when it ended may
// still count what it inherited. Until it has, it has the memory file of that process
// mapped. Without such a file it has childBound.
func (b *Broker) childInherits(s *session) bool {
	if !s.There() {
		return false
	}
	began := s.File.Region.Load64(protocol.SessionForking)
	if began == 0 {
		return false
	}
	if s.alive != nil {
		sealed, err := s.alive.SealWrites()
		if err == nil {
			return !sealed
		}
		b.log.Warn("cannot tell whether a process that ended in a fork left a child: what it held stays a while", events.Of(events.Session),
			"serial", s.Serial, "name", s.Name, "pid", s.PID, "error", err)
		s.alive.Close()
		s.alive = nil
	}
	past := time.Duration(sys.Monotonic() - began)
	return past >= 0 && past < childBound
}
