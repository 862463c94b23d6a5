package broker

import (
	"encoding/hex"
	"time"

	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/broker/takeover"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// rebuild makes this broker the one that the broker file describes, with those of the store's
// missing files that fetch finds. sameBoot tells whether the machine has not been restarted
// since, so that processes of the file may still live.
func (b *Broker) rebuild(sameBoot bool, fetch sessionfiles.Fetch) error {
	plan, err := b.planRebuild(sameBoot, fetch)
	if err != nil {
		return err
	}
	return b.carryOut(plan, sameBoot, fetch)
}

// planRebuild gathers the facts and has the repairs planned (package takeover). It
// changes nothing that another process sees.
func (b *Broker) planRebuild(sameBoot bool, fetch sessionfiles.Fetch) ([]takeover.Repair, error) {
	if err := b.rebuildOwn(fetch); err != nil {
		return nil, err
	}
	b.rebuildSessions(fetch)
	b.store.RestoreRemains(fetch)
	b.memory.Restore(fetch)
	if b.store.Lack != nil {
		return nil, sessionfiles.NoMemory(b.store.Lack, "the files of the previous broker's sessions")
	}
	return takeover.Plan(b.facts(sameBoot)), nil
}

// carryOut applies the repairs. Then the components read what is right now, the dead sessions are
// ended, and all look again.
func (b *Broker) carryOut(plan []takeover.Repair, sameBoot bool, fetch sessionfiles.Fetch) error {
	b.putOwn()
	dead := b.repair(plan)
	b.memory.ExpireBorrowed()
	b.topics.Restore(fetch)
	b.leases.Restore(sameBoot)
	if b.store.Lack != nil { // all changes so far are right for the next broker, too
		return sessionfiles.NoMemory(b.store.Lack, "the claims of the previous broker's groups")
	}
	b.topics.Reread()
	b.topics.Rewind()
	crashpoint.At("broker-rebuild-hints")
	b.endDead(dead)
	crashpoint.At("broker-rebuild-ended")
	b.topics.Announce()
	b.store.Record.SetBoot(sys.BootID())
	b.store.Record.SetEnded(false)
	b.finishRecovery()
	b.reapSoon()
	b.clock.After(0, b.lookForGone)
	return nil
}

func (b *Broker) rebuildOwn(fetch sessionfiles.Fetch) error {
	bells := b.store.RestoreBells(fetch)
	serial := b.store.Record.Session(protocol.BrokerSlot).Serial()
	p := b.store.Restore(fetch, protocol.BrokerSlot, serial, "broker", uint32(processID))
	if b.store.Lack != nil {
		return sessionfiles.NoMemory(b.store.Lack, "the refcounts of the previous broker")
	}
	if !bells || !p.There() {
		remedy := "start the broker once more: it begins anew"
		if d, ok := b.store.Files.(sessionfiles.Directory); ok {
			remedy = "remove " + d.Path + ", which has lost files: the broker begins anew"
		}
		return protocol.Errorf(protocol.CodeProtocol, remedy,
			"the bells or the refcounts of the previous broker of instance %s are missing", b.id)
	}
	b.store.Own = p
	return nil
}

func (b *Broker) rebuildSessions(fetch sessionfiles.Fetch) {
	versions := map[uint64]string{} // by serial
	// What this broker waits for clients with is what it read when it began: it is read once. A living broker that hands
	// over has written its own meanwhile.
	var st *state
	if b.taking != nil {
		st = b.taking.state
	} else {
		st = b.readState()
	}
	if st != nil && st.Instance == b.id {
		for _, s := range st.Sessions {
			versions[s.Serial] = sessionfiles.Printable(s.Version, maxClientVersion)
		}
	}
	for slot := uint32(1); slot < b.store.Record.UsedSessions(); slot++ {
		serial := b.store.Record.Session(slot).Serial()
		if serial == 0 || b.store.BySerial(serial) != nil {
			continue
		}
		r := b.store.Record.Session(slot).Load()
		s := &session{SessionFile: b.store.Restore(fetch, slot, serial, r.Name, r.PID)}
		s.absent, s.answered, s.heard = true, r.Answered, r.Heard
		s.evicted, s.returnless = r.Evicted == record.EvictionUnread, r.Evicted == record.EvictionRead
		s.read = b.taking != nil && b.taking.read[s.PID]
		s.state, s.uid, s.start, s.pidNS, s.language = r.State, r.UID, r.StartTime, r.PIDNS, r.Language
		s.namespace, s.connectedAt, s.secretHash = r.Namespace, record.Formerly(r.Connected), r.SecretHash
		s.version, s.Holder = versions[serial], r.Holder
		b.slots[slot] = s
		b.enter(s)
		if s.state == protocol.SessionClosed {
			s.memory.Closed = !s.evicted
			b.custody.Close(s.custody)
		}
		b.slotTable.Claim(slot, s.Holder)
	}
}

// unknownAgain is how long after a look for a process the next one follows.
const unknownAgain = 5 * time.Second

// endDead ends the sessions whose processes have ended; every other one keeps what it
// holds.
func (b *Broker) endDead(dead map[uint32]bool) {
	if b.foreign { // their pids mean nothing here: no successor is to look for them
		for _, s := range b.used() {
			if s != nil {
				s.start = 0
				b.store.Record.Session(s.Slot).ForgetProcess()
			}
		}
	}
	b.store.Record.SetPIDNamespace(sys.PIDNamespace(processID))
	for _, s := range b.used() {
		if s == nil {
			continue
		}
		if dead[s.Slot] {
			b.log.Info("process ended while no broker ran", events.Of(events.Session), "slot", s.Slot, "serial", s.Serial, "name", s.Name, "pid", s.PID)
			b.processEnded(s)
			continue
		}
		if s.state == protocol.SessionClosed {
			if s.There() && !s.evicted { // else its client may not know of the eviction yet, and allocate
				b.leave(s)
			} else if s.evicted {
				b.unheard[s] = struct{}{}
			} // else when it is back
			continue
		}
		if s.state == protocol.SessionDead {
			continue // a previous broker knew it, and its file may still come
		}
		b.setState(s, protocol.SessionDisconnected)
		if s.unknown {
			b.log.Warn("not known whether this session's process lives: the session keeps what it holds until its client returns, or baton evict ends it", events.Of(events.Session),
				"slot", s.Slot, "serial", s.Serial, "name", s.Name, "pid", s.PID)
		}
		if !s.answered {
			b.clock.After(b.cfg.RecoverWait, func() { b.endUnacknowledged(s) })
		}
	}
	b.lookAgain()
}

// hasEnded looks for the process of an absent session, and watches it where it can.
// A process in another pid namespace can be found neither alive nor dead.
func (b *Broker) hasEnded(s *session) bool {
	s.unknown = true
	if b.taking != nil && b.taking.gone[s.Serial] {
		s.unknown = false
		return true
	}
	if b.foreign || s.start == 0 {
		return false
	}
	pidfd, state := sys.FindProcess(s.PID, s.start)
	if pidfd != nil { // if the process of this pidfd has ended, so has the one that was noted
		go b.watch(s, pidfd)()
	}
	s.unknown = state == sys.ProcessUnknown
	return state == sys.ProcessEnded
}

// lookAgain looks once more, later, for processes that could not be looked for.
func (b *Broker) lookAgain() {
	var left []*session
	for _, s := range b.used() {
		if s != nil && s.unknown && s.process == nil && !b.foreign && s.start != 0 {
			left = append(left, s)
		}
	}
	if len(left) == 0 {
		return
	}
	b.clock.After(unknownAgain, func() {
		b.lookFor(left)
		b.lookAgain()
	})
}

// lookFor ends those of the sessions whose processes are found to have ended.
func (b *Broker) lookFor(unknown []*session) {
	for _, s := range unknown {
		if !s.ended && s.unknown && s.process == nil && b.hasEnded(s) {
			b.log.Info("process ended unseen", events.Of(events.Session), "slot", s.Slot, "serial", s.Serial, "name", s.Name, "pid", s.PID)
			b.processEnded(s)
		}
	}
}

// endUnacknowledged ends a session whose process lives and does not know of it: the former
// broker died before it had answered the hello. If the answer did reach the client at
// the last moment, the client is back by now.
func (b *Broker) endUnacknowledged(s *session) {
	if s.absent && !s.ended {
		b.log.Info("session dropped: its broker died while it was opened", events.Of(events.Session), "slot", s.Slot, "serial", s.Serial, "name", s.Name, "pid", s.PID)
		b.endSession(s)
	}
}

func parseInstance(text string) (n [16]byte, err error) {
	if d, err := hex.DecodeString(text); err == nil && len(d) == len(n) {
		copy(n[:], d)
		return n, nil
	}
	return n, protocol.Errorf(protocol.CodeProtocol, "remove the state file of the previous broker", "its instance %q is damaged", text)
}
