package broker

import (
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// bury ends a session, whether its process has died or said bye. The order is
// that of docs/protocol.md, Death: at every step a surplus of counts is
// possible, a deficit never, and each step may be done again by a successor.
func (b *Broker) bury(s *session) {
	if s.ended {
		return
	}
	s.ended = true
	b.setState(s, protocol.SessionDead)
	crashpoint.At("broker-bury-marked")
	if s.stopWaiting != nil {
		s.stopWaiting()
	}
	if s.there() {
		s.poison()
	}
	crashpoint.At("broker-bury-poisoned")
	touched := map[*topic]struct{}{}
	b.adoptLanes(s, touched)
	b.leaveTopics(s, touched)
	b.dropRow(s)
	b.orphan(s)
	crashpoint.At("broker-bury-orphaned")
	b.endLeasesOf(s)
	for t := range s.names {
		b.unset(t)
	}
	crashpoint.At("broker-bury-unset")
	// Everybody on its topics looks again.
	for t := range touched {
		t.lastLeft = s.name
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
	budget := s.pages.adoptable()
	for l := range s.lanes {
		if l.state == protocol.LaneLive {
			touched[l.topic] = struct{}{}
			b.adopt(l, &budget)
			crashpoint.At("broker-adopted")
		}
	}
	if budget <= 0 {
		b.log.Warn("an ended session named more than can be kept; the rest is dropped", "serial", s.serial, "name", s.name)
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

// dropRow empties the session's row, so that nothing that it counted is held any
// more, and then takes the bits away, so that nobody looks at it.
func (b *Broker) dropRow(s *session) {
	s.eachAttached(func(chunk uint32) {
		for i := range uint32(protocol.ChunkIndices) {
			if s.there() {
				s.row.Clear(chunk*protocol.ChunkIndices + i) // MODEL lanes:adopt-droprow
			}
		}
		crashpoint.At("broker-bury-cleared")
		b.chunks.Detach(chunk, s.slot) // MODEL attach:bit-clear
	})
	clear(s.attached[:])
	crashpoint.At("broker-bury-detached")
}

// orphan gives the session's segments to the broker's collector.
func (b *Broker) orphan(s *session) {
	for g := range s.segments {
		g.holder = nil
		b.orphans[g] = struct{}{}
		b.file.Segment(g.index).SetOrphan()
		if g.isBorrowed() {
			b.expire(g)
			shm.Fence()
			for to := range g.given { // may wait for the news: its driver has refused the memory
				to.wake()
			}
		}
	}
	clear(s.segments)
	clear(s.onDevice)
	s.granted = 0
	for _, g := range b.segments {
		if g != nil {
			delete(g.given, s)
		}
	}
}

// leaveSlot frees the slot; the pages stay while anything of them is needed.
func (b *Broker) leaveSlot(s *session) {
	if len(s.pages.chunks) > 0 || len(s.pages.lanes) > 0 {
		b.keepRemains(s.pages)
	}
	crashpoint.At("broker-bury-remains")
	b.file.Session(s.slot).Free()
	b.slots[s.slot] = nil
	b.slotTable.give(s.slot)
	crashpoint.At("broker-bury-gone")
	s.pages.dead = true
	b.dropRemains(s.pages)
	if !b.closing {
		b.noteState(stateChange{Ended: s.serial})
	}
}
