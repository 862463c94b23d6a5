package broker

import (
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/protocol"
)

// endSession ends a session whose process has died, or of which nothing is left. The order
// is that of docs/protocol.md, Death: at every step a surplus of counts is
// possible, a deficit never, and each step may be done again by a successor.
func (b *Broker) endSession(s *session) {
	if s.ended || b.endWaits(s) {
		return
	}
	s.ended = true
	b.setState(s, protocol.SessionDead)
	crashpoint.At("broker-end-marked")
	granted := s.memory.Granted()
	b.leaveAll(s)
	if s.process != nil {
		s.process.Stop()
	}
	b.noteEnd(s, granted, b.memory.End(s.memory))
	b.topics.Freed(s.SessionFile)
	b.custody.End(s.custody)
	b.assignSoon()
	delete(b.closed, s)
	delete(b.unheard, s)
	delete(b.away, s)
	delete(b.forked, s)
	s.alive.Close()
	s.alive = nil
	b.leaveSlot(s)
	b.finishRecovery()
	b.reapSoon()
	b.checkIdle()
	s.endEviction()
}

// leaveAll ends what a session takes part in: the broker adopts its lanes, and its memory is the
// reaper's to free. Its refcounts stay.
func (b *Broker) leaveAll(s *session) {
	if s.There() {
		s.Poison()
	}
	crashpoint.At("broker-end-poisoned")
	b.topics.Leave(s.party)
	b.memory.Orphan(s.memory)
	crashpoint.At("broker-end-orphaned")
	b.endLeases(s)
	b.topics.DropNames(s.party)
	crashpoint.At("broker-end-unset")
	b.topics.Finish(s.party)
}

// leaveSlot frees the slot; the file stays while anything of it is needed.
func (b *Broker) leaveSlot(s *session) {
	if s.InUse() {
		b.store.KeepRemains(s.SessionFile)
	}
	crashpoint.At("broker-end-remains")
	b.noteEvicted(s)
	b.store.Record.Session(s.Slot).Free()
	b.slots[s.Slot] = nil
	b.memory.Forget(s.memory)
	b.slotTable.Give(s.Slot, s.Holder)
	crashpoint.At("broker-end-gone")
	s.SessionFile.Dead = true
	b.store.DropRemains(s.SessionFile)
	if !b.closing {
		b.noteState(stateChange{Ended: s.Serial})
	}
}
