package broker

import (
	"github.com/baton-ipc/baton/broker/pages"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// opTopicRead makes the session a reader: from now on senders wake it, and with
// a group it is promised what it has not seen.
func (b *Broker) opTopicRead(s *session, r *protocol.TopicRead) (any, []*sys.FD, error) {
	t, m, err := b.findTopic(s, r.TopicRef)
	if err != nil {
		return nil, nil, err
	}
	if r.Reader > protocol.MaxSafeInt {
		return nil, nil, protocol.Errorf(protocol.CodeInvalid, "use a number that JSON can hold", "a reader of %s is to have number %d", t, r.Reader)
	}
	if have := m.readers[r.Reader]; have != nil { // asked again, because the answer was lost
		if (have.group != nil) == (r.Group != nil) {
			return b.readerReply(t, have)
		}
		b.leaveReader(t, s, m, have) // the group was taken back with the answer
	}
	g, err := b.groupFor(t, r.Group)
	if err != nil {
		return nil, nil, err
	}
	rd := &reader{number: r.Reader}
	for rd.number == 0 || m.readers[rd.number] != nil {
		rd.number = b.store.Record.NextSerial()
	}
	if g != nil {
		if err := b.enter(g, rd, s); err != nil {
			return nil, nil, err
		}
	}
	if rd.join, err = b.putJoin(s, t, rd); err != nil {
		if g != nil {
			b.exit(rd)
			b.changed(t)
		}
		return nil, nil, err
	}
	m.readers[rd.number] = rd
	b.setWaiter(t, s.Slot, true)
	b.changed(t)
	crashpoint.At("broker-reader-listed")
	reply, fds, err := b.readerReply(t, rd)
	if err != nil {
		b.leaveReader(t, s, m, rd)
		b.changed(t)
	}
	return reply, fds, err
}

// readerReply tells a reader what it needs to begin.
func (b *Broker) readerReply(t *topic, rd *reader) (any, []*sys.FD, error) {
	reply := protocol.TopicReadReply{Reader: rd.number, Member: rd.member, Peers: b.peers(t)}
	if rd.group == nil {
		return reply, nil, nil
	}
	reply.Group = &rd.group.number
	fds, err := pages.Descriptors(rd.group.file.FD.Dup)
	if err != nil {
		return nil, nil, err
	}
	return reply, fds, nil
}

// setWaiter marks a session as one to ring, or not.
func (b *Broker) setWaiter(t *topic, slot uint32, on bool) {
	b.store.Record.Topic(t.index).SetWaiter(slot, on)
}

// opTopicPeers tells who takes part in a topic.
func (b *Broker) opTopicPeers(s *session, r *protocol.TopicRef) (any, []*sys.FD, error) {
	t, _, err := b.findTopic(s, *r)
	if err != nil {
		return nil, nil, err
	}
	return b.peers(t), nil, nil
}

func (b *Broker) peers(t *topic) protocol.Peers {
	p := protocol.Peers{Version: b.version(t), Closed: t.closed, LastLeft: t.lastLeft, Gone: t.gone}
	for n := range uint32(protocol.MaxLanes) {
		if l := t.lanes[n]; l != nil {
			p.Lanes = append(p.Lanes, protocol.LaneInfo{Lane: n, Slot: l.pages.Slot, Serial: l.pages.Serial,
				Offset: l.offset, State: l.state, Sender: l.pages.Name, Incarnation: l.incarnation})
		}
	}
	for s, m := range t.members {
		if len(m.readers) > 0 {
			p.Waiters = append(p.Waiters, protocol.Waiter{Slot: s.Slot, Serial: s.Serial})
			p.Members++
		}
	}
	if t.mirrored {
		p.Waiters = append(p.Waiters, protocol.Waiter{Slot: protocol.BrokerSlot, Serial: b.store.Own.Serial})
	}
	for _, g := range t.groups {
		if g != nil {
			p.Groups = append(p.Groups, protocol.GroupInfo{Group: g.number, ID: g.id})
		}
	}
	return p
}

// opTopicLeave ends one role of a session in a topic.
func (b *Broker) opTopicLeave(s *session, r *protocol.TopicLeave) (any, []*sys.FD, error) {
	t, m, err := b.findTopic(s, r.TopicRef)
	if err != nil {
		return nil, nil, err
	}
	none := protocol.Errorf(protocol.CodeNotFound, "leave once what was joined once", "this session has no such role (%s) in %s", r.Role, t)
	switch r.Role {
	case protocol.RoleNameWrite:
		l := t.liveLane(s.Pages)
		if l == nil {
			return nil, nil, none
		}
		budget := b.adoptable(s.Pages)
		b.adopt(l, &budget)
	case protocol.RoleNameRead:
		rd := m.readers[r.Reader]
		if rd == nil {
			return nil, nil, none
		}
		b.leaveReader(t, s, m, rd)
	case protocol.RoleNameOpen:
		if len(m.opens) == 0 {
			return nil, nil, none
		}
		b.dropJoin(m.opens[len(m.opens)-1])
		m.opens = m.opens[:len(m.opens)-1]
	default:
		return nil, nil, protocol.Errorf(protocol.CodeInvalid, "use write, read or open", "unknown role %q", r.Role)
	}
	if r.Role != protocol.RoleNameOpen {
		t.lastLeft = s.Name
		b.changed(t)
	}
	b.leaveIfDone(t, s, m)
	return done{}, nil, nil
}

// leaveReader ends one reader. The caller calls changed.
func (b *Broker) leaveReader(t *topic, s *session, m *member, rd *reader) {
	delete(m.readers, rd.number)
	if len(m.readers) == 0 {
		b.setWaiter(t, s.Slot, false)
	}
	if rd.group != nil {
		b.exit(rd)
	}
	b.dropJoin(rd.join)
}

// leaveIfDone takes a session without any role out of a topic.
func (b *Broker) leaveIfDone(t *topic, s *session, m *member) {
	if !m.empty(t, s) {
		return
	}
	delete(t.members, s)
	delete(s.topics, t)
	b.leftAlone(t)
}
