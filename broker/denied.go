package broker

import (
	"maps"
	"slices"
	"time"

	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// The users that may connect may change while a broker runs, and from one broker to the next. Sessions of a
// user that may not have one any more end as an operator evicts them: at once where the broker is
// connected to them, and where they are not once their process asks to come back and is refused.
// Their clients are told why, and allocate nothing from then on.

// errDenied is why a session is over.
func errDenied(uid uint32) *protocol.Error {
	return protocol.Errorf(protocol.CodeSessionLost, "ask the user who started the broker for --allow-uid or --allow-group; what was received can still be read, copied and released",
		"user %d may not use this broker any more", uid)
}

// enforce applies new rules of access to the connections and sessions that there are. The mutex is held.
func (b *Broker) enforce(a *Access) {
	for c := range b.conns {
		if c.stranger {
			continue // it is being refused
		}
		may, err := a.roleOf(c.w.UnixConn, c.cred)
		if err != nil {
			b.log.Warn("it cannot be found out which groups a process is in: it stays connected", events.Of(events.Steered), "uid", c.cred.UID, "pid", c.cred.PID, "error", err)
			continue
		}
		if may == user || may == observer && c.observes {
			continue
		}
		if s := c.session; s != nil {
			b.deny(s)
			continue
		}
		go func() { // what it asks for next is asked of a new connection
			c.reply(0, nil, nil, errStranger(c.cred.UID))
			c.finish()
		}()
	}
	for _, s := range b.used() {
		// Of a session without a connection the user is known, and not its groups.
		if s != nil && s.conn == nil && !s.absent && len(a.GIDs) == 0 && !a.lists(s.uid) {
			b.deny(s)
		}
	}
}

// deny ends a session whose user may not connect any more.
func (b *Broker) deny(s *session) {
	if s.ended || s.evicted || s.state == protocol.SessionClosed || s.state == protocol.SessionDead {
		return
	}
	b.log.Warn("session evicted: its user may not connect any more", events.Of(events.Steered), "slot", s.Slot, "serial", s.Serial, "name", s.Name, "pid", s.PID, "uid", s.uid)
	s.why = errDenied(s.uid)
	b.markEvicted(s)
	if s.conn == nil {
		b.dropDenied(s)
		return
	}
	s.tellEvicted()
	b.clock.After(endAnswerTime, func() {
		if !s.ended && !s.left && s.state != protocol.SessionClosed {
			b.takePart(s)
		}
	})
}

// denyAgain is how long after a look at a session whose end waits for files the next one follows.
const denyAgain = time.Second

// dropDenied ends what a session takes part in whose client is not connected. Files that only
// its process has are not coming any more.
func (b *Broker) dropDenied(s *session) {
	s.denied = true
	switch {
	case s.ended || s.left || s.state == protocol.SessionClosed || s.state == protocol.SessionDead:
	case !s.There(): // its refcounts count all that it is attached to until its process ends
		b.finishRecovery()
	case b.topics.Awaited(s.party):
		b.clock.After(denyAgain, func() { b.dropDenied(s) })
	default:
		b.takePart(s)
	}
}

// fetchOfRefused takes the files that a process has of the previous broker, before it is told that its user may not have a
// session: it closes them then, and may be the only one that has them.
func (b *Broker) fetchOfRefused(cred sys.Credentials) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.taking
	if b.closing || t == nil || cred.PID == 0 || t.read[cred.PID] || !t.hasProcess(cred.PID) || t.state.PIDNS != sys.PIDNamespace(processID) {
		return
	}
	if !b.store.Record.Valid() {
		b.fetchFrom(t, cred.PID, t.brokerFile())
	}
	if b.taking == t && b.store.Record.Valid() {
		t.read[cred.PID] = b.fetchFrom(t, cred.PID, b.lacking(t, maps.Keys(b.store.Missing)))
	}
}

// refused is called when a process was told that its user may not have a session: those that it
// had will not come back.
func (b *Broker) refused(cred sys.Credentials) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closing || cred.PID == 0:
	case b.taking != nil:
		if b.taking.hasProcess(cred.PID) {
			b.taking.denied[cred.PID] = cred.UID
			b.tryComplete()
		}
	default:
		b.denyProcess(cred.PID, cred.UID)
	}
}

// hasProcess tells whether a process may be that of a session of the previous broker.
func (t *gathering) hasProcess(pid int) bool {
	return slices.ContainsFunc(t.state.Sessions, func(s stateSession) bool { return s.PID == pid })
}

// anyComes tells whether a session is awaited whose process was not refused.
func (b *Broker) anyComes(t *gathering) bool {
	return slices.ContainsFunc(t.awaited, func(s stateSession) bool {
		_, denied := t.denied[s.PID]
		return !denied || b.foreign
	})
}

// denyRefused ends the sessions of processes that were refused during a takeover.
func (b *Broker) denyRefused(t *gathering) {
	if b.closing {
		return
	}
	for pid, uid := range t.denied {
		b.denyProcess(pid, uid)
	}
}

// denyProcess ends the sessions of a process that was refused.
func (b *Broker) denyProcess(pid int, uid uint32) {
	for _, s := range b.used() {
		if s != nil && s.PID == pid && s.uid == uid && s.conn == nil && !b.foreign {
			b.deny(s)
		}
	}
}
