package broker

import (
	"encoding/hex"
	"time"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

func (b *Broker) rebuildTopics(fetch func(fileKey) *sys.FD) {
	for i := range min(b.file.Load32(topicsUsed), protocol.MaxTopics) {
		if b.file.Load64(topicAt(i)+protocol.TopicID) == 0 {
			continue
		}
		b.topicTable.claim(i)
		if t := b.readTopic(i); t != nil {
			b.enlist(t)
			b.rebuildGroups(t, fetch)
			b.rebuildLanes(t)
			if t.kind == protocol.TopicKindName && t.name.lane == nil {
				b.removeTopic(t)
			}
		} else {
			b.file.Store64(topicAt(i)+protocol.TopicID, 0)
			b.topicTable.give(i)
		}
	}
}

// readTopic reads a topic's record; nil when it makes no sense.
func (b *Broker) readTopic(i uint32) *topic {
	at, r := topicAt(i), b.file
	flags := r.Load32(at + protocol.TopicFlags)
	t := &topic{
		index: i, id: r.Load64(at + protocol.TopicID), kind: r.Load32(at + protocol.TopicKind),
		key:      topicKey{b.text(at+protocol.TopicNamespace, 64), b.text(at+protocol.TopicName, protocol.TopicNameBytes), false},
		lossless: flags&protocol.TopicLossless != 0, redeliver: flags&protocol.TopicRedeliver != 0,
		depth: r.Load32(at + protocol.TopicDepth), description: r.Load32(at + topicDescription),
		linger: time.Duration(min(r.Load64(at+protocol.TopicLinger), 1<<62)), creator: b.text(at+protocol.TopicCreator, 64),
		made:   formerly(r.Load64(at + protocol.TopicMadeAt)),
		closed: r.Load32(at+protocol.TopicState) == protocol.TopicClosed,
		lanes:  map[uint32]*lane{}, members: map[*session]*member{},
	}
	t.slots, t.stride = protocol.Slots(t.depth), protocol.Stride(t.description)
	if t.check() != nil || kindName(t.kind) == "unknown" ||
		t.slots != r.Load32(at+protocol.TopicSlots) || t.stride != r.Load32(at+protocol.TopicStride) {
		return nil
	}
	if t.kind == protocol.TopicKindName {
		t.key.isName = true
		t.name = &name{setter: t.creator}
	}
	if flags&protocol.TopicPrivate != 0 {
		t.token = hex.EncodeToString(r.Bytes(at+protocol.TopicToken, 16))
	}
	return t
}

func (b *Broker) rebuildGroups(t *topic, fetch func(fileKey) *sys.FD) {
	for n := range uint32(protocol.MaxGroups) {
		at := groupAt(t.index, n)
		id := b.file.Load64(at + protocol.GroupID)
		if id == 0 {
			continue
		}
		g := &group{topic: t, number: n, id: id, name: b.text(at+protocol.GroupName, protocol.GroupNameBytes),
			members: map[uint8]*reader{}, owners: map[uint8]*session{}}
		g.file = b.fetchFile(fetch, fileKey{protocol.RestoreGroup, id}, protocol.RoleGroup, protocol.GroupBytes(t.slots))
		t.groups[n] = g
	}
}

func (b *Broker) rebuildLanes(t *topic) {
	for n := range uint32(protocol.MaxLanes) {
		at := laneAt(t.index, n)
		serial := b.file.Load64(at + protocol.LaneRecordSerial)
		if serial == 0 {
			continue
		}
		l := &lane{topic: t, number: n, pages: b.pages[serial], offset: b.file.Load64(at + protocol.LaneRecordOffset),
			state: b.file.Load32(at + protocol.LaneRecordState)}
		if l.pages == nil || l.state == protocol.LaneClosed || b.viewLane(l) != nil {
			b.file.Store64(at+protocol.LaneRecordSerial, 0)
			continue
		}
		if l.state == protocol.LaneLive && l.pages.dead {
			b.setLaneState(l, protocol.LaneAdopted)
		}
		t.lanes[n] = l
		l.pages.lanes[l] = struct{}{}
		t.nextLane = (n + 1) % protocol.MaxLanes
		if l.state == protocol.LaneAdopted {
			l.kept = map[uint64][]uint32{}
			b.adopted[t]++
		}
		if t.name != nil {
			t.name.lane = l
			b.nameRoom.claim(uint32((l.offset - protocol.SessionLanes) / nameLane))
		}
	}
	b.file.Store32(topicAt(t.index)+protocol.TopicLaneCount, uint32(len(t.lanes)))
}

// viewLane makes the view of a lane whose place was written by a broker.
func (b *Broker) viewLane(l *lane) error {
	if l.offset < protocol.SessionLanes || l.topic.name != nil && l.pages != b.own {
		return protocol.Errorf(protocol.CodeProtocol, "report this", "a lane at %d of %s", l.offset, l.topic)
	}
	file := l.pages.session.region
	if !l.pages.there() {
		file = b.blankPages()
	}
	view, err := shm.NewLane(file, l.offset, l.topic.slots, l.topic.stride)
	l.view = view
	return err
}

// rebuildJoins finds out who has what open and reads it as which member.
func (b *Broker) rebuildJoins() {
	for i := range min(b.file.Load32(joinsUsed), maxJoins) {
		at := joinAt(i)
		serial := b.file.Load64(at + joinSession)
		if serial == 0 {
			continue
		}
		b.joins.claim(i)
		tail := b.file.Load64(at + joinWordTail)
		index := uint32(tail)
		var s *session
		if p := b.pages[serial]; p != nil && p != b.own {
			if s = b.slots[p.slot]; s != nil && s.pages != p {
				s = nil
			}
		}
		if s == nil || index >= protocol.MaxTopics || b.topics[index] == nil || b.topics[index].id != b.file.Load64(at+joinTopicID) {
			b.dropJoin(i)
			continue
		}
		t := b.topics[index]
		m := t.members[s]
		if m == nil {
			m = &member{readers: map[uint64]*reader{}}
			t.members[s], s.topics[t] = m, m
		}
		number := b.file.Load64(at + joinReader)
		if number == 0 {
			m.opens = append(m.opens, i)
			continue
		}
		rd := &reader{number: number, join: i}
		if n, id := uint32(tail>>32&0xff), uint8(tail>>40); n > 0 && n <= protocol.MaxGroups && id > 0 {
			if g := t.groups[n-1]; g != nil && g.members[id] == nil {
				rd.group, rd.member = g, id
				g.members[id], g.owners[id] = rd, s
				g.next = max(g.next, id)
				g.alone = tail>>48&joinAlone != 0
			}
		}
		m.readers[number] = rd
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
			s := b.slots[l.pages.slot]
			if l.state == protocol.LaneLive && s != nil && s.pages == l.pages && t.members[s] == nil {
				m := &member{readers: map[uint64]*reader{}}
				t.members[s], s.topics[t] = m, m
			}
		}
		for w := range uint64(protocol.BitmapWords) {
			b.file.Store64(topicAt(t.index)+protocol.TopicWaiters+w*8, 0)
		}
		for s, m := range t.members {
			if len(m.readers) > 0 {
				b.setWaiter(t, s.slot, true)
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
	for i := range min(b.file.Load32(leasesUsed), protocol.MaxLeases) {
		at := leaseAt(i)
		id := b.file.Load64(at + protocol.LeaseID)
		if id == 0 {
			continue
		}
		ref := protocol.Ref{Serial: b.file.Load64(at + protocol.LeaseSerial),
			Generation: b.file.Load64(at + protocol.LeaseGeneration), Index: b.file.Load32(at + protocol.LeaseIndex)}
		if !sameBoot || b.findChunkOf(ref.Index, ref.Serial) == nil {
			b.file.Store64(at+protocol.LeaseID, 0)
			continue
		}
		b.leaseTable.claim(i)
		l := b.leases[id]
		if l == nil {
			l = b.readLease(id, at)
			b.leases[id] = l
		}
		l.refs = append(l.refs, ref)
		l.records = append(l.records, i)
	}
	for _, l := range b.leases {
		if l.expires != 0 {
			left := time.Duration(l.expires - min(l.expires, sys.Monotonic()))
			l.alarm = b.after(left, func() { b.endLease(l) })
		}
	}
}

func (b *Broker) readLease(id, at uint64) *lease {
	l := &lease{id: id, expires: b.file.Load64(at + protocol.LeaseExpires), maker: "an ended session",
		once: b.file.Load32(at+protocol.LeaseFlags)&leaseOnce != 0}
	serial := b.file.Load64(at + protocol.LeaseSession)
	for _, s := range b.slots {
		if s != nil && s.serial == serial {
			l.session, l.maker = s, s.name
			s.leases[l] = struct{}{}
			return l
		}
	}
	// Of a session that is over only what has a time is left.
	l.session = newSession(&pages{serial: serial})
	if l.expires == 0 {
		l.expires = sys.Monotonic() + uint64(afterSession)
		b.file.Store64(at+protocol.LeaseExpires, l.expires)
	}
	return l
}
