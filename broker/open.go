package broker

import (
	"fmt"
	"time"

	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// opTopicOpen opens or makes a topic or queue, or finds a private one by token.
func (b *Broker) opTopicOpen(s *session, r *protocol.TopicOpenRequest) (any, []*sys.FD, error) {
	kind := kinds[r.Kind]
	if kind != protocol.TopicKindTopic && kind != protocol.TopicKindQueue {
		return nil, nil, protocol.Errorf(protocol.CodeInvalid, "use topic or queue (for a name: name.open)", "unknown kind %q", r.Kind)
	}
	t, err := b.lookUp(s, r)
	if err != nil {
		return nil, nil, err
	}
	if t != nil {
		err = t.agrees(kind, r)
	} else {
		t, err = b.create(s, kind, r)
	}
	if err != nil {
		return nil, nil, err
	}
	return b.openTopic(s, t)
}

// lookUp finds an existing topic; nil when it may be made.
func (b *Broker) lookUp(s *session, r *protocol.TopicOpenRequest) (*topic, error) {
	if r.Token != "" {
		t := b.tokens[r.Token]
		if t == nil || t.key.namespace != s.namespace {
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
	if err := protocol.CheckName(r.Name); err != nil {
		return nil, err
	}
	t := b.named[topicKey{s.namespace, r.Name, false}]
	if t == nil && !r.Create {
		return nil, protocol.Errorf(protocol.CodeNotFound, "check the name and namespace: baton ls topics lists them",
			"there is no %s %s in namespace %s", r.Kind, r.Name, s.namespace)
	}
	return t, nil
}

// agrees compares the options given with those of an existing topic.
func (t *topic) agrees(kind uint32, r *protocol.TopicOpenRequest) error {
	differs := func(option string, want, have any) error {
		return protocol.Errorf(protocol.CodeConflict, "leave the option out to take what exists, or use another name",
			"%s exists with %s %v, made by %s; %v was asked for", t, option, have, t.creator, want).
			With("option", option).With("have", have).With("want", want).With("creator", t.creator)
	}
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
			return differs("linger", *r.Linger, t.linger.Seconds())
		}
	}
	return nil
}

// create makes a topic or queue with the options given and defaults for others.
func (b *Broker) create(s *session, kind uint32, r *protocol.TopicOpenRequest) (*topic, error) {
	t := &topic{
		key: topicKey{s.namespace, r.Name, false}, kind: kind, creator: fmt.Sprintf("%s (process %d)", s.Name, s.PID),
		depth: protocol.DefaultTopicDepth, description: protocol.DefaultDescription,
		linger: protocol.DefaultLinger * time.Second,
	}
	if kind == protocol.TopicKindQueue {
		t.depth, t.lossless = protocol.DefaultQueueDepth, true
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
	if err := b.makeTopic(t); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *topic) check() error {
	switch {
	case t.depth < 1 || t.depth > protocol.MaxDepth:
		return protocol.Errorf(protocol.CodeInvalid, fmt.Sprintf("use 1 to %d", protocol.MaxDepth), "depth %d of %s", t.depth, t)
	case t.description > protocol.MaxDescription:
		return protocol.Errorf(protocol.CodeInvalid, fmt.Sprintf("use at most %d: longer ones go into a storage by themselves", protocol.MaxDescription),
			"description of %d bytes of %s", t.description, t)
	case t.kind == protocol.TopicKindQueue && !t.lossless:
		return protocol.Errorf(protocol.CodeInvalid, "leave overwrite out, or use a topic", "%s cannot overwrite items that nobody took", t)
	case t.redeliver && !t.lossless:
		return protocol.Errorf(protocol.CodeInvalid, "make it lossless, so that it does not overwrite", "%s cannot both overwrite and redeliver", t)
	case protocol.LaneBytes(protocol.Slots(t.depth), protocol.Stride(t.description)) > protocol.SessionBytes-protocol.SessionLanes:
		return protocol.Errorf(protocol.CodeInvalid, "use a smaller depth or description",
			"depth %d with descriptions of %d bytes of %s does not fit in a session's pages", t.depth, t.description, t)
	}
	return nil
}

// openTopic makes the session an opener and tells what the topic is.
func (b *Broker) openTopic(s *session, t *topic) (any, []*sys.FD, error) {
	join, err := b.putJoin(s, t, nil)
	if err != nil {
		b.leftAlone(t)
		return nil, nil, err
	}
	m := b.join(s, t)
	m.opens = append(m.opens, join)
	return b.info(t), nil, nil
}

// join finds or makes the session's part in a topic.
func (b *Broker) join(s *session, t *topic) *member {
	m := t.members[s]
	if m == nil {
		m = &member{readers: map[uint64]*reader{}}
		t.members[s] = m
		s.topics[t] = m
		b.leftAlone(t)
	}
	return m
}

func (b *Broker) info(t *topic) protocol.TopicInfo {
	return protocol.TopicInfo{
		Topic: t.index, ID: t.id, Name: t.key.name, Token: t.token, Kind: kindName(t.kind),
		Depth: t.depth, Slots: t.slots, Stride: t.stride, Overwrite: !t.lossless, Redeliver: t.redeliver,
		Description: t.description, Linger: t.linger.Seconds(), Version: b.version(t),
	}
}

func (b *Broker) version(t *topic) uint64 {
	return b.store.Record.Topic(t.index).Version()
}

// putJoin records an opener (reader nil) or a reader for a successor.
func (b *Broker) putJoin(s *session, t *topic, r *reader) (uint32, error) {
	i, ok := b.joins.Take()
	if !ok {
		return 0, protocol.Errorf(protocol.CodeTooMany, "close topics that are not used", "all %d places for openers and readers are taken", record.MaxJoins)
	}
	if err := b.store.Reserve(record.JoinPlace(i)); err != nil {
		b.joins.Give(i)
		return 0, err
	}
	j := record.Join{Session: s.Serial, TopicID: t.id, Topic: t.index}
	if r != nil {
		j.Reader = r.number
		if r.group != nil {
			j.Group, j.Member, j.Alone = uint8(r.group.number+1), r.member, r.group.alone
		}
	}
	b.store.Record.Join(i).Store(j)
	return i, nil
}

func (b *Broker) dropJoin(i uint32) {
	b.store.Record.Join(i).Free()
	b.joins.Give(i)
}
