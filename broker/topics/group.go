package topics

import (
	"maps"
	"slices"

	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// group is a set of readers that share the work of a lossless topic, or a
// single reader that must lose nothing.
type group struct {
	topic   *Topic
	number  uint32
	id      uint64
	name    string // "" when alone
	alone   bool
	file    sessionfiles.File
	members map[uint16]*reader
	owners  map[uint16]*Party
	next    uint16 // last member number given out
	// left are members that are no more and whose processes live: what they have claimed stays
	// theirs as long as their refcounts count it.
	left map[uint16]leftMember
}

// reset makes a lane's area ready: nothing is claimed, and messages are promised from start.
// The error errUsedUp means that no lane may have this number any more.
func (g *group) reset(t *Topic, lane uint32, start uint64) error {
	if !g.file.Region.Valid() {
		return sessionfiles.Awaited("claims of a group of " + t.String())
	}
	area := protocol.GroupAreaBytes(t.slots)
	if err := g.file.FD.Reserve(int64(protocol.GroupAreas+uint64(lane)*area), int64(area)); err != nil {
		return sessionfiles.NoMemory(err, "a group's claims")
	}
	a, err := shm.NewGroupLane(g.file.Region, lane, t.slots)
	if err != nil {
		return err
	}
	if !a.Reset(start) {
		return errUsedUp
	}
	return nil
}

// errUsedUp says that the numbers of an area are used up, which takes centuries, or a
// member or writer that breaks the protocol.
var errUsedUp = protocol.Errorf(protocol.CodeTooMany, "end the group or the topic", "a group has no more numbers for a lane's claims")

// leaveLane notes in every group's area of a lane how far the lane came, so that the
// claims of the lane that gets its number begin beyond.
func (t *Topic) leaveLane(l *Lane) {
	for _, g := range t.groups {
		if g == nil {
			continue
		}
		if a, ok := g.area(l.Number); ok {
			a.Leave(l.View.Head())
		}
	}
}

// holder is the holder that the group counts for: the maker of its topic, or the first reader
// of a group that readers made.
func (g *group) holder() record.Holder {
	if g.topic.isQueue() || len(g.owners) == 0 {
		return g.topic.holder
	}
	return g.owners[slices.Min(slices.Collect(maps.Keys(g.owners)))].Holder
}

// area views a lane's claims; false while the file is not there.
func (g *group) area(lane uint32) (shm.GroupLane, bool) {
	if !g.file.Region.Valid() {
		return shm.GroupLane{}, false
	}
	a, err := shm.NewGroupLane(g.file.Region, lane, g.topic.slots)
	return a, err == nil
}

// makeGroup makes a group and lists it. What it is promised begins after each
// lane's head: first all sessions can see the group, then the heads are read, so
// that a sender either sees it or its message is before the start.
func (ts *Topics) makeGroup(s *Party, t *Topic, name string, alone bool) (*group, error) {
	number := slices.Index(t.groups[:], nil)
	if number < 0 {
		return nil, protocol.Errorf(protocol.CodeTooMany, "share a named group, or use a topic that overwrites",
			"%s has %d groups (readers that lose nothing) already", t, protocol.MaxGroups)
	}
	if err := ts.store.Allow(s.Holder, 0, 1); err != nil {
		return nil, err
	}
	if err := ts.store.ReserveWaits(t.index, uint32(number)+1); err != nil {
		return nil, err
	}
	ts.waits(t).Group(uint32(number)).Clear()
	g := &group{topic: t, number: uint32(number), id: ts.store.Record.NextSerial(), name: name, alone: alone,
		members: map[uint16]*reader{}, owners: map[uint16]*Party{}}
	var err error
	g.file, err = ts.store.NewFile(protocol.RoleGroup, protocol.RestoreGroup, g.id, g.number, protocol.GroupBytes(t.slots))
	if err != nil {
		return nil, err
	}
	for n := range t.lanes {
		if err := g.reset(t, n, protocol.NoStart); err != nil {
			g.file.Close()
			ts.store.Over(sessionfiles.Key{Role: protocol.RestoreGroup, Serial: g.id})
			return nil, err
		}
	}
	t.groups[number] = g
	ts.groups++
	ts.putGroup(g)
	ts.store.Record.Topic(t.index).RaiseReadersVersion()
	crashpoint.At("broker-group-listed")
	// SYNC topic-version: pairs with a sender's fence between its publish and its
	// look at the version.
	shm.Fence()
	for n, l := range t.lanes {
		if a, ok := g.area(n); ok && l.File.There() {
			a.SetStart(l.nextNumber())
		}
	}
	return g, nil
}

func (ts *Topics) putGroup(g *group) {
	flags := uint32(0)
	if g.topic.redeliver {
		flags |= protocol.GroupAcknowledged
	}
	ts.store.Record.Topic(g.topic.index).Group(g.number).Store(record.Group{
		ID: g.id, Members: uint32(len(g.members)), Flags: flags, Name: g.name, File: g.file.Inode})
	ts.setUsedGroups(g.topic)
}

func (ts *Topics) setUsedGroups(t *Topic) {
	n := len(t.groups)
	for n > 0 && t.groups[n-1] == nil {
		n--
	}
	ts.store.Record.Topic(t.index).SetUsedGroups(uint32(n))
}

// dropGroup ends a group. Senders wait for it no longer once they see the version that the
// caller stores by calling changed.
func (ts *Topics) dropGroup(g *group) {
	ts.store.Record.Topic(g.topic.index).Group(g.number).Free()
	g.topic.groups[g.number] = nil
	ts.forgetLeft(g)
	ts.groups--
	ts.setUsedGroups(g.topic)
	g.file.Close()
	ts.store.Over(sessionfiles.Key{Role: protocol.RestoreGroup, Serial: g.id})
}

// enter makes a reader a member.
func (ts *Topics) enter(g *group, r *reader, s *Party) error {
	if !g.file.Region.Valid() {
		return sessionfiles.Awaited("claims of a group of " + g.topic.String())
	}
	if len(g.members)+len(g.left) >= protocol.MaxMembers {
		return protocol.Errorf(protocol.CodeTooMany, "use several groups or queues", "a group of %s has %d members already", g.topic, protocol.MaxMembers)
	}
	// The next number in turn: a number is reused as late as possible, so that the claim of
	// a member that left is not taken for that of another.
	for g.topic.function == nil {
		g.next = g.next%protocol.MaxMembers + 1 // 0 is no member
		if g.members[g.next] == nil && !g.hasLeft(g.next) {
			break
		}
	}
	r.group, r.member = g, g.next
	if g.topic.function != nil {
		// By the slot a caller knows whose process has its call.
		r.member = uint16(s.Slot)
		if g.members[r.member] != nil || g.hasLeft(r.member) {
			r.group = nil
			return protocol.Errorf(protocol.CodeConflict, "register it once, with the concurrency that is wanted",
				"session %d provides %s already", s.Serial, g.topic)
		}
	}
	g.members[r.member], g.owners[r.member] = r, s
	ts.store.Record.Topic(g.topic.index).Group(g.number).SetMembers(uint32(len(g.members)))
	return nil
}

// exit frees what a member had claimed, for the others to take, and ends the
// group with its last member. A queue's group stays with the queue. The join of one whose
// process may hold what it claimed stays until that is free: the next broker knows by it whose that is.
//
// SYNC claim: what the dead had claimed becomes free, the hint falls to it and
// its version rises.
func (ts *Topics) exit(r *reader) (keepsJoin bool) {
	g := r.group
	if g.topic.function != nil {
		ts.endProvider(g.topic, r)
	}
	if s := g.owners[r.member]; s != nil && s.LivesOn && g.topic.redeliver && !g.topic.deleted {
		ts.store.Record.Join(r.join).MarkLeft()
		crashpoint.At("broker-left-marked")
		ts.noteLeft(g, r.member, leftMember{file: s.SessionFile, join: r.join, holder: s.Holder, joined: true})
		keepsJoin = true
	}
	ts.release(g, func(m uint16) bool { return m == r.member })
	delete(g.members, r.member)
	delete(g.owners, r.member)
	ts.store.Record.Topic(g.topic.index).Group(g.number).SetMembers(uint32(len(g.members)))
	if len(g.members) == 0 && !g.topic.isQueue() {
		ts.dropGroup(g)
		return keepsJoin
	}
	ts.remakeIfLeft(g)
	return keepsJoin
}

// FreeStrays frees, in all groups, claims of sessions that are no members any more.
func (ts *Topics) FreeStrays() {
	for g := range ts.allGroups() {
		if ts.freeStrays(g) {
			ts.ring(g.topic, g.topic.awaitsClaims)
		}
	}
}

// awaitsClaims tells whether a member of a topic may wait for claims to change: a taker, or a caller
// of a function.
func (t *Topic) awaitsClaims(m *member) bool { return t.function != nil || len(m.readers) > 0 }

// freeStrays frees claims of sessions that are no members any more. Such claims were made while
// no broker ran or had the claims, or between the end of a session by `stop` and the moment in
// which its living process was notified. What a process may still hold is looked at again, as of a
// member that has left. It tells whether any was freed.
func (ts *Topics) freeStrays(g *group) (any bool) {
	any = ts.release(g, func(m uint16) bool { return g.members[m] == nil })
	if g.topic.redeliver && !g.topic.deleted && g.topic.function == nil {
		for m := range ts.claimants(g) {
			if g.members[m] == nil && !g.hasLeft(m) {
				ts.noteLeft(g, m, leftMember{})
			}
		}
	}
	return any
}

// release frees the claims of members that are over, so that other members may take the items,
// and tells whether there were any. The caller makes the members look again. In a deleted topic
// no other member may take them: they are marked done, whether a process still holds them or
// not.
func (ts *Topics) release(g *group, over func(member uint16) bool) (any bool) {
	if !g.topic.redeliver {
		return false
	}
	for n, l := range g.topic.lanes {
		a, ok := g.area(n)
		if !ok {
			continue
		}
		if g.topic.function != nil { // which is removed, and never deleted
			any = ts.releaseCalls(g, l, a, over) || any
			continue
		}
		if g.topic.deleted {
			a.Finish(func(_ uint64, m uint16) bool { return over(m) })
			continue
		}
		freed := a.Release(func(i uint64, m uint16) bool { // MODEL group:free-claims
			return over(m) && !ts.stillHeld(g, l, i, m)
		})
		if freed > 0 {
			ts.freed += uint64(freed)
			shm.Fence()
			ts.waits(g.topic).Active().Mark(n) // whose sender may be silent
			any = true
		}
	}
	return any
}

// groupFor finds or makes the group that a reader asks for; nil for one that only
// looks on.
func (ts *Topics) groupFor(s *Party, t *Topic, name *string) (*group, error) {
	switch {
	case name == nil:
		return nil, nil
	case !t.lossless:
		return nil, protocol.Errorf(protocol.CodeInvalid, "make the topic lossless, so that it does not overwrite, or read it without a group",
			"%s overwrites, so it can promise nothing to a group", t)
	case t.isQueue():
		if *name != "" && *name != t.groupName() {
			return nil, protocol.Errorf(protocol.CodeInvalid, "use a lossless topic for several groups", "%s has the one group %s", t, t.groupName())
		}
		return t.groups[0], nil
	case *name == "":
		return ts.makeGroup(s, t, "", true)
	}
	if len(*name) >= protocol.GroupNameBytes {
		return nil, protocol.Errorf(protocol.CodeInvalid, "use a shorter one", "group name of %d bytes is longer than %d", len(*name), protocol.GroupNameBytes-1)
	}
	if err := protocol.CheckName(*name); err != nil {
		return nil, err
	}
	for _, g := range t.groups {
		if g != nil && !g.alone && g.name == *name {
			return g, nil
		}
	}
	return ts.makeGroup(s, t, *name, false)
}

// GroupFile hands out a group's file, so that a sender can see what is
// done.
func (ts *Topics) GroupFile(s *Party, r *protocol.TopicGroupFile) ([]*sys.FD, error) {
	t, _, err := ts.findTopic(s, r.TopicRef)
	if err != nil {
		return nil, err
	}
	if r.Group >= protocol.MaxGroups || t.groups[r.Group] == nil {
		return nil, protocol.Errorf(protocol.CodeNotFound, "look at the topic's members again", "%s has no group %d", t, r.Group)
	}
	if !t.groups[r.Group].file.Region.Valid() {
		return nil, sessionfiles.Awaited("claims of a group of " + t.String())
	}
	return sessionfiles.Descriptors(t.groups[r.Group].file.FD.Dup)
}
