package topics

import (
	"maps"
	"slices"

	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// Install uses the file of a group that was missing, and tells whether it could; then
// it has taken ownership of fd.
func (ts *Topics) Install(k sessionfiles.Key, fd *sys.FD) bool {
	g := ts.findGroup(k.Serial)
	if g == nil || g.file.Region.Valid() {
		return false
	}
	ts.installGroup(g, k, fd)
	return true
}

// HasGroup reports whether there is a group with an id.
func (ts *Topics) HasGroup(id uint64) bool { return ts.findGroup(id) != nil }

// HasMembers reports whether a group with an id has members.
func (ts *Topics) HasMembers(id uint64) bool {
	g := ts.findGroup(id)
	return g != nil && len(g.members) > 0
}

// Returned views the lanes in the file of a session, which was missing until now.
func (ts *Topics) Returned(p *sessionfiles.SessionFile) {
	for l := range ts.lanesIn[p] {
		if ts.viewLane(l) == nil {
			ts.promise(l)
		}
	}
}

// promise begins a group's promise in a lane whose head could not be read when
// the group was made.
func (ts *Topics) promise(l *Lane) {
	for _, g := range l.Topic.groups {
		if g == nil {
			continue
		}
		if a, ok := g.area(l.Number); ok && a.Start() == protocol.NoStart {
			a.SetStart(l.nextNumber())
		}
	}
	ts.changed(l.Topic)
}

func (ts *Topics) installGroup(g *group, k sessionfiles.Key, fd *sys.FD) {
	m, err := ts.store.MapRestored(k, fd, protocol.RoleGroup, protocol.GroupBytes(g.topic.slots))
	if err != nil {
		ts.log.Error("a file of the previous broker cannot be used", "role", k.Role, "serial", k.Serial, "error", err)
		return
	}
	g.file = m
	ts.freeStrays(g)
	for n := range g.topic.lanes {
		if a, ok := g.area(n); ok {
			a.Rewind() // MODEL group:restart-hint
		}
	}
	ts.changed(g.topic)
}

// remakeGroup makes the claims of a group anew that has no member; what is still in the
// lanes is open again. It is another group from now on: a sender may have the former
// claims mapped by an answer that it processed late.
func (ts *Topics) remakeGroup(g *group) {
	id := ts.store.Record.NextSerial()
	m, err := ts.store.NewFile(protocol.RoleGroup, protocol.RestoreGroup, id, g.number, protocol.GroupBytes(g.topic.slots))
	if err != nil {
		ts.log.Error("cannot make the claims of a group", "topic", g.topic.String(), "error", err)
		return
	}
	ts.store.Over(sessionfiles.Key{Role: protocol.RestoreGroup, Serial: g.id})
	g.id, g.file = id, m
	for n := range g.topic.lanes {
		if err := g.reset(g.topic, n, 1); err != nil {
			ts.log.Error("cannot make the claims of a group", "topic", g.topic.String(), "error", err)
		}
	}
	ts.putGroup(g)
	ts.changed(g.topic)
}

// RemakeGroups makes the claims anew that no session can hand over any more. Those of a
// group with members wait for these: a member that did not list them may have them all
// the same, and goes on with them.
func (ts *Topics) RemakeGroups() {
	for g := range ts.allGroups() {
		ts.remakeIfLeft(g)
	}
}

// remakeIfLeft makes the claims of a group anew that no session has any more.
func (ts *Topics) remakeIfLeft(g *group) {
	if ts.store.AllBack && len(g.members) == 0 && !g.file.Region.Valid() {
		ts.remakeGroup(g)
	}
}

// LetGo un-names everything of the broker's that lies in storages that are lost.
func (ts *Topics) LetGo(lost func(index uint32) bool) {
	for _, t := range ts.used() {
		if t == nil {
			continue
		}
		if t.name != nil && t.name.set && slices.ContainsFunc(t.name.indices, lost) {
			ts.log.Warn("a name is lost: no process that lives has the memory of its tensors", events.Of(events.Memory), "name", t.key.name, "namespace", t.key.namespace, "revision", t.name.revision)
			ts.unset(t, "the broker: it is lost")
			continue
		}
		for _, l := range slices.Collect(maps.Values(t.lanes)) {
			for i, indices := range l.kept {
				if slices.ContainsFunc(indices, lost) {
					ts.dropKept(l, i)
				}
			}
			if _, unread := ts.unread[l]; l.state == protocol.LaneAdopted && len(l.kept) == 0 && !unread {
				ts.dropLane(l)
				ts.changed(t)
			}
		}
	}
}

// Rewind has all members look at all claims again: a hint may have been ahead of
// what a dead member had claimed.
func (ts *Topics) Rewind() {
	for g := range ts.allGroups() {
		for n := range g.topic.lanes {
			if a, ok := g.area(n); ok {
				a.Rewind() // MODEL group:restart-hint
			}
		}
	}
}

// Announce has all sessions look at all topics again, and ends the topics that no
// session has open.
func (ts *Topics) Announce() {
	for _, t := range ts.used() {
		if t != nil {
			ts.changed(t)
			ts.removeIfUnused(t)
		}
	}
}

// TakeBack ends readers of a session whose answers were lost with the previous broker, so
// that its client does not know of them.
func (ts *Topics) TakeBack(s *Party, unanswered []protocol.Reading) {
	for _, r := range unanswered {
		t, m, err := ts.findTopic(s, r.TopicRef)
		if err != nil {
			continue
		}
		if rd := m.readers[r.Reader]; rd != nil {
			ts.leaveReader(t, s, m, rd)
			ts.readersChanged(t)
			ts.leaveIfDone(t, s, m)
		}
	}
}

// AnyName tells whether a name is set.
func (ts *Topics) AnyName() bool {
	return slices.ContainsFunc(ts.topics[:], func(t *Topic) bool { return t != nil && t.name != nil && t.name.set })
}

// AnyItem tells whether a queue has an item that was not taken, as far as is known.
func (ts *Topics) AnyItem() bool {
	return slices.ContainsFunc(ts.topics[:], func(t *Topic) bool { return t != nil && t.isQueue() && t.waits() })
}

// waits tells whether a queue has items that were not taken.
func (t *Topic) waits() bool {
	for n, l := range t.lanes {
		if !l.File.There() {
			return true // nothing is known of it
		}
		head := l.View.Head()
		for _, g := range t.groups {
			if g == nil {
				continue
			}
			a, ok := g.area(n)
			for i := head - min(head, uint64(t.depth)) + 1; i <= head; i++ {
				if !ok || l.View.Has(i) && !a.Done(i) {
					return true
				}
			}
		}
	}
	return false
}

// EachFile lists the files of all groups.
func (ts *Topics) EachFile(f func(k sessionfiles.Key, fd *sys.FD)) {
	for g := range ts.allGroups() {
		if g.file.FD != nil {
			f(sessionfiles.Key{Role: protocol.RestoreGroup, Serial: g.id}, g.file.FD)
		}
	}
}
