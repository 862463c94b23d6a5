package topics

import "github.com/baton-ipc/baton/protocol"

// A topic or queue that was closed keeps its name while what it has can be received. A program that
// runs again opens the same name, and is to find it as its first run did. So the first sender that
// comes when none of those is left that had the topic open when it was closed opens it again. What is in it
// then goes to those that have opened it since; where there is none but the sender, it is freed.

// noteClosers notes what the sessions have of a topic that is being closed, also for a successor.
func (ts *Topics) noteClosers(t *Topic) {
	note := func(join uint32) {
		t.addCloser(join)
		ts.store.Record.Join(join).MarkFormer()
	}
	for _, m := range t.members {
		for _, join := range m.opens {
			note(join)
		}
		for _, rd := range m.readers {
			note(rd.join)
		}
	}
}

// addCloser notes one of them, as a previous broker did.
func (t *Topic) addCloser(join uint32) {
	if t.closers == nil {
		t.closers = map[uint32]struct{}{}
	}
	t.closers[join] = struct{}{}
}

// mayReopen tells whether a session may open a closed topic again by sending to it.
func (t *Topic) mayReopen() bool {
	if t.deleted || t.key.name == "" || t.kind != protocol.TopicKindTopic && t.kind != protocol.TopicKindQueue || len(t.closers) > 0 {
		return false
	}
	for _, l := range t.lanes {
		if l.state == protocol.LaneLive { // its sender is one of those that had it open
			return false
		}
	}
	return true
}

// reopen opens a closed topic again. What it has is dropped where only the sender that comes has it open.
func (ts *Topics) reopen(s *Party, t *Topic) {
	if m := t.members[s]; len(t.members) == 1 && len(m.readers) == 0 {
		ts.noteDropped(t, DroppedReopened, "dropped: a sender opened it again after its close, and no session reads what it had")
		for _, l := range t.lanes {
			ts.dropLane(l)
		}
	}
	t.closed, t.closers = false, nil
	ts.store.Record.Topic(t.index).SetState(protocol.TopicOpen)
	ts.changed(t)
}
