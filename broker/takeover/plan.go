package takeover

import (
	"maps"
	"slices"

	"github.com/baton-ipc/baton/protocol"
)

// plan is what Plan knows while it goes on.
type plan struct {
	Facts
	inSlot  map[uint64]*Session // by serial
	slots   map[uint32]*Session
	over    map[uint64]*Remains
	segment map[uint32]*Segment
	chunk   map[uint32]*Chunk // that are granted and stay
	target  map[uint32]uint64 // what the broker's refcounts are to count
	unread  bool              // some message may name anything
	needed  map[uint64]bool   // sessions whose files lanes and segments need
	repairs []Repair
}

// Plan lists the repairs that the facts ask for, in the order in which they are to be
// applied. The same facts give the same repairs.
func Plan(f Facts) []Repair {
	p := &plan{Facts: f, inSlot: map[uint64]*Session{}, slots: map[uint32]*Session{}, over: map[uint64]*Remains{},
		segment: map[uint32]*Segment{}, chunk: map[uint32]*Chunk{}, target: map[uint32]uint64{}, needed: map[uint64]bool{}}
	for i := range f.Sessions {
		s := &f.Sessions[i]
		p.inSlot[s.Serial], p.slots[s.Slot] = s, s
	}
	for i := range f.Segments {
		p.segment[f.Segments[i].Index] = &f.Segments[i]
		p.needed[f.Segments[i].OwnerSerial] = true
	}
	p.remains()
	p.chunks()
	p.leases()
	p.lanes()
	p.unneeded()
	p.joins()
	p.refcounts()
	p.segments()
	p.dead()
	p.reclaim()
	return p.repairs
}

func (p *plan) add(r Repair) { p.repairs = append(p.repairs, r) }

// isDead reports whether the session's process has ended for certain.
func (p *plan) isDead(s *Session) bool { return s.Marked || !p.SameBoot || s.Process == Dead }

// MayCome tells whether a session could still hand over files: one that is not dead,
// not back, and whose client knows of it.
func MayCome(f *Facts) bool {
	p := plan{Facts: *f}
	return slices.ContainsFunc(f.Sessions, func(s Session) bool { return s.Answered && !s.Back && !p.isDead(&s) })
}

func (p *plan) remains() {
	for i := range p.Remains {
		r := &p.Remains[i]
		if p.inSlot[r.Serial] != nil {
			p.add(FreeRemains{r.Index}) // it was not wholly ended
			continue
		}
		p.over[r.Serial] = r
	}
}

// chunks completes the freeing of chunks that were half freed, and keeps those that were only
// being tested.
func (p *plan) chunks() {
	for i := range p.Chunks {
		c := &p.Chunks[i]
		serial := c.Serial &^ Retiring
		g := p.segment[c.Segment]
		if serial != 0 && (g == nil || g.Serial != c.SegmentSerial) {
			p.add(FreeChunk{c.Index})
			serial = 0
		} else if serial != c.Serial {
			p.add(KeepChunk{c.Index})
		}
		for _, slot := range c.Attached {
			if serial == 0 || slot != protocol.BrokerSlot && p.slots[slot] == nil {
				p.add(Detach{c.Index, slot})
			}
		}
		if serial != 0 {
			p.chunk[c.Index] = c
		}
	}
}

// granted tells whether a ref names a storage of a chunk that is still granted.
func (p *plan) granted(r protocol.Ref) bool {
	c := p.chunk[r.Index/protocol.ChunkIndices]
	return c != nil && c.Serial&^Retiring == r.Serial
}

func (p *plan) leases() {
	for _, l := range p.Leases {
		if !p.SameBoot || !p.granted(l.Ref) {
			p.add(FreeLease{l.Index})
			continue
		}
		p.target[l.Ref.Index]++
		if p.inSlot[l.Session] == nil && !l.Timed {
			p.add(TimeLease{l.Index})
		}
	}
}

// lanes finds what the broker's refcounts are to count for messages and names, and empties
// the slots that name nothing.
func (p *plan) lanes() {
	for i := range p.Lanes {
		l := &p.Lanes[i]
		if l.Name {
			p.name(l)
			continue
		}
		s, r := p.inSlot[l.Serial], p.over[l.Serial]
		if l.Incarnation == 0 || l.State == protocol.LaneClosed || s == nil && r == nil {
			p.add(FreeLane{l.Topic, l.Number})
			continue
		}
		if l.State != protocol.LaneAdopted && s != nil {
			p.needed[l.Serial] = true
			continue // its session pays; of a dead one, until it is ended
		}
		if file := s != nil && s.File || r != nil && r.File; !file {
			if MayCome(&p.Facts) {
				p.unread, p.needed[l.Serial] = true, true
			} else {
				p.add(FreeLane{l.Topic, l.Number})
			}
			continue
		}
		p.needed[l.Serial] = true
		for _, m := range l.Messages {
			p.message(l, m)
		}
	}
}

// unneeded forgets the remains of sessions of which nothing is left.
func (p *plan) unneeded() {
	for _, r := range p.Remains {
		if p.over[r.Serial] != nil && !p.needed[r.Serial] {
			p.add(FreeRemains{r.Index})
		}
	}
}

func (p *plan) message(l *Lane, m Message) (kept bool) {
	switch {
	case m.Awaited:
		p.unread = true
		return true
	case m.Bad || slices.ContainsFunc(m.Refs, func(r protocol.Ref) bool { return !p.granted(r) || p.full(r.Index, len(m.Refs)) }):
		p.add(Unname{l.Topic, l.Number, m.Slot})
		return false
	}
	for _, r := range m.Refs {
		p.target[r.Index]++
	}
	return true
}

// full tells whether the refcounts can count no further message for a storage. A living session that
// left a lane may have written there since, while no broker counted it.
func (p *plan) full(index uint32, more int) bool {
	return p.target[index]+uint64(more) >= protocol.CountLimit/2
}

// name keeps a name's newest revision. An older revision beside it is a publish that
// was not finished. A revision of a deleted name, or of a session that is over, is an unfinished
// deletion.
func (p *plan) name(l *Lane) {
	newest := uint64(0)
	for _, m := range l.Messages {
		newest = max(newest, m.Number)
	}
	for _, m := range l.Messages {
		gone := l.Deleted || l.Ephemeral != 0 && p.inSlot[l.Ephemeral] == nil
		switch {
		case m.Number != newest:
			p.add(Unname{l.Topic, l.Number, m.Slot})
		case gone:
			p.add(DeleteName{l.Topic})
			p.add(Unname{l.Topic, l.Number, m.Slot})
		case !p.message(l, m):
			p.add(DeleteName{l.Topic})
		}
	}
}

func (p *plan) joins() {
	type key struct {
		topic uint32
		group uint8
	}
	members := map[key]bool{}
	for _, j := range p.Joins {
		if p.inSlot[j.Session] == nil || !j.Known {
			p.add(FreeJoin{j.Index})
			continue
		}
		if j.Group > 0 {
			members[key{j.Topic, j.Group - 1}] = true
		}
	}
	for _, g := range p.Groups {
		if !g.Queue && !members[key{g.Topic, uint8(g.Number)}] {
			p.add(FreeGroup{g.Topic, g.Number})
		}
	}
}

// refcounts raises the broker's refcounts to what its places name, and then lowers what is above.
// While it is not known what some message names, any count may be for that.
func (p *plan) refcounts() {
	for _, index := range slices.Sorted(maps.Keys(p.target)) {
		if n := p.target[index]; p.Refcounts[index] < n {
			p.add(Raise{index, n})
		}
	}
	if p.unread {
		return
	}
	for _, index := range slices.Sorted(maps.Keys(p.Refcounts)) {
		if n := p.target[index]; p.Refcounts[index] > n {
			p.add(Lower{index, n})
		}
	}
}

// owned tells whether a segment's owner may still use it.
func (p *plan) owned(g Segment) bool {
	s := p.inSlot[g.OwnerSerial]
	return s != nil && !s.Closed
}

func (p *plan) segments() {
	for _, g := range p.Segments {
		if !g.Orphan && !p.owned(g) {
			p.add(OrphanSegment{g.Index})
		}
	}
}

// dead ends the dead sessions: their messages first, so that what they name is counted by
// the broker before their refcounts go.
func (p *plan) dead() {
	mayCome := MayCome(&p.Facts)
	for i := range p.Sessions {
		s := &p.Sessions[i]
		switch {
		case !p.isDead(s):
		case !s.File && mayCome && s.Answered:
			if !s.Marked {
				p.add(MarkDead{s.Slot})
			}
		default:
			p.add(EndSession{s.Slot, s.Serial})
		}
	}
}

// reclaim asks for a test of every orphan. An orphan with a missing file waits until the file
// can come no more.
func (p *plan) reclaim() {
	mayCome := MayCome(&p.Facts)
	for _, g := range p.Segments {
		if p.owned(g) {
			continue
		}
		s, r := p.inSlot[g.OwnerSerial], p.over[g.OwnerSerial]
		lost := !g.File && !g.Device
		whole := lost || !(s != nil && s.File || r != nil && r.File)
		if !whole || !mayCome {
			p.add(Reclaim{g.Index, g.Serial, whole, lost})
		}
	}
}
