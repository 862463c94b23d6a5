package broker

import (
	"crypto/rand"
	"encoding/hex"
	"math"
	"time"

	"github.com/baton-ipc/baton/broker/alarm"
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// topicKey finds a topic or queue, and apart from them a name.
type topicKey struct {
	namespace, name string
	isName          bool
}

// topic is a topic, a queue or a name. Its record in the broker file says the
// same, so that a successor can go on from there.
type topic struct {
	index       uint32
	id          uint64
	key         topicKey
	token       string // of a private topic, else ""
	kind        uint32
	lossless    bool
	redeliver   bool
	depth       uint32
	slots       uint32
	stride      uint32
	description uint32
	linger      time.Duration
	creator     string
	made        time.Time
	closed      bool

	lanes     map[uint32]*lane
	nextLane  uint32
	groups    [protocol.MaxGroups]*group
	members   map[*session]*member
	lastLeft  string
	gone      uint64 // messages that were sent in lanes that are no more
	lingering *alarm.Alarm
	seen      uint64 // sum of heads when adopted messages were last looked at
	name      *name  // of kind name
	mirrored  bool   // somebody on NATS gets its tuples
}

// member is what one session is in a topic.
type member struct {
	opens   []uint32 // a join record for each
	readers map[uint64]*reader
}

// reader is one reader, in a group or alone.
type reader struct {
	number uint64
	join   uint32
	group  *group
	member uint8
}

func (m *member) empty(t *topic, s *session) bool {
	return len(m.opens) == 0 && len(m.readers) == 0 && t.liveLane(s.Pages) == nil
}

var kinds = map[string]uint32{
	protocol.KindTopic: protocol.TopicKindTopic, protocol.KindQueue: protocol.TopicKindQueue, protocol.KindName: protocol.TopicKindName,
}

func kindName(kind uint32) string {
	for name, v := range kinds {
		if v == kind {
			return name
		}
	}
	return "unknown"
}

func (t *topic) String() string {
	if t.key.name == "" {
		return "private " + kindName(t.kind)
	}
	return kindName(t.kind) + " " + t.key.name
}

// makeTopic makes a topic of which everything but its place is known.
func (b *Broker) makeTopic(t *topic) error {
	index, ok := b.topicTable.Take()
	if !ok {
		return protocol.Errorf(protocol.CodeTooMany, "close or delete some: baton ls topics lists them",
			"all %d topics, queues and names of this broker are taken", protocol.MaxTopics)
	}
	if err := b.store.Reserve(record.TopicPlace(index)); err != nil {
		b.topicTable.Give(index)
		return err
	}
	t.index, t.id, t.made = index, b.store.Record.NextSerial(), time.Now()
	t.slots, t.stride = protocol.Slots(t.depth), protocol.Stride(t.description)
	b.store.Record.Topic(index).Begin()
	t.lanes, t.members = map[uint32]*lane{}, map[*session]*member{}
	if t.kind != protocol.TopicKindName && t.key.name == "" {
		var token [16]byte
		rand.Read(token[:])
		t.token = hex.EncodeToString(token[:])
	}
	if t.kind == protocol.TopicKindQueue {
		if _, err := b.makeGroup(t, "queue", false); err != nil {
			b.topicTable.Give(index)
			return err
		}
	}
	b.enlist(t)
	b.putTopic(t)
	return nil
}

// enlist makes a topic findable.
func (b *Broker) enlist(t *topic) {
	b.topics[t.index] = t
	if t.token != "" {
		b.tokens[t.token] = t
	} else {
		b.named[t.key] = t
	}
}

// putTopic writes the head of a new topic's record, the id last. Groups are
// there already.
func (b *Broker) putTopic(t *topic) {
	r := record.Topic{ID: t.id, State: protocol.TopicOpen, Kind: t.kind, Depth: t.depth, Slots: t.slots, Stride: t.stride,
		Description: t.description, MadeAt: uint64(t.made.UnixNano()), Linger: uint64(t.linger),
		Name: t.key.name, Namespace: t.key.namespace, Creator: t.creator}
	if t.lossless {
		r.Flags |= protocol.TopicLossless
	}
	if t.redeliver {
		r.Flags |= protocol.TopicRedeliver
	}
	if t.token != "" {
		r.Flags |= protocol.TopicPrivate
		token, _ := hex.DecodeString(t.token)
		copy(r.Token[:], token)
	}
	b.store.Record.Topic(t.index).Store(r)
}

// changed tells everybody in the topic that lanes, waiters, groups or state have
// changed: the version first, then the bells.
//
// SYNC topic-version: the change is visible before the version is; a sender
// reads it after a fence behind its publish and fetches the peers anew.
func (b *Broker) changed(t *topic) {
	b.store.Record.Topic(t.index).RaiseVersion()
	t.seen = 0
	b.ringAll(t)
	if b.mirror != nil {
		shm.WakeBell(b.store.Own.Bell.Region)
	}
}

// ringAll wakes every session that reads or writes in the topic.
func (b *Broker) ringAll(t *topic) {
	shm.Fence()
	for s := range t.members {
		s.Wake() // MODEL wake:death-ring
	}
}

// removeTopic forgets a topic: what its adopted lanes keep is let go.
func (b *Broker) removeTopic(t *topic) {
	t.lingering.Cancel()
	for _, l := range t.lanes {
		b.dropLane(l)
	}
	if t.name != nil && t.name.lane != nil {
		b.nameRoom.give(t.name.lane.offset)
	}
	for _, g := range t.groups {
		if g != nil {
			b.dropGroup(g)
		}
	}
	b.store.Record.Topic(t.index).Free()
	b.changed(t)
	b.topics[t.index] = nil
	b.topicTable.Give(t.index)
	if t.token != "" {
		delete(b.tokens, t.token)
	} else {
		delete(b.named, t.key)
	}
}

// leftAlone decides what happens to a topic that nobody has open any more.
func (b *Broker) leftAlone(t *topic) {
	if b.topics[t.index] != t {
		return
	}
	switch {
	case len(t.members) > 0:
		t.lingering.Cancel()
		t.lingering = nil
	case t.kind == protocol.TopicKindName:
		if !t.name.set {
			b.removeTopic(t)
		}
	case t.closed && len(t.lanes) == 0 || t.linger == 0:
		b.removeTopic(t)
	case t.lingering == nil:
		t.lingering = b.clock.After(t.linger, func() { b.removeTopic(t) })
	}
}

// findTopic finds a topic that the session takes part in.
func (b *Broker) findTopic(s *session, r protocol.TopicRef) (*topic, *member, error) {
	if r.Topic < protocol.MaxTopics {
		if t := b.topics[r.Topic]; t != nil && t.id == r.ID {
			if m := t.members[s]; m != nil {
				return t, m, nil
			}
		}
	}
	return nil, nil, protocol.Errorf(protocol.CodeNotFound, "open it first",
		"this session has no topic %d with id %d open", r.Topic, r.ID)
}

// opTopicClose ends sending for everybody; readers drain what is there.
func (b *Broker) opTopicClose(s *session, r *protocol.TopicRef) (any, []*sys.FD, error) {
	t, _, err := b.findTopic(s, *r)
	if err != nil {
		return nil, nil, err
	}
	if t.kind == protocol.TopicKindName {
		return nil, nil, protocol.Errorf(protocol.CodeInvalid, "use name.delete", "%s cannot be closed", t)
	}
	if !t.closed {
		t.closed = true
		b.store.Record.Topic(t.index).SetState(protocol.TopicClosed)
		b.changed(t)
	}
	return done{}, nil, nil
}

// lingerOf checks a linger in seconds and bounds it to what a record can hold.
func lingerOf(seconds float64) (time.Duration, error) {
	if !(seconds >= 0) {
		return 0, protocol.Errorf(protocol.CodeInvalid, "give seconds, 0 or more", "linger of %v seconds", seconds)
	}
	if seconds > math.MaxInt64/2/float64(time.Second) {
		return math.MaxInt64 / 2, nil
	}
	return time.Duration(seconds * float64(time.Second)), nil
}
