package topics

import (
	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// MaxAdopted bounds the references that one session's lanes can make the broker look at and
// count: a hostile client can make every slot name a spill of 65,535.
const MaxAdopted = 8 << 20

// adoptable returns how many more references the broker adopts from a session,
// living or not: lanes can be left one after the other.
func (ts *Topics) adoptable(p *sessionfiles.SessionFile) int {
	budget := MaxAdopted
	for l := range ts.lanesIn[p] {
		for _, indices := range l.kept {
			budget -= len(indices)
		}
	}
	return budget
}

// Awaited tells whether messages of a session name memory whose description may still be handed
// over. Until then the broker cannot count that memory, and the session's refcounts must.
func (ts *Topics) Awaited(s *Party) bool {
	if ts.store.Missing == nil {
		return false
	}
	budget := ts.adoptable(s.SessionFile)
	for l := range ts.lanesIn[s.SessionFile] {
		if l.state == protocol.LaneLive && l.File.There() && ts.namesAwaited(l, &budget) {
			return true
		}
	}
	return false
}

func (ts *Topics) namesAwaited(l *Lane, budget *int) bool {
	var words []uint64
	for k := range l.View.Slots() {
		i := l.View.Seq(k)
		if i == 0 || i&(l.View.Slots()-1) != k {
			continue
		}
		h, data, ok := l.View.Read(i, words)
		words = data
		if ok && ts.memory.Awaited(h, data, budget) {
			return true
		}
	}
	return false
}

// adopt makes the broker count for a lane whose writer has gone. It counts up in the broker's refcounts every
// message that can be read; only then is the lane the broker's. Slots that are nonsense are emptied. The
// writer's refcounts still count meanwhile, so nothing is free in between. budget is the number of
// references that may still be looked at; it is lowered.
func (ts *Topics) adopt(l *Lane, budget *int) {
	l.kept, l.ended = map[uint64][]uint32{}, sys.Monotonic()
	if !l.File.There() {
		ts.log.Warn("a lane of an ended session was not handed over: what it sent is lost", events.Of(events.Death), "lane", l.String())
		ts.dropLane(l)
		return
	}
	head := l.View.Head()
	slots := l.View.Slots()
	var words []uint64
	for k := range slots {
		i := l.View.Seq(k)
		if i == 0 {
			continue
		}
		// A writer that died, at whatever instruction, leaves in a slot only numbers of that
		// slot, at most one turn behind, or published with head not yet moved.
		if i&(slots-1) != k || i > head+1 || i+slots <= head {
			ts.reject(l, k, "number out of place")
			continue
		}
		h, data, ok := l.View.Read(i, words)
		words = data
		if !ok {
			ts.reject(l, k, "lengths do not fit the slot")
			continue
		}
		indices, ok := ts.countMessage(h, data, budget) // MODEL lanes:adopt-count
		if !ok {
			ts.reject(l, k, "names what cannot be held")
			continue
		}
		l.kept[i] = indices
		crashpoint.At("broker-adopt-counting")
	}
	// The last message may be published and head not yet moved: readers look as
	// far as head.
	if _, more := l.kept[head+1]; more {
		l.View.Publish(head + 1)
	}
	crashpoint.At("broker-adopt-counted")
	// SYNC lane-adopted: after the counting; a client without a connection looks at the state
	// before it drops what it counts for the lane.
	ts.setLaneState(l, protocol.LaneAdopted)
	ts.adopted[l.Topic]++
	if l.Topic.function != nil {
		ts.withdrawCalls(l)
	}
	if len(l.kept) == 0 {
		ts.dropLane(l)
	}
	if l.Topic.deleted {
		ts.draining[l.Topic] = struct{}{}
	}
	ts.watch.Adopted()
}

// reject empties a slot whose message cannot be taken.
func (ts *Topics) reject(l *Lane, slot uint64, why string) {
	ts.log.Debug("dropped a slot of an ended session", "lane", l.String(), "slot", slot, "why", why)
	l.View.Unname(slot)
}

// countMessage counts every storage that a message names up in the broker's refcounts
// and returns their indices. If one cannot be counted, none is. References that could not be
// counted use up budget as well.
func (ts *Topics) countMessage(h shm.SlotHead, data []uint64, budget *int) (indices []uint32, ok bool) {
	refs, err := protocol.ParseRefs(nil, shm.BytesOf(data), int(h.Nref))
	if err != nil {
		return nil, false
	}
	defer func() {
		if !ok {
			ts.memory.DropAll(indices)
			indices = nil
		}
	}()
	holdAll := func(refs []protocol.Ref) bool {
		if *budget -= len(refs); *budget < 0 {
			return false
		}
		for _, r := range refs {
			if ts.memory.Hold(r) != nil {
				return false
			}
			indices = append(indices, r.Index)
		}
		return true
	}
	if !holdAll(refs) {
		return indices, false
	}
	if h.Flags&protocol.SlotSpilled == 0 {
		return indices, true
	}
	if len(refs) != 1 || *budget <= 0 {
		return indices, false
	}
	nested, err := ts.memory.ReadSpill(refs[0])
	if err != nil {
		*budget -= protocol.MaxRefs // as many may have been read
		return indices, false
	}
	return indices, holdAll(nested)
}
