package topics

import (
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// Read makes the session a reader. From now on senders wake it, and with a group it is promised
// every message that it has not seen.
func (ts *Topics) Read(s *Party, r *protocol.TopicRead) (reply protocol.TopicReadReply, fds []*sys.FD, err error) {
	t, m, err := ts.findTopic(s, r.TopicRef)
	if err != nil {
		return reply, nil, err
	}
	if r.Reader > protocol.MaxSafeInt {
		return reply, nil, protocol.Errorf(protocol.CodeInvalid, "use a number that JSON can hold", "a reader of %s is to have number %d", t, r.Reader)
	}
	if have := m.readers[r.Reader]; have != nil { // asked again, because the answer was lost
		if (have.group != nil) == (r.Group != nil) && (have.group == nil || have.group.file.Region.Valid()) {
			return ts.readerReply(s, have)
		}
		ts.leaveReader(t, s, m, have) // its group is gone, or no session has the claims: the client asks because it has no group
	}
	g, err := ts.groupFor(s, t, r.Group)
	if err != nil {
		return reply, nil, err
	}
	rd := &reader{number: r.Reader}
	for rd.number == 0 || m.readers[rd.number] != nil {
		rd.number = ts.store.Record.NextSerial()
	}
	if g != nil {
		if err := ts.enter(g, rd, s); err != nil {
			return reply, nil, err
		}
	}
	if rd.join, err = ts.putJoin(s, t, rd.number, rd); err != nil {
		if g != nil {
			ts.exit(rd)
			ts.groupsChanged(t)
		}
		return reply, nil, err
	}
	m.readers[rd.number] = rd
	ts.store.Record.Topic(t.index).SetReader(s.Slot, true)
	ts.readersChanged(t)
	crashpoint.At("broker-reader-listed")
	reply, fds, err = ts.readerReply(s, rd)
	if err != nil {
		ts.leaveReader(t, s, m, rd)
		ts.readersChanged(t)
	}
	return reply, fds, err
}

// readerReply makes the answer to a reader: what it needs to begin.
func (ts *Topics) readerReply(s *Party, rd *reader) (reply protocol.TopicReadReply, fds []*sys.FD, err error) {
	reply = protocol.TopicReadReply{Reader: rd.number, Member: rd.member, Counted: s.ReserveReader(rd.number) == nil}
	if rd.group == nil {
		return reply, nil, nil
	}
	reply.Group, reply.GroupID = &rd.group.number, rd.group.id
	fds, err = sessionfiles.Descriptors(rd.group.file.FD.Dup)
	if err != nil {
		return reply, nil, err
	}
	return reply, fds, nil
}

// LeaveRole ends one role of a session in a topic.
func (ts *Topics) LeaveRole(s *Party, r *protocol.TopicLeave) error {
	of := r.TopicRef
	if r.Role == protocol.RoleNameOpen {
		// Where its answer was lost, the client knows the number of the opening alone.
		if t := s.openings[r.Opening]; t != nil {
			of = protocol.TopicRef{Topic: t.index, ID: t.id}
		}
	}
	t, m, err := ts.findTopic(s, of)
	if err != nil {
		return err
	}
	none := protocol.Errorf(protocol.CodeNotFound, "leave once what was joined once", "this session has no such role (%s) in %s", r.Role, t)
	switch r.Role {
	case protocol.RoleNameWrite:
		l := ts.liveLane(t, s.SessionFile)
		if l == nil || l.offset != r.Offset {
			return none
		}
		budget := ts.adoptable(s.SessionFile)
		ts.adopt(l, &budget)
	case protocol.RoleNameRead:
		rd := m.readers[r.Reader]
		if rd == nil {
			return none
		}
		ts.leaveReader(t, s, m, rd)
	case protocol.RoleNameOpen:
		if _, open := m.opens[r.Opening]; !open {
			return none
		}
		ts.dropOpening(s, m, r.Opening)
	default:
		return protocol.Errorf(protocol.CodeInvalid, "use write, read or open", "unknown role %q", r.Role)
	}
	switch r.Role {
	case protocol.RoleNameWrite:
		ts.leftLast(t, s.Name)
		ts.lanesChanged(t)
	case protocol.RoleNameRead:
		ts.leftLast(t, s.Name)
		ts.readersChanged(t)
	}
	ts.leaveIfDone(t, s, m)
	return nil
}

// leaveReader ends one reader. The caller calls changed.
func (ts *Topics) leaveReader(t *Topic, s *Party, m *member, rd *reader) {
	delete(m.readers, rd.number)
	got := s.Received(rd.number)
	t.left.Add(got)
	s.left.Add(got)
	if len(m.readers) == 0 {
		ts.store.Record.Topic(t.index).SetReader(s.Slot, false)
	}
	delete(t.closers, rd.join)
	if rd.group == nil || !ts.exit(rd) {
		ts.dropJoin(rd.join, s.Holder)
	}
}

// leaveIfDone takes a session without any role out of a topic.
func (ts *Topics) leaveIfDone(t *Topic, s *Party, m *member) {
	if !ts.isDone(t, s, m) {
		return
	}
	delete(t.members, s)
	delete(s.topics, t)
	ts.removeIfUnused(t)
}
