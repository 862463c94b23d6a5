package topics

import (
	"encoding/hex"
	"time"

	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Restore finds out from the record what a previous broker had: topics with their
// groups and lanes, and the joins of each session. The parties of its sessions are
// open, and the files of ended sessions are known.
func (ts *Topics) Restore(fetch sessionfiles.Fetch) {
	ts.restoreTopics(fetch)
	ts.restoreJoins()
}

func (ts *Topics) restoreTopics(fetch sessionfiles.Fetch) {
	for i := range ts.store.Record.UsedTopics() {
		if ts.store.Record.Topic(i).ID() == 0 {
			ts.store.GiveBack(record.TopicPlace(i)) // looking has touched it
			continue
		}
		holder := ts.store.Record.Topic(i).Load().Holder
		ts.topicTable.Claim(i, holder)
		if t := ts.readTopic(i); t != nil {
			ts.enlist(t)
			ts.restoreGroups(t, fetch)
			ts.restoreLanes(t)
			if t.kind == protocol.TopicKindName && t.name.lane == nil {
				ts.removeTopic(t)
			}
		} else {
			ts.store.Record.Topic(i).Free()
			ts.topicTable.Give(i, holder)
		}
	}
}

// readTopic reads a topic's record; nil when it makes no sense.
func (ts *Topics) readTopic(i uint32) *Topic {
	r := ts.store.Record.Topic(i).Load()
	t := &Topic{
		index: i, id: r.ID, kind: r.Kind, key: topicKey{r.Namespace, r.Name, spaceOf(r.Kind)},
		lossless: r.Flags&protocol.TopicLossless != 0, redeliver: r.Flags&protocol.TopicRedeliver != 0,
		depth: r.Depth, description: r.Description, linger: time.Duration(min(r.Linger, 1<<62)), creator: r.Creator,
		holder: r.Holder, made: record.Formerly(r.MadeAt), gone: r.Gone, goneBytes: r.GoneBytes, closed: r.State == protocol.TopicClosed,
		lanes: map[uint32]*Lane{}, members: map[*Party]*member{},
	}
	t.slots, t.stride = protocol.Slots(t.depth), protocol.Stride(t.description)
	if t.check() != nil || kindName(t.kind) == "unknown" ||
		t.slots != r.Slots || t.stride != r.Stride {
		return nil
	}
	if t.kind == protocol.TopicKindName {
		t.name = &name{setter: t.creator}
		if r.Setter != 0 {
			t.name.setter = whoIs(r.Creator, int(r.Setter))
			if ts.store.Record.Boot() == sys.BootID() {
				t.name.setterPID = int(r.Setter)
			}
		}
	}
	if t.kind == protocol.TopicKindFunction && !ts.readFunction(t) {
		return nil
	}
	if r.Flags&protocol.TopicPrivate != 0 {
		t.token = hex.EncodeToString(r.Token[:])
		if r.Flags&protocol.TopicDeleted != 0 {
			t.wasDeleted()
			ts.draining[t] = struct{}{}
		}
	}
	return t
}

func (ts *Topics) restoreGroups(t *Topic, fetch sessionfiles.Fetch) {
	for n := range uint32(protocol.MaxGroups) {
		r := ts.store.Record.Topic(t.index).Group(n).Load()
		if r.ID == 0 {
			continue
		}
		g := &group{topic: t, number: n, id: r.ID, name: r.Name, members: map[uint16]*reader{}, owners: map[uint16]*Party{}}
		g.file = ts.store.FetchFile(fetch, sessionfiles.Key{Role: protocol.RestoreGroup, Serial: r.ID}, protocol.RoleGroup, protocol.GroupBytes(t.slots))
		t.groups[n] = g
		ts.groups++
	}
}

func (ts *Topics) restoreLanes(t *Topic) {
	for n := range ts.store.Record.Topic(t.index).UsedLanes() {
		view := ts.store.Record.Topic(t.index).Lane(n)
		if view.Serial() == 0 {
			continue
		}
		r := view.Load()
		l := &Lane{Topic: t, Number: n, File: ts.store.BySerial(r.Serial), offset: r.Offset, state: r.State, incarnation: r.Incarnation}
		// Without an incarnation its place may be another lane's already.
		if l.incarnation == 0 || l.File == nil || l.state == protocol.LaneClosed || ts.viewLane(l) != nil {
			view.Free()
			continue
		}
		if l.state == protocol.LaneLive && l.File.Dead {
			ts.setLaneState(l, protocol.LaneAdopted)
		}
		t.lanes[n] = l
		ts.listLane(l)
		if l.state == protocol.LaneAdopted {
			l.kept = map[uint64][]uint32{}
			ts.adopted[t]++
		}
		if t.name != nil {
			t.name.lane = l
			ts.nameRoom.Claim(uint32((l.offset-protocol.SessionLanes)/nameLane), record.Holder{})
		}
	}
}

// viewLane makes the view of a lane whose place was written by a broker.
func (ts *Topics) viewLane(l *Lane) error {
	if l.offset < protocol.SessionLanes || l.Topic.name != nil && l.File != ts.store.Own {
		return protocol.Errorf(protocol.CodeProtocol, "report this with the broker's log, see docs/support.md", "a lane at %d of %s", l.offset, l.Topic)
	}
	view, err := shm.NewLane(ts.store.Region(l.File), l.offset, l.Topic.slots, l.Topic.stride)
	l.View = view
	return err
}

// restoreJoins finds out what each session has open and as which member it reads.
func (ts *Topics) restoreJoins() {
	for i := range ts.store.Record.UsedJoins() {
		j := ts.store.Record.Join(i).Load()
		if j.Session == 0 {
			continue
		}
		s := ts.parties[ts.store.BySerial(j.Session)]
		of := record.Holder{}
		if s != nil {
			of = s.Holder
		}
		ts.joins.Claim(i, of)
		if s == nil || j.Topic >= protocol.MaxTopics || ts.topics[j.Topic] == nil || ts.topics[j.Topic].id != j.TopicID {
			ts.dropJoin(i, of)
			continue
		}
		t := ts.topics[j.Topic]
		if j.Left {
			ts.restoreLeft(t, j, leftMember{file: s.SessionFile, join: i, holder: of, joined: true})
			continue
		}
		m := t.members[s]
		if m == nil {
			m = newMember()
			t.members[s], s.topics[t] = m, m
		}
		if j.Former && t.closed {
			t.addCloser(i)
		}
		if !j.Reader {
			ts.addOpening(s, t, m, j.Number, i)
			continue
		}
		rd := &reader{number: j.Number, join: i, calls: j.Concurrency}
		if n, id := j.Group, j.Member; n > 0 && n <= protocol.MaxGroups && id > 0 {
			if g := t.groups[n-1]; g != nil && g.members[id] == nil {
				rd.group, rd.member = g, id
				g.members[id], g.owners[id] = rd, s
				g.next = max(g.next, id)
				ts.takeBackProvider(t, rd, s)
				g.alone = j.Alone
			}
		}
		m.readers[j.Number] = rd
	}
	ts.restoreMembers()
}

// restoreLeft finds out whose what a member claimed is that is no more.
func (ts *Topics) restoreLeft(t *Topic, j record.Join, l leftMember) {
	if n, id := j.Group, j.Member; n > 0 && n <= protocol.MaxGroups && id > 0 {
		if g := t.groups[n-1]; g != nil && g.members[id] == nil && !g.hasLeft(id) {
			g.next = max(g.next, id)
			ts.noteLeft(g, id, l)
			return
		}
	}
	ts.overLeft(l)
}

// restoreMembers completes what the joins say: writers, waiters, groups without a
// member.
func (ts *Topics) restoreMembers() {
	for _, t := range ts.used() {
		if t == nil {
			continue
		}
		for _, l := range t.lanes {
			s := ts.parties[l.File]
			if l.state == protocol.LaneLive && s != nil && t.members[s] == nil {
				m := newMember()
				t.members[s], s.topics[t] = m, m
			}
		}
		ts.store.Record.Topic(t.index).ClearReaders()
		for s, m := range t.members {
			if len(m.readers) > 0 {
				ts.store.Record.Topic(t.index).SetReader(s.Slot, true)
			}
		}
		for _, g := range t.groups {
			if g == nil {
				continue
			}
			if len(g.members) == 0 && !t.isQueue() {
				ts.dropGroup(g)
				continue
			}
			ts.putGroup(g)
			ts.freeStrays(g)
		}
		if t.function != nil {
			ts.putProviders(t)
		}
	}
}
