package broker

import (
	"maps"
	"slices"

	"github.com/baton-ipc/baton/broker/pages"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// After a takeover some sessions may still be absent: stopped processes, say.
// They keep all they have. Files that only they can hand over are missing until
// they are back; what depends on them waits, and counts as held.

// absentees counts the sessions that are not back yet. Those whose hello was not
// answered had nothing given to them but their own pages, and need not come.
func (b *Broker) absentees() (n int) {
	for _, s := range b.slots {
		if s != nil && s.absent && s.answered && s.state != protocol.SessionDead {
			n++
		}
	}
	return n
}

// buriedLater tells of a dead session whose file is missing and may still come: what
// it sent is in there. Until then its row, which nobody can read, counts everything
// that it is attached to.
func (b *Broker) buriedLater(s *session) bool {
	k := pages.Key{Role: protocol.RestoreSession, Serial: s.Serial}
	if _, missing := b.store.Missing[k]; !missing || s.There() || !s.answered {
		return false
	}
	b.setState(s, protocol.SessionDead)
	return b.absentees() > 0
}

// buryLate buries the dead sessions that are not buried yet and need no longer wait.
func (b *Broker) buryLate() {
	for _, s := range b.slots {
		if s != nil && s.absent && s.state == protocol.SessionDead {
			b.bury(s)
		}
	}
}

// lateFiles are the files that only sessions could hand over which are absent and
// were not answered. They may come as long as the session is there.
func (b *Broker) lateFiles() map[pages.Key]uint64 {
	var files map[pages.Key]uint64
	for _, s := range b.slots {
		if s == nil || !s.absent || s.answered {
			continue
		}
		for _, k := range []pages.Key{{Role: protocol.RestoreSession, Serial: s.Serial}, {Role: protocol.RestoreBell, Serial: s.Serial}} {
			if inode, ok := b.store.Missing[k]; ok {
				if files == nil {
					files = map[pages.Key]uint64{}
				}
				files[k] = inode
			}
		}
	}
	return files
}

// install uses a file that was missing. It takes ownership of fd.
func (b *Broker) install(k pages.Key, fd *sys.FD) {
	switch k.Role {
	case protocol.RestoreSession, protocol.RestoreBell:
		if p := b.store.BySerial(k.Serial); p != nil {
			b.installPages(p, k, fd)
			return
		}
	case protocol.RestoreSegment:
		if b.memory.Install(k, fd) {
			b.reread()
			return
		}
	case protocol.RestoreGroup:
		for _, t := range b.topics {
			for i := 0; t != nil && i < len(t.groups); i++ {
				if g := t.groups[i]; g != nil && g.id == k.Serial && !g.file.Region.Valid() {
					b.installGroup(g, k, fd)
					return
				}
			}
		}
	}
	fd.Close()
}

func (b *Broker) installPages(p *pages.Pages, k pages.Key, fd *sys.FD) {
	if !b.store.Install(p, k, fd) {
		return
	}
	for l := range b.lanesIn[p] {
		if b.viewLane(l) == nil {
			b.promise(l)
		}
	}
	b.reread()
	if s := b.slots[p.Slot]; s != nil && s.Pages == p && s.state == protocol.SessionDead {
		b.bury(s)
	}
	b.careSoon()
}

// promise begins a group's promise in a lane whose head could not be read when
// the group was made.
func (b *Broker) promise(l *lane) {
	for _, g := range l.topic.groups {
		if g == nil {
			continue
		}
		if a, ok := g.area(l.number); ok && a.Start() == protocol.NoStart {
			a.SetStart(l.nextNumber())
		}
	}
	b.changed(l.topic)
}

func (b *Broker) installGroup(g *group, k pages.Key, fd *sys.FD) {
	m, err := b.store.Adopt(k, fd, protocol.RoleGroup, protocol.GroupBytes(g.topic.slots))
	if err != nil {
		b.log.Error("a file of the former broker cannot be used", "role", k.Role, "serial", k.Serial, "error", err)
		return
	}
	g.file = m
	for n := range g.topic.lanes {
		a, ok := g.area(n)
		if !ok {
			continue
		}
		// Members may have ended while their claims could not be freed.
		for member := range uint8(maxMembers) {
			if g.topic.redeliver && g.members[member+1] == nil {
				a.Release(member + 1)
			}
		}
		a.Rewind(1) // MODEL group:restart-hint
	}
	b.changed(g.topic)
}

// settle goes on without what is still missing when every session is back or dead:
// dead sessions are buried whose rows nobody has, and groups and bells are made anew.
// Segments without a file, or without their owner's, are the collector's: they stay
// while any row counts anything of them.
func (b *Broker) settle() {
	if b.store.Missing == nil || b.absentees() > 0 {
		return
	}
	b.store.Missing, b.store.Settled = b.lateFiles(), true
	b.buryLate()
	b.giveUpUnread()
	for _, t := range b.topics {
		for i := 0; t != nil && i < len(t.groups); i++ {
			if g := t.groups[i]; g != nil && !g.file.Region.Valid() {
				b.remakeGroup(g)
			}
		}
	}
	for _, p := range b.store.All() {
		if p != b.store.Own {
			if err := b.store.RemakeBell(p); err != nil {
				b.log.Error("cannot make the bell of a session", "name", p.Name, "error", err)
			}
		}
		b.store.DropRemains(p)
	}
}

// remakeGroup makes the claims of a group anew. None of its members is left, or
// it would have handed them over; what is still in the lanes is open again.
func (b *Broker) remakeGroup(g *group) {
	m, err := b.store.NewFile(protocol.RoleGroup, protocol.RestoreGroup, g.id, g.number, protocol.GroupBytes(g.topic.slots))
	if err != nil {
		b.log.Error("cannot make the claims of a group", "topic", g.topic.String(), "error", err)
		return
	}
	g.file = m
	for n := range g.topic.lanes {
		if err := g.reset(g.topic, n, 1); err != nil {
			b.log.Error("cannot make the claims of a group", "topic", g.topic.String(), "error", err)
		}
	}
	b.putGroup(g)
	b.changed(g.topic)
}

// letGo un-names everything of the broker's that lies where lost says.
func (b *Broker) letGo(lost func(index uint32) bool) {
	for _, t := range b.topics {
		if t == nil {
			continue
		}
		if t.name != nil && t.name.set && slices.ContainsFunc(t.name.indices, lost) {
			b.unset(t)
			continue
		}
		for _, l := range slices.Collect(maps.Values(t.lanes)) {
			for i, indices := range l.kept {
				if slices.ContainsFunc(indices, lost) {
					b.retire(l, i)
				}
			}
			if _, unread := b.unread[l]; l.state == protocol.LaneAdopted && len(l.kept) == 0 && !unread {
				b.dropLane(l)
				b.changed(t)
			}
		}
	}
	for _, l := range b.leases {
		if slices.ContainsFunc(l.refs, func(r protocol.Ref) bool { return lost(r.Index) }) {
			b.endLease(l)
		}
	}
}

// keepsNames tells whether the shared files are of use after a clean end: names
// stand in files, or clients still work with theirs.
func (b *Broker) keepsNames() bool {
	for _, t := range b.topics {
		if t != nil && t.name != nil && t.name.set {
			return true
		}
	}
	return b.liveSessions() > 0
}
