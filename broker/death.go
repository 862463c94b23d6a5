package broker

import (
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/protocol"
)

// bury ends a session, whether its process has died or said bye. The order is
// that of docs/protocol.md, Death: at every step a surplus of counts is
// possible, a deficit never, and each step may be done again by a successor.
func (b *Broker) bury(s *session) {
	if s.ended || b.buriedLater(s) {
		return
	}
	s.ended = true
	b.setState(s, protocol.SessionDead)
	crashpoint.At("broker-bury-marked")
	if s.stopWaiting != nil {
		s.stopWaiting()
	}
	if s.There() {
		s.Poison()
	}
	crashpoint.At("broker-bury-poisoned")
	touched := map[*topic]struct{}{}
	b.adoptLanes(s, touched)
	b.leaveTopics(s, touched)
	b.memory.End(s.memory)
	crashpoint.At("broker-bury-orphaned")
	b.endLeasesOf(s)
	for t := range s.names {
		b.unset(t)
	}
	crashpoint.At("broker-bury-unset")
	// Everybody on its topics looks again.
	for t := range touched {
		t.lastLeft = s.Name
		delete(t.members, s)
		b.changed(t)
		b.leftAlone(t)
	}
	clear(s.topics)
	b.leaveSlot(s)
	b.settle()
	b.careSoon()
	b.checkIdle()
}

// adoptLanes counts what the session sent up in the broker's row, and takes its
// lanes over.
func (b *Broker) adoptLanes(s *session, touched map[*topic]struct{}) {
	budget := b.adoptable(s.Pages)
	for l := range b.lanesIn[s.Pages] {
		if l.state == protocol.LaneLive {
			touched[l.topic] = struct{}{}
			b.adopt(l, &budget)
			crashpoint.At("broker-adopted")
		}
	}
	if budget <= 0 {
		b.log.Warn("an ended session named more than can be kept; the rest is dropped", "serial", s.Serial, "name", s.Name)
	}
}

// leaveTopics frees the session's claims for others and ends its groups of one.
func (b *Broker) leaveTopics(s *session, touched map[*topic]struct{}) {
	for t, m := range s.topics {
		touched[t] = struct{}{}
		for _, rd := range m.readers {
			b.leaveReader(t, s, m, rd)
		}
		for _, j := range m.opens {
			b.dropJoin(j)
		}
		m.opens = nil
		crashpoint.At("broker-bury-left")
	}
}

// leaveSlot frees the slot; the pages stay while anything of them is needed.
func (b *Broker) leaveSlot(s *session) {
	if s.InUse() {
		b.store.KeepRemains(s.Pages)
	}
	crashpoint.At("broker-bury-remains")
	b.store.Record.Session(s.Slot).Free()
	b.slots[s.Slot] = nil
	b.memory.Forget(s.memory)
	b.slotTable.Give(s.Slot)
	crashpoint.At("broker-bury-gone")
	s.Pages.Dead = true
	b.store.DropRemains(s.Pages)
	if !b.closing {
		b.noteState(stateChange{Ended: s.Serial})
	}
}
