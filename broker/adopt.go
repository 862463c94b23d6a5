package broker

import (
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// maxAdopted bounds the references that one session's lanes can make the broker
// look at and count: a liar can have every slot name a spill of 65,535.
const maxAdopted = 8 << 20

// adoptable returns how many more references the broker takes over from a session,
// living or not: lanes can be left one after the other.
func (p *pages) adoptable() int {
	budget := maxAdopted
	for l := range p.lanes {
		for _, indices := range l.kept {
			budget -= len(indices)
		}
	}
	return budget
}

// adopt makes the broker the keeper of a lane whose writer has gone: it counts
// every message that can be read up in its own row, and only then the lane
// changes hands. Slots that are nonsense are emptied. The writer's row still
// counts meanwhile, so nothing is free in between. budget is what may still be
// looked at; it is lowered.
func (b *Broker) adopt(l *lane, budget *int) {
	l.kept, l.ended = map[uint64][]uint32{}, sys.Monotonic()
	if !l.pages.there() {
		b.log.Warn("a lane of an ended session was handed over by nobody: what it sent is lost", "lane", l.String())
		b.dropLane(l)
		return
	}
	head := l.view.Head()
	slots := l.view.Slots()
	var words []uint64
	for k := range slots {
		i := l.view.Seq(k)
		if i == 0 {
			continue
		}
		// A number that a writer who died at any instruction can leave: in its own
		// slot, at most one turn behind, or published and head not yet moved.
		if i&(slots-1) != k || i > head+1 || i+slots <= head {
			b.reject(l, k, "number out of place")
			continue
		}
		h, data, ok := l.view.Read(i, words)
		words = data
		if !ok {
			b.reject(l, k, "lengths do not fit the slot")
			continue
		}
		indices, ok := b.countMessage(h, data, budget) // MODEL lanes:adopt-count
		if !ok {
			b.reject(l, k, "names what cannot be held")
			continue
		}
		l.kept[i] = indices
		crashpoint.At("broker-adopt-counting")
	}
	// The last message may be published and head not yet moved: readers look as
	// far as head.
	if _, late := l.kept[head+1]; late {
		l.view.Publish(head + 1)
	}
	crashpoint.At("broker-adopt-counted")
	b.setLaneState(l, protocol.LaneAdopted)
	b.adopted[l.topic]++
	if len(l.kept) == 0 {
		b.dropLane(l)
	}
	b.careSoon()
}

// reject empties a slot whose message nobody could take.
func (b *Broker) reject(l *lane, slot uint64, why string) {
	b.log.Debug("dropped a slot of an ended session", "lane", l.String(), "slot", slot, "why", why)
	l.view.Unname(slot)
}

// countMessage counts every storage that a message names up in the broker's row
// and returns their indices; if one cannot be held, none is. What was looked at in
// vain is charged as well.
func (b *Broker) countMessage(h shm.SlotHead, data []uint64, budget *int) (indices []uint32, ok bool) {
	refs, err := protocol.ParseRefs(nil, shm.BytesOf(data), int(h.Nref))
	if err != nil {
		return nil, false
	}
	defer func() {
		if !ok {
			b.dropAll(indices)
			indices = nil
		}
	}()
	holdAll := func(refs []protocol.Ref) bool {
		if *budget -= len(refs); *budget < 0 {
			return false
		}
		for _, r := range refs {
			if b.hold(r) != nil {
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
	nested, err := b.readSpill(refs[0])
	if err != nil {
		*budget -= protocol.MaxRefs // as many may have been read
		return indices, false
	}
	return indices, holdAll(nested)
}

// hold counts a storage up in the broker's row in the way of one who opens a
// handle: up, then look. It fails with ErrExpired when the storage is not what
// the ref names any more.
//
// SYNC row: up before the look at the generation.
// SYNC generation: a RETIRING mark or another number undoes it.
func (b *Broker) hold(r protocol.Ref) error {
	c := b.findChunkOf(r.Index, r.Serial)
	if c == nil || r.Generation == 0 {
		return expired(r)
	}
	if !c.segment.owner.there() {
		return awaited("description of storages of " + c.segment.owner.name)
	}
	if err := b.own.row.Take(r.Index); err != nil {
		return err
	}
	if c.segment.owner.entries.Word(r.Index) != r.Generation {
		b.own.row.Drop(r.Index)
		return expired(r)
	}
	return nil
}

func expired(r protocol.Ref) error {
	return protocol.Errorf(protocol.CodeExpired, "take the tensor anew from where it came",
		"storage %d of generation %d (grant %d) has been recycled", r.Index, r.Generation, r.Serial)
}

func (b *Broker) dropAll(indices []uint32) {
	for _, index := range indices {
		b.own.row.Drop(index)
	}
}

// spill is a spill storage, which the broker holds. Its writer may still change it
// and take its pages away: it is read through its file and never mapped, so that
// neither is a fault, and what was read once is not read again.
type spill struct {
	segment *shm.Segment
	at      uint64
	nref    int
	body    uint64
}

// openSpill reads and checks the head of a spill storage.
func (b *Broker) openSpill(r protocol.Ref) (s spill, err error) {
	c := b.findChunkOf(r.Index, r.Serial)
	if c == nil {
		return s, expired(r)
	}
	g := c.segment
	if g.view == nil || !g.owner.there() {
		return s, awaited("segment of " + g.owner.name)
	}
	e := g.owner.entries.Load(r.Index)
	if e.Offset > g.bytes || e.Bytes > g.bytes-e.Offset || e.Bytes < protocol.SpillSize {
		return s, protocol.Errorf(protocol.CodeHandle, "send the message anew",
			"storage %d lies outside its segment, or is no spilled message's", r.Index)
	}
	var words [protocol.SpillSize / 8]uint64
	if err := g.view.ReadAt(shm.BytesOf(words[:]), e.Offset); err != nil {
		return s, err
	}
	nref, body := words[1]&0xffffffff, words[1]>>32
	if words[0] != protocol.SpillMagic || nref > protocol.MaxRefs || body > protocol.MaxBody ||
		protocol.SpillSize+nref*protocol.RefSize+body > e.Bytes {
		return s, protocol.Errorf(protocol.CodeHandle, "send the message anew", "a spilled message does not fit its storage")
	}
	return spill{g.view, e.Offset + protocol.SpillSize, int(nref), body}, nil
}

// read copies its refs, and the body behind them if it is asked for.
func (s *spill) read(whole bool) (refs []protocol.Ref, body []byte, err error) {
	n := uint64(s.nref) * protocol.RefSize
	size := n
	if whole {
		size += s.body
	}
	private := make([]byte, size)
	if err := s.segment.ReadAt(private, s.at); err != nil {
		return nil, nil, err
	}
	refs, err = protocol.ParseRefs(nil, private, s.nref)
	return refs, private[n:], err
}

// readSpill reads the refs that stand in a spill storage.
func (b *Broker) readSpill(r protocol.Ref) ([]protocol.Ref, error) {
	s, err := b.openSpill(r)
	if err != nil {
		return nil, err
	}
	refs, _, err := s.read(false)
	return refs, err
}
