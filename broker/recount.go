package broker

import (
	"maps"
	"slices"
	"time"

	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// recount makes the broker's row say what its places name: names, leases, and
// the messages of adopted lanes. It is raised first and lowered last, and rows
// of the dead are dropped only afterwards, so that no count is too low in
// between, however often a broker dies here.
func (b *Broker) recount() {
	crashpoint.At("broker-rebuild-read")
	target := map[uint32]uint64{}
	for _, t := range b.topics {
		if t == nil {
			continue
		}
		if t.name != nil {
			b.readRevision(t)
			continue
		}
		for _, l := range slices.Collect(maps.Values(t.lanes)) {
			if l.state == protocol.LaneAdopted {
				b.readAdopted(l, target)
			}
		}
	}
	b.raiseRow()
	crashpoint.At("broker-rebuild-raised")
	b.lowerRow()
}

// rowTarget counts what the broker's places name.
func (b *Broker) rowTarget() map[uint32]uint64 {
	target := map[uint32]uint64{}
	add := func(indices []uint32) {
		for _, index := range indices {
			target[index]++
		}
	}
	for _, t := range b.topics {
		if t == nil {
			continue
		}
		if t.name != nil {
			add(t.name.indices)
		}
		for _, l := range t.lanes {
			for _, indices := range l.kept {
				add(indices)
			}
		}
	}
	for _, l := range b.leases {
		for _, r := range l.refs {
			target[r.Index]++
		}
	}
	return target
}

func (b *Broker) raiseRow() { b.memory.Raise(b.rowTarget()) }

// lowerRow takes away what the row counts for nothing. While it is not known what
// some message names, any count may be for that.
func (b *Broker) lowerRow() {
	if len(b.unread) == 0 {
		b.memory.Lower(b.rowTarget())
	}
}

// reread looks again at what could not be read, after a file has come.
func (b *Broker) reread() {
	if len(b.unread) == 0 {
		return
	}
	target := b.rowTarget()
	for _, l := range slices.Collect(maps.Keys(b.unread)) {
		if l.topic.name != nil {
			b.readRevision(l.topic)
		} else {
			b.readAdopted(l, target)
			b.changed(l.topic)
		}
	}
	b.raiseRow()
	b.lowerRow()
}

// understood notes that nothing of a lane is to be read any more, or that it has been.
func (b *Broker) understood(l *lane) {
	if _, was := b.unread[l]; was {
		delete(b.unread, l)
		b.lowerRow()
	}
}

// giveUpUnread drops the adopted lanes that nobody has handed over and nobody can.
func (b *Broker) giveUpUnread() {
	for l := range b.unread {
		if !l.pages.There() {
			b.log.Warn("the messages of an ended session were handed over by no client", "lane", l.String())
			b.dropLane(l)
			b.changed(l.topic)
		}
	}
}

// readAdopted finds what an adopted lane keeps. Slots that cannot be read any
// more are emptied. target is what the broker's row is to count so far.
func (b *Broker) readAdopted(l *lane, target map[uint32]uint64) {
	if !l.pages.There() {
		b.unread[l] = struct{}{}
		return
	}
	delete(b.unread, l)
	l.ended = sys.Monotonic()
	head, slots := l.view.Head(), l.view.Slots()
	budget := b.adoptable(l.pages)
	var words []uint64
	for k := range slots {
		i := l.view.Seq(k)
		if i == 0 || l.kept[i] != nil {
			continue
		}
		h, data, ok := l.view.Read(i, words)
		words = data
		indices, known := []uint32(nil), false
		if ok && i&(slots-1) == k && i <= head && i+slots > head {
			var late bool
			if indices, known, late = b.namedBy(h, data, &budget); late {
				b.unread[l] = struct{}{}
				continue
			}
			known = known && fits(target, indices)
		}
		if !known {
			b.reject(l, k, "cannot be read any more")
			continue
		}
		l.kept[i] = indices
		for _, index := range indices {
			target[index]++
		}
	}
	if _, late := b.unread[l]; !late && len(l.kept) == 0 {
		b.dropLane(l)
	}
}

// fits tells whether the row can count a message more. Who left a lane and lives
// may have written there since what no broker has counted.
func fits(target map[uint32]uint64, indices []uint32) bool {
	for _, index := range indices {
		if target[index]+uint64(len(indices)) >= protocol.CountLimit/2 {
			return false
		}
	}
	return true
}

// namedBy lists the storages of a message that the former broker had counted. late
// tells that they stand in a file that was not handed over.
func (b *Broker) namedBy(h shm.SlotHead, data []uint64, budget *int) (indices []uint32, ok, late bool) {
	refs, err := protocol.ParseRefs(nil, shm.BytesOf(data), int(h.Nref))
	if err != nil {
		return nil, false, false
	}
	if h.Flags&protocol.SlotSpilled != 0 {
		if len(refs) != 1 || *budget <= 0 {
			return nil, false, false
		}
		if b.memory.SpillMissing(refs[0]) {
			return nil, false, true
		}
		nested, err := b.memory.ReadSpill(refs[0])
		if err != nil {
			*budget -= protocol.MaxRefs // as many may have been read
			return nil, false, false
		}
		refs = append(refs, nested...)
	}
	if *budget -= len(refs); *budget < 0 {
		return nil, false, false
	}
	indices = make([]uint32, len(refs))
	for i, r := range refs {
		if !b.memory.Known(r) {
			return nil, false, false
		}
		indices[i] = r.Index
	}
	return indices, true, false
}

// readRevision finds a name's present revision: the newest in its lane. An older
// one beside it is a publish that was not finished.
func (b *Broker) readRevision(t *topic) {
	n := t.name
	view := n.lane.view
	head := view.Head()
	i := head
	if view.Has(head + 1) {
		i = head + 1
		view.Publish(i)
	}
	for k := range view.Slots() {
		if seq := view.Seq(k); seq != 0 && seq != i {
			view.Unname(k)
		}
	}
	h, data, ok := view.Read(i, nil)
	if !ok {
		return
	}
	budget := 1 + protocol.MaxRefs // of one message
	indices, ok, late := b.namedBy(h, data, &budget)
	delete(b.unread, n.lane)
	if late {
		b.unread[n.lane] = struct{}{}
	}
	if !ok && !late || b.store.Record.Topic(t.index).Deleted() {
		delete(b.unread, n.lane)
		if !ok && !late {
			b.log.Warn("what a name held was handed over by no client", "name", t.key.name, "namespace", t.key.namespace)
		}
		view.Unname(i)
		b.setDeleted(t, true)
		return
	}
	n.set, n.revision, n.indices = true, i, indices
	n.live, n.bytes, n.tensors = h.Flags&protocol.SlotLive != 0, h.Bytes, h.Tensors
	n.at = time.Now().Add(-time.Duration(sys.Monotonic() - min(sys.Monotonic(), h.Stamp)))
	if serial := b.store.Record.Topic(t.index).Ephemeral(); serial != 0 {
		if p := b.store.BySerial(serial); p != nil && b.slots[p.Slot] != nil && b.slots[p.Slot].Pages == p {
			n.ephemeral = b.slots[p.Slot]
			n.ephemeral.names[t] = struct{}{}
			return
		}
		// Its setter is over: the deletion was half done.
		delete(b.unread, n.lane)
		view.Unname(i)
		b.setDeleted(t, true)
		n.set, n.indices = false, nil
	}
}
