package topics

import (
	"fmt"
	"time"

	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/protocol"
)

// OpenTopic opens or makes a topic or queue, or finds a private one by token.
func (ts *Topics) OpenTopic(s *Party, r *protocol.TopicOpenRequest) (info protocol.TopicInfo, err error) {
	kind := kinds[r.Kind]
	if kind == 0 || kind == protocol.TopicKindName {
		return info, protocol.Errorf(protocol.CodeInvalid, "use topic, queue or function (for a name: name.open)", "unknown kind %q", r.Kind)
	}
	t, err := ts.opened(s, r.Opening)
	if err != nil {
		return info, err
	}
	if t != nil {
		return ts.openTopic(s, t, r.Opening)
	}
	if t, err = ts.lookUp(s, kind, r); err != nil {
		return info, err
	}
	if t != nil {
		err = t.agrees(kind, r)
	} else {
		t, err = ts.create(s, kind, r)
	}
	if err != nil {
		return info, err
	}
	return ts.openTopic(s, t, r.Opening)
}

// opened finds what an opening has opened before, where a request is made again since its
// answer was lost; nil: nothing.
func (ts *Topics) opened(s *Party, number uint64) (*Topic, error) {
	if number > protocol.MaxSafeInt {
		return nil, protocol.Errorf(protocol.CodeInvalid, "number openings from 1 on", "an opening has the number %d", number)
	}
	return s.openings[number], nil
}

// lookUp finds an existing topic; nil when it may be made.
func (ts *Topics) lookUp(s *Party, kind uint32, r *protocol.TopicOpenRequest) (*Topic, error) {
	if r.Token != "" {
		t := ts.tokens[r.Token]
		if t == nil || t.key.namespace != s.Namespace {
			return nil, protocol.Errorf(protocol.CodeNotFound, "its makers may all have ended: make a new one",
				"no private %s has this token", r.Kind)
		}
		return t, nil
	}
	if r.Name == "" {
		if !r.Create {
			return nil, protocol.Errorf(protocol.CodeInvalid, "give a name or a token", "which %s to open is not said", r.Kind)
		}
		return nil, nil
	}
	if kind == protocol.TopicKindFunction {
		return ts.lookUpFunction(s, r)
	}
	if err := protocol.CheckName(r.Name); err != nil {
		return nil, err
	}
	t := ts.named[topicKey{s.Namespace, r.Name, ofTopics}]
	if t == nil && !r.Create {
		return nil, protocol.Errorf(protocol.CodeNotFound, "check the name and namespace: baton ls topics lists them",
			"there is no %s %s in namespace %s", r.Kind, r.Name, s.Namespace)
	}
	return t, nil
}

// agrees compares the options given with those of an existing topic.
func (t *Topic) agrees(kind uint32, r *protocol.TopicOpenRequest) error {
	// Texts say a value as a person reads it, details as it stands in the request.
	said := func(option string, want, have any, saidWant, saidHave any) error {
		return protocol.Errorf(protocol.CodeConflict, "leave the option out to take what exists, or use another name",
			"%s exists with %s %v, made by %s; %v was asked for", t, option, saidHave, t.creator, saidWant).
			With("option", option).With("have", have).With("want", want).With("creator", t.creator)
	}
	differs := func(option string, want, have any) error { return said(option, want, have, want, have) }
	if kind != t.kind {
		return differs("kind", kindName(kind), kindName(t.kind))
	}
	if r.Depth != nil && *r.Depth != t.depth {
		return differs("depth", *r.Depth, t.depth)
	}
	if r.Overwrite != nil && *r.Overwrite == t.lossless {
		return differs("overwrite", *r.Overwrite, !t.lossless)
	}
	if r.Redeliver != nil && *r.Redeliver != t.redeliver {
		return differs("redeliver", *r.Redeliver, t.redeliver)
	}
	if r.Description != nil && *r.Description != t.description {
		return differs("description", *r.Description, t.description)
	}
	if r.Linger != nil {
		if linger, err := lingerOf(*r.Linger); err != nil {
			return err
		} else if linger != t.linger {
			return said("linger", *r.Linger, t.linger.Seconds(), linger, t.linger)
		}
	}
	return nil
}

// create makes a topic or queue with the options given and defaults for others.
func (ts *Topics) create(s *Party, kind uint32, r *protocol.TopicOpenRequest) (*Topic, error) {
	t := &Topic{
		key: topicKey{s.Namespace, r.Name, spaceOf(kind)}, kind: kind, creator: s.Who(),
		depth: protocol.DefaultTopicDepth, description: protocol.DefaultDescription,
		linger: protocol.DefaultLinger * time.Second,
	}
	if kind == protocol.TopicKindQueue {
		t.depth, t.lossless = protocol.DefaultQueueDepth, true
	}
	if kind == protocol.TopicKindFunction {
		t.depth, t.lossless, t.redeliver, t.linger = protocol.DefaultQueueDepth, true, true, 0
	}
	if r.Depth != nil {
		t.depth = *r.Depth
	}
	if r.Overwrite != nil {
		t.lossless = !*r.Overwrite
	}
	if r.Redeliver != nil {
		t.redeliver = *r.Redeliver
	}
	if r.Description != nil {
		t.description = *r.Description
	}
	if r.Linger != nil {
		var err error
		if t.linger, err = lingerOf(*r.Linger); err != nil {
			return nil, err
		}
	}
	if err := t.check(); err != nil {
		return nil, err
	}
	if err := ts.makeTopic(s, t); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *Topic) check() error {
	switch {
	case t.depth < 1 || t.depth > protocol.MaxDepth:
		return protocol.Errorf(protocol.CodeInvalid, fmt.Sprintf("use 1 to %d", protocol.MaxDepth), "depth %d of %s", t.depth, t)
	case t.description > protocol.MaxDescription:
		return protocol.Errorf(protocol.CodeInvalid, fmt.Sprintf("use at most %d: longer ones go into a storage by themselves", protocol.MaxDescription),
			"description of %d bytes of %s", t.description, t)
	case t.kind == protocol.TopicKindFunction && (!t.lossless || !t.redeliver):
		return protocol.Errorf(protocol.CodeInvalid, "leave overwrite and redeliver out", "%s loses no call", t)
	case t.kind == protocol.TopicKindQueue && !t.lossless:
		return protocol.Errorf(protocol.CodeInvalid, "leave overwrite out, or use a topic", "%s cannot overwrite items that were not taken", t)
	case t.redeliver && !t.lossless:
		return protocol.Errorf(protocol.CodeInvalid, "make it lossless, so that it does not overwrite", "%s cannot both overwrite and redeliver", t)
	case protocol.LaneBytes(protocol.Slots(t.depth), protocol.Stride(t.description)) > protocol.SessionBytes-protocol.SessionLanes:
		return protocol.Errorf(protocol.CodeInvalid, "use a smaller depth or description",
			"depth %d with descriptions of %d bytes of %s does not fit in a session file", t.depth, t.description, t)
	}
	return nil
}

// openTopic makes the session an opener, unless this opening has done so before, and tells
// what the topic is. Without a number the opening gets one.
func (ts *Topics) openTopic(s *Party, t *Topic, number uint64) (info protocol.TopicInfo, err error) {
	for number == 0 {
		ts.opening++
		if next := firstOpening + ts.opening; s.openings[next] == nil {
			number = next
		}
	}
	if s.openings[number] == nil {
		join, err := ts.putJoin(s, t, number, nil)
		if err != nil {
			ts.removeIfUnused(t)
			return info, err
		}
		ts.addOpening(s, t, ts.join(s, t), number, join)
	}
	info = ts.info(t)
	info.Opening = number
	return info, nil
}

// firstOpening is below the numbers of openings that the broker chooses.
const firstOpening = 1 << 52

func (ts *Topics) addOpening(s *Party, t *Topic, m *member, number uint64, join uint32) {
	m.opens[number] = join
	s.openings[number] = t
}

// dropOpening ends one opening.
func (ts *Topics) dropOpening(s *Party, m *member, number uint64) {
	delete(s.openings[number].closers, m.opens[number])
	ts.dropJoin(m.opens[number], s.Holder)
	delete(m.opens, number)
	delete(s.openings, number)
}

// join finds or makes the session's part in a topic.
func (ts *Topics) join(s *Party, t *Topic) *member {
	m := t.members[s]
	if m == nil {
		m = newMember()
		t.members[s] = m
		s.topics[t] = m
		ts.removeIfUnused(t)
	}
	return m
}

func (ts *Topics) info(t *Topic) protocol.TopicInfo {
	return protocol.TopicInfo{
		Topic: t.index, ID: t.id, Name: t.key.name, Token: t.token, Kind: kindName(t.kind),
		Depth: t.depth, Slots: t.slots, Stride: t.stride, Overwrite: !t.lossless, Redeliver: t.redeliver,
		Description: t.description, Linger: t.linger.Seconds(),
	}
}

// putJoin records an opening (reader nil) or a reader for a successor.
func (ts *Topics) putJoin(s *Party, t *Topic, number uint64, r *reader) (uint32, error) {
	i, err := ts.joins.Take(s.Holder)
	if err != nil {
		return 0, err
	}
	if err := ts.store.Reserve(record.JoinPlace(i)); err != nil {
		ts.joins.Give(i, s.Holder)
		return 0, err
	}
	j := record.Join{Session: s.Serial, TopicID: t.id, Topic: t.index, Number: number}
	if r != nil {
		j = r.joined(s, t)
	}
	ts.store.Record.Join(i).Store(j)
	return i, nil
}

// joined is the record of a reader.
func (r *reader) joined(s *Party, t *Topic) record.Join {
	j := record.Join{Session: s.Serial, TopicID: t.id, Topic: t.index, Number: r.number, Reader: true, Concurrency: r.calls}
	if r.group != nil {
		j.Group, j.Member, j.Alone = uint8(r.group.number+1), r.member, r.group.alone
	}
	return j
}

func (ts *Topics) dropJoin(i uint32, h record.Holder) {
	ts.store.Record.Join(i).Free()
	ts.joins.Give(i, h)
}
