package broker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// An operator ends a session whose process lives. What the process holds stays: it may read
// that at any time. It may also be about to allocate in the session's memory, so the memory
// is the reaper's only once the client has said that it allocates no more, as at the end of
// a broker: it reads the event, ends its side of the connection, and finds the session
// closed. Until then no request of the session is carried out. What others may wait for (lanes, claims,
// leases, openings) ends within endAnswerTime in any case.

// endAnswerTime is how long clients have to read the event that their sessions end.
const endAnswerTime = 3 * time.Second

func errEvicted(s *session) error {
	if s.why != nil {
		return s.why
	}
	return protocol.Errorf(protocol.CodeSessionLost, "open a new session; what was received can still be read, copied and released",
		"session %d is over: an operator has evicted it", s.Serial)
}

// evict ends a session, and waits until its client has answered the event, or its process has ended.
func (c *conn) evict(r *protocol.Evict) (any, error) {
	b := c.b
	s := b.bySerial(r.Serial)
	switch {
	case s == nil:
		return nil, protocol.Errorf(protocol.CodeNotFound, "baton ls sessions lists them", "there is no session %d", r.Serial)
	case r.Kill && s.start != 0 && s.PID == processID: // without a start time the number is of another pid namespace
		return nil, protocol.Errorf(protocol.CodeInvalid, "leave --kill out, or end the broker with baton stop", "session %d (%s) is the broker's own", s.Serial, s.Name)
	case s == c.session:
		return nil, protocol.Errorf(protocol.CodeInvalid, "close it instead", "session %d would evict itself", s.Serial)
	case !c.isOwners() && c.cred.UID != s.uid:
		return nil, protocol.Errorf(protocol.CodePermission, "ask that user, or the user who started the broker",
			"user %d may not evict session %d (%s) of user %d", c.cred.UID, s.Serial, s.Name, s.uid)
	}
	reply := protocol.EvictReply{Name: s.Name, PID: s.PID}
	var err error
	switch {
	case b.isForked(s):
		reply.Ended = true
		b.log.Info("evicted by hand: the process had ended, and what it held stays for the children that it forked", events.Of(events.Steered), "slot", s.Slot, "serial", s.Serial, "name", s.Name, "pid", s.PID, "uid", s.uid, "by_pid", c.cred.PID, "by_uid", c.cred.UID)
	case r.Kill && s.state != protocol.SessionDead:
		err = c.kill(s, &reply)
	case r.Killed && s.state != protocol.SessionDead:
		b.log.Warn("session evicted by hand: its process is being killed", events.Of(events.Steered), "slot", s.Slot, "serial", s.Serial, "name", s.Name, "pid", s.PID, "uid", s.uid, "by_pid", c.cred.PID, "by_uid", c.cred.UID)
		b.markEvicted(s)
	case b.isGone(s):
		c.evictGone(s)
	case s.absent && (s.isAbsentee() || !s.There()):
		// What it sent is in files that only it has, so it cannot be adopted.
		err = s.notBack()
	case s.state != protocol.SessionClosed:
		err = c.evictLiving(s)
	}
	if err != nil {
		return nil, err
	}
	switch {
	case s.ended:
		reply.State = protocol.EvictedOver
	case s.evicted && !s.left:
		own, ofOthers := b.memory.HeldApart(s.memory)
		reply.State, reply.Granted = protocol.EvictedUnheard, s.memory.Granted()
		reply.Held, reply.HeldOfOthers = own+ofOthers, ofOthers
	default:
		reply.State, reply.Held = protocol.EvictedClosed, b.memory.Held(s.memory)
	}
	reply.ForChildren = b.isForked(s)
	reply.Items = b.topics.KeptBy(s.SessionFile)
	return reply, nil
}

// notBack is the error for a session that cannot be evicted, since its process lives and is not back. Of one
// that was evicted no client comes back, and a process that runs is not to be let go on.
func (s *session) notBack() error {
	switch {
	case s.evicted || s.returnless:
		return protocol.Errorf(protocol.CodeBusy, fmt.Sprintf("end process %d, or give --kill", s.PID),
			"session %d (%s) is evicted already, and what it has stays until its process %d ends", s.Serial, s.Name, s.PID)
	case s.start != 0 && sys.Runs(s.PID, s.start):
		return protocol.Errorf(protocol.CodeBusy, fmt.Sprintf("try again when it is back; or end process %d, or give --kill", s.PID),
			"session %d (%s) belongs to process %d, which runs and is not back: what it has stays until it is back, or ends", s.Serial, s.Name, s.PID)
	}
	return protocol.Errorf(protocol.CodeBusy, s.goOnOrEnd()+", or give --kill",
		"session %d (%s) belongs to process %d, which lives and is not back", s.Serial, s.Name, s.PID)
}

// bySerial finds a session; nil: there is none.
func (b *Broker) bySerial(serial uint64) *session {
	for _, s := range b.used() {
		if s != nil && s.Serial == serial {
			return s
		}
	}
	return nil
}

// isGone tells whether a session's process is unknown, or has ended while the broker waits for
// the session's file.
func (b *Broker) isGone(s *session) bool {
	return s.state == protocol.SessionDead || s.absent && !s.heard || s.unknown
}

// evictGone ends such a session at once.
func (c *conn) evictGone(s *session) {
	b := c.b
	switch {
	case s.state == protocol.SessionDead:
		b.log.Warn("the file of an ended session is given up by hand: what it sent is lost", events.Of(events.Steered), "slot", s.Slot, "serial", s.Serial, "name", s.Name, "pid", s.PID, "uid", s.uid, "by_pid", c.cred.PID, "by_uid", c.cred.UID)
		s.givenUp = true
		delete(b.store.Missing, sessionfiles.Key{Role: protocol.RestoreSession, Serial: s.Serial})
	case s.unknown:
		b.log.Warn("session evicted by hand", events.Of(events.Steered), "slot", s.Slot, "serial", s.Serial, "name", s.Name, "pid", s.PID, "uid", s.uid, "by_pid", c.cred.PID, "by_uid", c.cred.UID)
	default:
		b.log.Warn("session evicted by hand: its client never said anything", events.Of(events.Steered), "slot", s.Slot, "serial", s.Serial, "name", s.Name, "pid", s.PID, "uid", s.uid, "by_pid", c.cred.PID, "by_uid", c.cred.UID)
	}
	s.evicted = true
	b.endSession(s)
}

// evictLiving ends a session whose process lives, and waits until its client has answered the event.
func (c *conn) evictLiving(s *session) error {
	b := c.b
	if !s.evicted {
		b.log.Warn("session evicted by hand", events.Of(events.Steered), "slot", s.Slot, "serial", s.Serial, "name", s.Name, "pid", s.PID, "uid", s.uid, "by_pid", c.cred.PID, "by_uid", c.cred.UID)
		b.markEvicted(s)
	}
	if s.conn == nil {
		b.takePart(s)
		return nil
	}
	s.tellEvicted()
	if err := c.await(s, func() bool { return s.ended || s.state == protocol.SessionClosed }); err != nil {
		return err
	}
	if !s.ended && !s.left {
		b.takePart(s)
	}
	return nil
}

// markEvicted notes that a session is being evicted, also for the next broker.
func (b *Broker) markEvicted(s *session) {
	if !s.returnless {
		s.evicted = true
		b.store.Record.Session(s.Slot).SetEvicted(record.EvictionUnread)
	}
}

// tellEvicted tells a client that its session is over.
func (s *session) tellEvicted() {
	s.event(func(p *pending) { p.evicted, p.stopped, p.why = true, true, s.why })
}

// await releases the mutex until a session that is closed or over is enough so, for endAnswerTime
// at most.
func (c *conn) await(s *session, enough func() bool) error {
	b := c.b
	late := time.NewTimer(endAnswerTime)
	defer late.Stop()
	for waits := true; waits && !enough(); {
		if s.over == nil {
			s.over = make(chan struct{})
		}
		over := s.over
		b.mu.Unlock()
		select {
		case <-over:
		case <-late.C:
			waits = false
		case <-c.stop:
			waits = false
		}
		b.mu.Lock()
	}
	return b.usable(c.session)
}

// endEviction ends the waits in await.
func (s *session) endEviction() {
	if s.over != nil {
		close(s.over)
		s.over = nil
	}
}

// takePart ends what an evicted session takes part in whose client has not answered. Its
// memory stays its own. A client that looks at the record finds that the session is over.
func (b *Broker) takePart(s *session) {
	b.setState(s, protocol.SessionClosed)
	b.custody.Close(s.custody)
	b.assignSoon()
	s.party.LivesOn = true
	b.topics.Rest(s.party)
	b.endLeases(s)
	b.unheard[s] = struct{}{}
	b.finishRecovery()
	b.reapSoon()
	s.endEviction()
}

// endLeases ends the leases of a session. Those that outlive a session which ends by itself end with one that was
// evicted, in whichever way that ends: by an operator, by its user's rights, or by a kill.
func (b *Broker) endLeases(s *session) {
	if s.evicted || s.returnless {
		b.leases.EndAll(s.SessionFile)
	} else {
		b.leases.EndOf(s.SessionFile)
	}
}

// evictedEnds is called when the connection of an evicted session ends. A client that has read the
// event has ended its side alone.
//
// SYNC instance-ended: the state is stored before the connection ends.
func (b *Broker) evictedEnds(s *session, c *conn) {
	if !sys.IsHalfClosed(c.w.UnixConn) {
		b.takePart(s)
		return
	}
	b.endHeard(s)
}

// endHeard ends all of an evicted session but what its refcounts count: its client has read that it is over.
func (b *Broker) endHeard(s *session) {
	delete(b.unheard, s)
	s.counting, s.returnless = false, true
	b.leave(s)
	b.store.Record.Session(s.Slot).SetEvicted(record.EvictionRead)
	b.endIfEmpty(s)
	b.finishRecovery()
}

// endIfLost is endHeard of a session without a connection, once its client has noted that the session is over. The
// client does not come back: it has found that in the record, at this broker or the previous one.
func (b *Broker) endIfLost(s *session) bool {
	if s.conn != nil || !s.IsLost() {
		return false
	}
	b.log.Info("the process of an evicted session has noticed that", events.Of(events.Session), "slot", s.Slot, "serial", s.Serial, "name", s.Name, "pid", s.PID)
	b.endHeard(s)
	return true
}

// byOperator tells whether an operator has ended the session, as this broker or a previous one knows.
func (s *session) byOperator() bool { return (s.evicted || s.returnless) && s.why == nil }

// noteEvicted keeps the reason of a session's end beyond its record: its client may not know it yet.
func (b *Broker) noteEvicted(s *session) {
	if !s.byOperator() {
		return // a user that may not connect is told so whatever it asks for
	}
	if b.store.Reserve(b.store.Record.EvictionPlace()) == nil {
		b.store.Record.AddEviction(s.Serial)
	}
}

// kill kills the process of a session, by its pidfd, and waits until it has ended.
func (c *conn) kill(s *session, reply *protocol.EvictReply) error {
	if s.process == nil {
		return protocol.Errorf(protocol.CodeBusy, "end it by hand, and look with baton ls sessions whether the broker has noticed",
			"process %d of session %d (%s) cannot be killed: that number may be another process's by now", s.PID, s.Serial, s.Name)
	}
	ended := func() bool { return s.ended || c.b.isForked(s) }
	err := s.process.Kill()
	if errors.Is(err, os.ErrProcessDone) { // the broker is about to notice
		c.b.log.Info("evicted by hand: the process had ended already", events.Of(events.Steered), "slot", s.Slot, "serial", s.Serial, "name", s.Name, "pid", s.PID, "uid", s.uid, "by_pid", c.cred.PID, "by_uid", c.cred.UID)
		reply.Ended = true
		return c.await(s, ended)
	}
	if errors.Is(err, fs.ErrPermission) {
		return c.mayNotKill(s, err)
	}
	if errors.Is(err, syscall.EINVAL) {
		return protocol.Errorf(protocol.CodePermission, "end its container or pod, or evict the session without --kill",
			"the broker cannot kill process %d of session %d (%s): it is in another pid namespace", s.PID, s.Serial, s.Name)
	}
	if err != nil {
		return protocol.Errorf(protocol.CodeInternal, "kill it by hand", "process %d cannot be killed: %w", s.PID, err)
	}
	c.b.log.Warn("process killed: its session was evicted by hand", events.Of(events.Steered), "slot", s.Slot, "serial", s.Serial, "name", s.Name, "pid", s.PID, "uid", s.uid, "by_pid", c.cred.PID, "by_uid", c.cred.UID)
	reply.Killed = true
	c.b.markEvicted(s)
	return c.await(s, ended) // its connection may end first, which closes it
}

// mayNotKill is the error for a process that the broker may not kill. It names the process for a
// caller that may, if that has the same pid namespace.
func (c *conn) mayNotKill(s *session, why error) error {
	err := protocol.Errorf(protocol.CodePermission, "kill it as its own user, or as root with CAP_KILL; or evict the session without --kill",
		"the broker may not kill process %d of user %d: %w", s.PID, s.uid, why)
	if s.start == 0 {
		return err
	}
	return err.With("name", s.Name).With("pid", s.PID).With("start_time", s.start).With("pid_namespace", sys.PIDNamespace(processID))
}
