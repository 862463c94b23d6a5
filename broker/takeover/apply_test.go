package takeover_test

import (
	"maps"
	"slices"

	"github.com/baton-ipc/baton/broker/takeover"
	"github.com/baton-ipc/baton/protocol"
)

// apply carries out a repair, as a broker does, in steps between which it may die. It
// returns the steps; trusting, it frees without a look at any holder's refcounts.
func (w *world) apply(r takeover.Repair, trusting bool) []func() {
	switch r := r.(type) {
	case takeover.EndSession:
		return w.endSession(r)
	case takeover.Reclaim:
		return w.reclaim(r, trusting)
	}
	return []func(){func() { w.change(r) }}
}

// change carries out a repair of one step.
func (w *world) change(r takeover.Repair) {
	switch r := r.(type) {
	case takeover.KeepChunk:
		w.chunks[r.Chunk].serial &^= takeover.Retiring
	case takeover.FreeChunk:
		w.chunks[r.Chunk].serial = 0
		w.tidy(r.Chunk)
	case takeover.Detach:
		delete(w.chunks[r.Chunk].bits, r.Slot)
		w.tidy(r.Chunk)
	case takeover.FreeRemains:
		delete(w.remains, r.Index)
	case takeover.FreeLane:
		delete(w.lanes, place{r.Topic, r.Lane})
	case takeover.FreeJoin:
		delete(w.joins, r.Index)
	case takeover.FreeGroup:
		w.groups = slices.DeleteFunc(w.groups, func(g takeover.Group) bool { return g.Topic == r.Topic && g.Number == r.Group })
	case takeover.FreeLease:
		delete(w.leases, r.Index)
	case takeover.TimeLease:
		w.leases[r.Index].timed = true
	case takeover.Unname:
		delete(w.lanes[place{r.Topic, r.Lane}].messages, r.Slot)
	case takeover.DeleteName:
		w.lanes[place{r.Topic, 0}].deleted = true
	case takeover.OrphanSegment:
		w.segments[r.Segment].orphan = true
	case takeover.Raise:
		w.refcounts[r.Index] = max(w.refcounts[r.Index], r.To)
	case takeover.Lower:
		w.refcounts[r.Index] = min(w.refcounts[r.Index], r.To)
	case takeover.MarkDead:
		w.sessions[r.Slot].marked = true
	default:
		w.fail("unknown repair %#v", r)
	}
}

// tidy forgets a chunk of which nothing is left.
func (w *world) tidy(n uint32) {
	if c := w.chunks[n]; c != nil && c.serial == 0 && len(c.bits) == 0 {
		delete(w.chunks, n)
	}
}

// granted tells whether a broker finds what a ref names.
func (w *world) granted(r protocol.Ref) bool {
	c := w.chunks[r.Index/protocol.ChunkIndices]
	return c != nil && c.serial == r.Serial
}

// endSession ends a session in the order of docs/protocol.md, Death.
func (w *world) endSession(r takeover.EndSession) (steps []func()) {
	s := w.sessions[r.Slot]
	do := func(f func()) { steps = append(steps, f) }
	do(func() { s.marked = true })
	for _, at := range w.lanePlaces() {
		l := w.lanes[at]
		if l.serial != r.Serial || l.state != protocol.LaneLive || l.name {
			continue
		}
		if !w.files[file{'s', r.Serial}] {
			do(func() { delete(w.lanes, at) })
			continue
		}
		for _, i := range slices.Sorted(maps.Keys(l.messages)) {
			for _, ref := range l.messages[i].refs {
				do(func() {
					if w.granted(ref) {
						w.refcounts[ref.Index]++
					}
				})
			}
		}
		do(func() { l.state = protocol.LaneAdopted })
	}
	for _, i := range slices.Sorted(maps.Keys(w.joins)) {
		if w.joins[i].Session == r.Serial {
			do(func() { delete(w.joins, i) })
		}
	}
	for _, n := range slices.Sorted(maps.Keys(w.chunks)) {
		c := w.chunks[n]
		do(func() {
			for i := range uint32(storages) {
				delete(s.refcounts, n*protocol.ChunkIndices+i)
			}
		})
		do(func() { delete(c.bits, r.Slot) })
	}
	for _, i := range slices.Sorted(maps.Keys(w.segments)) {
		if g := w.segments[i]; g.owner == r.Serial {
			do(func() { g.orphan = true })
		}
	}
	for _, i := range slices.Sorted(maps.Keys(w.leases)) {
		if l := w.leases[i]; l.session == r.Serial && !l.timed {
			do(func() { delete(w.leases, i) })
			do(func() { w.refcounts[l.ref.Index]-- })
		}
	}
	for _, at := range w.lanePlaces() {
		if l := w.lanes[at]; l.ephemeral == r.Serial {
			w.unset(l, do)
		}
	}
	do(func() {
		if w.needsFile(r.Serial) {
			w.remains[200+r.Slot] = r.Serial
		}
	})
	do(func() { delete(w.sessions, r.Slot) })
	return steps
}

func (w *world) unset(l *lane, do func(func())) {
	do(func() { l.deleted = true })
	for _, i := range slices.Sorted(maps.Keys(l.messages)) {
		refs := l.messages[i].refs
		if w.awaited(l.messages[i]) {
			refs = nil // what it named is not known
		}
		do(func() { delete(l.messages, i) })
		for _, ref := range refs {
			do(func() { w.refcounts[ref.Index]-- })
		}
	}
}

func (w *world) needsFile(serial uint64) bool {
	for _, g := range w.segments {
		if g.owner == serial {
			return true
		}
	}
	for _, l := range w.lanes {
		if l.serial == serial {
			return true
		}
	}
	return false
}

// reclaim tests a segment by a double collect over the refcounts, and frees it.
func (w *world) reclaim(r takeover.Reclaim, trusting bool) (steps []func()) {
	g := w.segments[r.Segment]
	do := func(f func()) { steps = append(steps, f) }
	stop := false // what the test found
	if r.Lost {
		do(func() { stop = w.heldIn(r.Segment, 0) })
		w.letGo(r.Segment, func(f func()) { do(func() { w.unless(stop, f) }) })
	}
	do(func() { w.unless(stop, func() { stop = !trusting && w.heldIn(r.Segment, 99) }) })
	for _, n := range w.chunksOf(r.Segment) {
		c := w.chunks[n]
		do(func() { w.unless(stop, func() { c.serial |= takeover.Retiring }) })
		if w.chance(0.2) {
			// An opener that saw the serial before has counted up meanwhile.
			do(func() { w.unless(stop || trusting, func() { w.openBefore(n) }) })
		}
	}
	held := false
	do(func() { w.unless(stop, func() { held = !trusting && w.heldIn(r.Segment, 99) }) })
	for _, n := range w.chunksOf(r.Segment) {
		c := w.chunks[n]
		do(func() {
			w.unless(stop, func() {
				if held {
					c.serial &^= takeover.Retiring
				} else {
					c.serial = 0
				}
			})
		})
		for _, slot := range slices.Sorted(maps.Keys(c.bits)) {
			do(func() { w.unless(stop || held, func() { delete(c.bits, slot) }) })
		}
		do(func() { w.unless(stop || held, func() { w.tidy(n) }) })
	}
	do(func() {
		w.unless(stop || held, func() {
			delete(w.segments, r.Segment)
			for i, serial := range w.remains {
				if serial == g.owner && !w.needsFile(serial) {
					delete(w.remains, i)
				}
			}
		})
	})
	return steps
}

func (w *world) unless(not bool, f func()) {
	if !not {
		f()
	}
}

func (w *world) chunksOf(segment uint32) (all []uint32) {
	for n, c := range w.chunks {
		if c.segment == segment && c.segmentSerial == w.segments[segment].serial {
			all = append(all, n)
		}
	}
	slices.Sort(all)
	return all
}

// heldIn reads the refcounts of every attached holder but that of one slot. Refcounts that this broker does
// not have counts everything.
func (w *world) heldIn(segment, but uint32) bool {
	for _, n := range w.chunksOf(segment) {
		for slot := range w.chunks[n].bits {
			if slot == but {
				continue
			}
			refcounts := w.refcounts
			if slot != protocol.BrokerSlot {
				s := w.sessions[slot]
				if s == nil || !w.files[file{'s', s.serial}] {
					return true
				}
				refcounts = s.refcounts
			}
			for i := range uint32(storages) {
				if refcounts[n*protocol.ChunkIndices+i] != 0 {
					return true
				}
			}
		}
	}
	return false
}

// openBefore has a living session count a storage of a chunk that it is attached to.
func (w *world) openBefore(n uint32) {
	for _, slot := range slices.Sorted(maps.Keys(w.chunks[n].bits)) {
		s := w.sessions[slot]
		if s == nil {
			continue
		}
		p := w.living[s.serial]
		g := w.segments[w.chunks[n].segment]
		if p == nil || !p.mapped[file{'g', g.serial}] && !g.device {
			continue
		}
		s.refcounts[n*protocol.ChunkIndices]++
		p.held[n*protocol.ChunkIndices]++
		p.chunkOf[n] = w.chunks[n].serial &^ takeover.Retiring
		return
	}
}

// letGo un-names what the broker itself names in a segment that is lost.
func (w *world) letGo(segment uint32, do func(func())) {
	lost := func(refs []protocol.Ref) bool {
		return slices.ContainsFunc(refs, func(r protocol.Ref) bool {
			c := w.chunks[r.Index/protocol.ChunkIndices]
			return c != nil && c.segment == segment && c.serial == r.Serial
		})
	}
	for _, at := range w.lanePlaces() {
		l := w.lanes[at]
		if l.state != protocol.LaneAdopted && !l.name || l.state == protocol.LaneAdopted && !w.files[file{'s', l.serial}] {
			continue
		}
		for _, i := range slices.Sorted(maps.Keys(l.messages)) {
			m := l.messages[i]
			if m.bad || w.awaited(m) || !lost(m.refs) {
				continue
			}
			if l.name {
				do(func() { l.deleted = true })
			}
			do(func() { delete(l.messages, i) })
			for _, ref := range m.refs {
				do(func() { w.refcounts[ref.Index]-- })
			}
		}
	}
	for _, i := range slices.Sorted(maps.Keys(w.leases)) {
		if l := w.leases[i]; lost([]protocol.Ref{l.ref}) {
			do(func() { delete(w.leases, i) })
			do(func() { w.refcounts[l.ref.Index]-- })
		}
	}
}
