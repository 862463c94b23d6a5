package topics

import (
	"maps"
	"slices"
	"time"

	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// RereadAwaited reads what Reread could not, after a file has come. target is what the
// broker's refcounts are to count so far.
func (ts *Topics) RereadAwaited(target map[uint32]uint64) {
	for _, l := range slices.Collect(maps.Keys(ts.unread)) {
		if l.Topic.name != nil {
			ts.readRevision(l.Topic)
		} else {
			ts.readAdopted(l, target)
			ts.changed(l.Topic)
		}
	}
}

// Reread finds out from the lanes what the names and adopted lanes of a previous broker
// name.
func (ts *Topics) Reread() {
	target := map[uint32]uint64{}
	for _, t := range ts.used() {
		if t == nil {
			continue
		}
		if t.name != nil {
			ts.readRevision(t)
			continue
		}
		for _, l := range slices.Collect(maps.Values(t.lanes)) {
			if l.state == protocol.LaneAdopted {
				ts.readAdopted(l, target)
			}
		}
	}
}

// Recount adds to target what names and the messages of adopted lanes name, as far
// as it is known.
func (ts *Topics) Recount(target map[uint32]uint64) {
	add := func(indices []uint32) {
		for _, index := range indices {
			target[index]++
		}
	}
	for h := range ts.holdings {
		add(h.indices)
	}
	for _, t := range ts.used() {
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
}

// Unread tells how many lanes name what is not known yet.
func (ts *Topics) Unread() int { return len(ts.unread) }

// understood notes that nothing of a lane is to be read any more, or that it has been.
func (ts *Topics) understood(l *Lane) {
	if _, was := ts.unread[l]; was {
		delete(ts.unread, l)
		ts.watch.Understood()
	}
}

// GiveUpUnread drops the adopted lanes whose files are missing and can no longer come.
func (ts *Topics) GiveUpUnread() {
	for l := range ts.unread {
		if !l.File.There() {
			ts.log.Warn("the messages of an ended session were not handed over", events.Of(events.Memory), "lane", l.String())
			ts.dropLane(l)
			ts.changed(l.Topic)
		}
	}
}

// readAdopted finds what an adopted lane keeps. Slots that cannot be read any
// more are emptied. target is what the broker's refcounts are to count so far.
func (ts *Topics) readAdopted(l *Lane, target map[uint32]uint64) {
	if !l.File.There() {
		ts.unread[l] = struct{}{}
		return
	}
	delete(ts.unread, l)
	l.ended = sys.Monotonic()
	head, slots := l.View.Head(), l.View.Slots()
	budget := ts.adoptable(l.File)
	var words []uint64
	for k := range slots {
		i := l.View.Seq(k)
		if i == 0 || l.kept[i] != nil {
			continue
		}
		h, data, ok := l.View.Read(i, words)
		words = data
		indices, known := []uint32(nil), false
		if ok && i&(slots-1) == k && i <= head && i+slots > head {
			var awaited bool
			if indices, known, awaited = ts.namedBy(h, data, &budget); awaited {
				ts.unread[l] = struct{}{}
				continue
			}
			known = known && fits(target, indices)
		}
		if !known {
			ts.reject(l, k, "cannot be read any more")
			continue
		}
		l.kept[i] = indices
		for _, index := range indices {
			target[index]++
		}
	}
	if _, awaited := ts.unread[l]; !awaited && len(l.kept) == 0 {
		ts.dropLane(l)
	}
}

// fits reports whether the refcounts can count one more message. A living session that left
// a lane may have written there since, without a broker that counted it.
func fits(target map[uint32]uint64, indices []uint32) bool {
	for _, index := range indices {
		if target[index]+uint64(len(indices)) >= protocol.CountLimit/2 {
			return false
		}
	}
	return true
}

// namedBy lists the storages of a message that the previous broker had counted. awaited:
// they stand in a file that was not handed over.
func (ts *Topics) namedBy(h shm.SlotHead, data []uint64, budget *int) (indices []uint32, ok, awaited bool) {
	refs, awaited, bad := ts.memory.NamedBy(h, data, budget)
	if awaited || bad {
		return nil, false, awaited
	}
	indices = make([]uint32, len(refs))
	for i, r := range refs {
		if !ts.memory.Known(r) {
			return nil, false, false
		}
		indices[i] = r.Index
	}
	return indices, true, false
}

// readRevision finds a name's present revision: the newest in its lane. An older
// one beside it is a publish that was not finished.
func (ts *Topics) readRevision(t *Topic) {
	n := t.name
	view := n.lane.View
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
	indices, ok, awaited := ts.namedBy(h, data, &budget)
	delete(ts.unread, n.lane)
	if awaited {
		ts.unread[n.lane] = struct{}{}
	}
	if !ok && !awaited || ts.store.Record.Topic(t.index).Deleted() {
		delete(ts.unread, n.lane)
		if !ok && !awaited {
			ts.log.Warn("a name is lost: what it held was handed over by no client", events.Of(events.Memory), "name", t.key.name, "namespace", t.key.namespace)
		}
		if n.set { // as it seemed before it could be read
			ts.unset(t, "the broker: it is lost")
			return
		}
		view.Unname(i)
		ts.setDeleted(t, true)
		return
	}
	n.set, n.revision, n.indices = true, i, indices
	n.live, n.bytes, n.tensors = h.Flags&protocol.SlotLive != 0, h.Bytes, h.Tensors
	n.at = time.Now().Add(-time.Duration(sys.Monotonic() - min(sys.Monotonic(), h.Stamp)))
	ts.restoreAgreed(t, &h, data)
	if serial := ts.store.Record.Topic(t.index).Ephemeral(); serial != 0 {
		if s := ts.parties[ts.store.BySerial(serial)]; s != nil {
			n.ephemeral = s
			s.names[t] = struct{}{}
			return
		}
		// Its setter is over: the deletion was half done.
		delete(ts.unread, n.lane)
		view.Unname(i)
		ts.setDeleted(t, true)
		n.set, n.indices = false, nil
	}
}
