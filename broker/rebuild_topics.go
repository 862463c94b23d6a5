package broker

import (
	"encoding/hex"
	"time"

	"github.com/baton-ipc/baton/broker/pages"
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

func (b *Broker) rebuildTopics(fetch pages.Fetch) {
	for i := range b.store.Record.UsedTopics() {
		if b.store.Record.Topic(i).ID() == 0 {
			continue
		}
		b.topicTable.Claim(i)
		if t := b.readTopic(i); t != nil {
			b.enlist(t)
			b.rebuildGroups(t, fetch)
			b.rebuildLanes(t)
			if t.kind == protocol.TopicKindName && t.name.lane == nil {
				b.removeTopic(t)
			}
		} else {
			b.store.Record.Topic(i).Free()
			b.topicTable.Give(i)
		}
	}
}

// readTopic reads a topic's record; nil when it makes no sense.
func (b *Broker) readTopic(i uint32) *topic {
	r := b.store.Record.Topic(i).Load()
	t := &topic{
		index: i, id: r.ID, kind: r.Kind, key: topicKey{r.Namespace, r.Name, false},
		lossless: r.Flags&protocol.TopicLossless != 0, redeliver: r.Flags&protocol.TopicRedeliver != 0,
		depth: r.Depth, description: r.Description, linger: time.Duration(min(r.Linger, 1<<62)), creator: r.Creator,
		made: record.Formerly(r.MadeAt), closed: r.State == protocol.TopicClosed,
		lanes: map[uint32]*lane{}, members: map[*session]*member{},
	}
	t.slots, t.stride = protocol.Slots(t.depth), protocol.Stride(t.description)
	if t.check() != nil || kindName(t.kind) == "unknown" ||
		t.slots != r.Slots || t.stride != r.Stride {
		return nil
	}
	if t.kind == protocol.TopicKindName {
		t.key.isName = true
		t.name = &name{setter: t.creator}
	}
	if r.Flags&protocol.TopicPrivate != 0 {
		t.token = hex.EncodeToString(r.Token[:])
	}
	return t
}

func (b *Broker) rebuildGroups(t *topic, fetch pages.Fetch) {
	for n := range uint32(protocol.MaxGroups) {
		r := b.store.Record.Topic(t.index).Group(n).Load()
		if r.ID == 0 {
			continue
		}
		g := &group{topic: t, number: n, id: r.ID, name: r.Name, members: map[uint8]*reader{}, owners: map[uint8]*session{}}
		g.file = b.store.FetchFile(fetch, pages.Key{Role: protocol.RestoreGroup, Serial: r.ID}, protocol.RoleGroup, protocol.GroupBytes(t.slots))
		t.groups[n] = g
	}
}

func (b *Broker) rebuildLanes(t *topic) {
	for n := range uint32(protocol.MaxLanes) {
		view := b.store.Record.Topic(t.index).Lane(n)
		if view.Serial() == 0 {
			continue
		}
		r := view.Load()
		l := &lane{topic: t, number: n, pages: b.store.BySerial(r.Serial), offset: r.Offset, state: r.State, incarnation: r.Incarnation}
		// Without an incarnation its place may be another lane's already.
		if l.incarnation == 0 || l.pages == nil || l.state == protocol.LaneClosed || b.viewLane(l) != nil {
			view.Free()
			continue
		}
		if l.state == protocol.LaneLive && l.pages.Dead {
			b.setLaneState(l, protocol.LaneAdopted)
		}
		t.lanes[n] = l
		b.listLane(l)
		t.nextLane = (n + 1) % protocol.MaxLanes
		if l.state == protocol.LaneAdopted {
			l.kept = map[uint64][]uint32{}
			b.adopted[t]++
		}
		if t.name != nil {
			t.name.lane = l
			b.nameRoom.Claim(uint32((l.offset - protocol.SessionLanes) / nameLane))
		}
	}
	b.store.Record.Topic(t.index).SetLaneCount(uint32(len(t.lanes)))
}

// viewLane makes the view of a lane whose place was written by a broker.
func (b *Broker) viewLane(l *lane) error {
	if l.offset < protocol.SessionLanes || l.topic.name != nil && l.pages != b.store.Own {
		return protocol.Errorf(protocol.CodeProtocol, "report this", "a lane at %d of %s", l.offset, l.topic)
	}
	view, err := shm.NewLane(b.store.Region(l.pages), l.offset, l.topic.slots, l.topic.stride)
	l.view = view
	return err
}

// rebuildJoins finds out who has what open and reads it as which member.
func (b *Broker) rebuildJoins() {
	for i := range b.store.Record.UsedJoins() {
		j := b.store.Record.Join(i).Load()
		if j.Session == 0 {
			continue
		}
		b.joins.Claim(i)
		var s *session
		if p := b.store.BySerial(j.Session); p != nil && p != b.store.Own {
			if s = b.slots[p.Slot]; s != nil && s.Pages != p {
				s = nil
			}
		}
		if s == nil || j.Topic >= protocol.MaxTopics || b.topics[j.Topic] == nil || b.topics[j.Topic].id != j.TopicID {
			b.dropJoin(i)
			continue
		}
		t := b.topics[j.Topic]
		m := t.members[s]
		if m == nil {
			m = &member{readers: map[uint64]*reader{}}
			t.members[s], s.topics[t] = m, m
		}
		if j.Reader == 0 {
			m.opens = append(m.opens, i)
			continue
		}
		rd := &reader{number: j.Reader, join: i}
		if n, id := j.Group, j.Member; n > 0 && n <= protocol.MaxGroups && id > 0 {
			if g := t.groups[n-1]; g != nil && g.members[id] == nil {
				rd.group, rd.member = g, id
				g.members[id], g.owners[id] = rd, s
				g.next = max(g.next, id)
				g.alone = j.Alone
			}
		}
		m.readers[j.Reader] = rd
	}
	b.rebuildMembers()
}

// rebuildMembers completes what the joins say: writers, waiters, groups that
// nobody is in any more.
func (b *Broker) rebuildMembers() {
	for _, t := range b.topics {
		if t == nil {
			continue
		}
		for _, l := range t.lanes {
			s := b.slots[l.pages.Slot]
			if l.state == protocol.LaneLive && s != nil && s.Pages == l.pages && t.members[s] == nil {
				m := &member{readers: map[uint64]*reader{}}
				t.members[s], s.topics[t] = m, m
			}
		}
		b.store.Record.Topic(t.index).ClearWaiters()
		for s, m := range t.members {
			if len(m.readers) > 0 {
				b.setWaiter(t, s.Slot, true)
			}
		}
		for _, g := range t.groups {
			if g == nil {
				continue
			}
			if len(g.members) == 0 && t.kind != protocol.TopicKindQueue {
				b.dropGroup(g)
				continue
			}
			b.putGroup(g)
		}
	}
}

func (b *Broker) rebuildLeases(sameBoot bool) {
	for i := range b.store.Record.UsedLeases() {
		r := b.store.Record.Lease(i).Load()
		if r.ID == 0 {
			continue
		}
		if !sameBoot || !b.memory.Known(r.Ref) {
			b.store.Record.Lease(i).Free()
			continue
		}
		b.leaseTable.Claim(i)
		l := b.leases[r.ID]
		if l == nil {
			l = b.readLease(i, r)
			b.leases[r.ID] = l
		}
		l.refs = append(l.refs, r.Ref)
		l.records = append(l.records, i)
	}
	for _, l := range b.leases {
		if l.expires != 0 {
			left := time.Duration(l.expires - min(l.expires, sys.Monotonic()))
			l.alarm = b.clock.After(left, func() { b.endLease(l) })
		}
	}
}

func (b *Broker) readLease(i uint32, r record.Lease) *lease {
	l := &lease{id: r.ID, expires: r.Expires, maker: "an ended session", once: r.Once}
	for _, s := range b.slots {
		if s != nil && s.Serial == r.Session {
			l.session, l.maker = s, s.Name
			s.leases[l] = struct{}{}
			return l
		}
	}
	// Of a session that is over only what has a time is left.
	l.session = newSession(&pages.Pages{Serial: r.Session})
	if l.expires == 0 {
		l.expires = sys.Monotonic() + uint64(afterSession)
		b.store.Record.Lease(i).SetExpires(l.expires)
	}
	return l
}
