package broker

import (
	"bytes"

	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// maxAdopted bounds the references that one session's lanes can make the broker
// count: a liar can have every slot name a spill of 65,535.
const maxAdopted = 8 << 20

// adopt makes the broker the keeper of a lane whose writer has gone: it counts
// every message that can be read up in its own row, and only then the lane
// changes hands. Slots that are nonsense are emptied. The writer's row still
// counts meanwhile, so nothing is free in between. budget is what may still be
// counted; it is lowered.
func (b *Broker) adopt(l *lane, budget *int) {
	l.kept = map[uint64][]uint32{}
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
// and returns their indices; if one cannot be held, none is.
func (b *Broker) countMessage(h shm.SlotHead, data []uint64, budget *int) (indices []uint32, ok bool) {
	refs, err := protocol.ParseRefs(nil, shm.BytesOf(data), int(h.Nref))
	if err != nil || len(refs) > *budget {
		return nil, false
	}
	defer func() {
		if !ok {
			b.dropAll(indices)
			indices = nil
			return
		}
		*budget -= len(indices)
	}()
	for _, r := range refs {
		if b.hold(r) != nil {
			return indices, false
		}
		indices = append(indices, r.Index)
	}
	if h.Flags&protocol.SlotSpilled == 0 {
		return indices, true
	}
	if len(refs) != 1 {
		return indices, false
	}
	nested, err := b.readSpill(refs[0])
	if err != nil || len(nested)+1 > *budget {
		return indices, false
	}
	for _, r := range nested {
		if b.hold(r) != nil {
			return indices, false
		}
		indices = append(indices, r.Index)
	}
	return indices, true
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

// spill views a spill storage, which the broker holds; its writer may still change it.
func (b *Broker) spill(r protocol.Ref) ([]byte, error) {
	c := b.findChunkOf(r.Index, r.Serial)
	if c == nil {
		return nil, expired(r)
	}
	g := c.segment
	if g.view == nil || !g.owner.there() {
		return nil, awaited("segment of " + g.owner.name)
	}
	e := g.owner.entries.Load(r.Index)
	if e.Offset > g.bytes || e.Bytes > g.bytes-e.Offset || e.Bytes < protocol.SpillSize || e.Bytes > protocol.MaxSpill {
		return nil, protocol.Errorf(protocol.CodeHandle, "send the message anew",
			"storage %d lies outside its segment, or is no spilled message's", r.Index)
	}
	region, err := g.view.Readable()
	if err != nil {
		return nil, err
	}
	return region.Bytes(e.Offset, e.Bytes), nil
}

// readSpill reads the refs that stand in a spill storage.
func (b *Broker) readSpill(r protocol.Ref) ([]protocol.Ref, error) {
	s, err := b.spill(r)
	if err != nil {
		return nil, err
	}
	head := [protocol.SpillSize]byte(s)
	n, err := spillRefs(head[:], uint64(len(s)))
	if err != nil {
		return nil, err
	}
	return protocol.ParseRefs(nil, bytes.Clone(s[protocol.SpillSize:protocol.SpillSize+n*protocol.RefSize]), n)
}

// copySpill copies a whole spill storage.
func (b *Broker) copySpill(r protocol.Ref) ([]byte, error) {
	s, err := b.spill(r)
	return bytes.Clone(s), err
}

// spillRefs checks a spill's head and returns how many refs follow it.
func spillRefs(head []byte, bytes uint64) (int, error) {
	words := make([]uint64, protocol.SpillSize/8)
	copy(shm.BytesOf(words), head)
	n, body := words[1]&0xffffffff, words[1]>>32
	if words[0] != protocol.SpillMagic || n > protocol.MaxRefs || body > protocol.MaxBody ||
		protocol.SpillSize+n*protocol.RefSize+body > bytes {
		return 0, protocol.Errorf(protocol.CodeHandle, "send the message anew", "a spilled message does not fit its storage")
	}
	return int(n), nil
}
