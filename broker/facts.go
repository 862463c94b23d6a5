package broker

import (
	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/broker/takeover"
	"github.com/baton-ipc/baton/broker/topics"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// facts gathers what is known of what the previous broker left. The files of sessions and
// the memory are restored as far as there are files; nothing is changed.
func (b *Broker) facts(sameBoot bool) takeover.Facts {
	f := takeover.Read(b.store.Record, b.store.Own.Refcounts)
	f.SameBoot = sameBoot
	b.foreign = b.store.Record.PIDNamespace() != sys.PIDNamespace(processID)
	for i := range f.Sessions {
		s := &f.Sessions[i]
		have := b.slots[s.Slot]
		s.File = have.There()
		s.Back = b.taking != nil && (b.taking.back[s.Serial] || b.taking.read[have.PID])
		switch {
		case s.Marked || !sameBoot: // dead, whatever has its process number now
		case b.hasEnded(have):
			s.Process = takeover.Dead
		case !have.unknown:
			s.Process = takeover.Alive
		}
	}
	for i := range f.Remains {
		p := b.store.BySerial(f.Remains[i].Serial)
		f.Remains[i].File = p != nil && p.There()
	}
	for i := range f.Segments {
		f.Segments[i].File = b.memory.HasFile(f.Segments[i].Index)
	}
	for i := range f.Lanes {
		b.readLane(&f.Lanes[i])
	}
	return f
}

// readLane reads a lane that the broker keeps. A lane at a place where none can be is returned
// without an incarnation.
func (b *Broker) readLane(l *takeover.Lane) {
	if l.Name && l.Serial != b.store.Own.Serial {
		l.Name = false
	}
	p := b.store.BySerial(l.Serial)
	if p == nil || !p.There() || !l.Name && l.State != protocol.LaneAdopted && !p.Dead {
		return
	}
	view, err := b.laneView(l)
	if err != nil {
		l.Incarnation, l.Name = 0, false
		return
	}
	budget := topics.MaxAdopted
	if l.Name {
		budget = 1 + protocol.MaxRefs
	}
	head, slots := view.Head(), view.Slots()
	for k := range slots {
		i := view.Seq(k)
		if i == 0 {
			continue
		}
		m := takeover.Message{Slot: k}
		last := head
		if l.Name {
			last++ // published, and the head not moved yet
		}
		if h, data, ok := view.Read(i, nil); ok && i&(slots-1) == k && i <= last && i+slots > head {
			m.Number = i
			m.Refs, m.Awaited, m.Bad = b.memory.NamedBy(h, data, &budget)
		} else {
			m.Bad = true
		}
		l.Messages = append(l.Messages, m)
	}
}

func (b *Broker) laneView(l *takeover.Lane) (shm.Lane, error) {
	t := b.store.Record.Topic(l.Topic).Load()
	at := b.store.Record.Topic(l.Topic).Lane(l.Number).Load().Offset
	if at < protocol.SessionLanes {
		return shm.Lane{}, protocol.Errorf(protocol.CodeProtocol, "report this with the broker's log, see docs/support.md", "a lane at %d", at)
	}
	return shm.NewLane(b.store.BySerial(l.Serial).File.Region, at, t.Slots, t.Stride)
}

// repair carries out the part of a plan that is about the records, the broker's refcounts and the
// lanes that it keeps, and returns the slots of dead sessions. Orphans are the reaper's.
func (b *Broker) repair(plan []takeover.Repair) (dead map[uint32]bool) {
	dead = map[uint32]bool{}
	crashpoint.At("broker-rebuild-read")
	rest := plan
	for len(rest) > 0 && !lowers(rest[0]) {
		b.apply(rest[0], dead)
		rest = rest[1:]
	}
	crashpoint.At("broker-rebuild-raised")
	for _, r := range rest {
		b.apply(r, dead)
	}
	crashpoint.At("broker-rebuild-lowered")
	return dead
}

// lowers reports whether a repair must come after the raising of the refcounts.
func lowers(r takeover.Repair) bool {
	switch r.(type) {
	case takeover.Lower, takeover.OrphanSegment, takeover.MarkDead, takeover.EndSession, takeover.Reclaim:
		return true
	}
	return false
}

// noteLost logs what is lost with a lane of an ended session that no broker can read any more.
func (b *Broker) noteLost(r takeover.FreeLane) {
	t := b.store.Record.Topic(r.Topic)
	if l := t.Lane(r.Lane).Load(); l.State == protocol.LaneAdopted && l.Incarnation != 0 {
		b.log.Warn("what an ended session had sent is lost: no process that lives has its file", events.Of(events.Death),
			"topic", t.Load().Name, "lane", r.Lane, "serial", l.Serial)
	}
}

func (b *Broker) apply(r takeover.Repair, dead map[uint32]bool) {
	if lane, is := r.(takeover.FreeLane); is {
		b.noteLost(lane)
	}
	switch r := r.(type) {
	case takeover.Unname:
		l := takeover.Lane{Topic: r.Topic, Number: r.Lane, Serial: b.store.Record.Topic(r.Topic).Lane(r.Lane).Serial()}
		if view, err := b.laneView(&l); err == nil {
			view.Unname(r.Slot)
		}
	case takeover.MarkDead:
		dead[r.Slot] = true // endSession marks it, and waits for its file
	case takeover.EndSession:
		dead[r.Slot] = true
	case takeover.FreeRemains: // the store's, with the files
	default:
		takeover.Apply(b.store.Record, b.store.Own.Refcounts, r)
	}
}

// recordedSessions counts the sessions in the broker file.
func (b *Broker) recordedSessions() (n int) {
	for slot := uint32(1); slot < b.store.Record.UsedSessions(); slot++ {
		if b.store.Record.Session(slot).Serial() != 0 {
			n++
		}
	}
	return n
}
