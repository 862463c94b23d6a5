package topics

import (
	"crypto/rand"
	"encoding/hex"
	"math"
	"time"

	"github.com/baton-ipc/baton/broker/alarm"
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// topicKey finds a topic or queue, and apart from them a name or a function.
type topicKey struct {
	namespace, name string
	space           space
}

// space is a set of names: one of it may be the same as one of another.
type space uint8

const (
	ofTopics space = iota // and queues
	ofNames
	ofFunctions
)

func spaceOf(kind uint32) space {
	switch kind {
	case protocol.TopicKindName:
		return ofNames
	case protocol.TopicKindFunction:
		return ofFunctions
	}
	return ofTopics
}

// isQueue tells whether each message is for one taker: the topic has one group from its making on,
// and keeps nothing that is done with.
func (t *Topic) isQueue() bool {
	return t.kind == protocol.TopicKindQueue || t.kind == protocol.TopicKindFunction
}

// Topic is a topic, a queue or a name. Its record in the broker file says the
// same, so that a successor can go on from there.
type Topic struct {
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
	holder      record.Holder // of its creator
	made        time.Time
	closed      bool
	closers     map[uint32]struct{} // records of those that had it open, or read it, when it was closed, and still do
	deleted     bool                // by an operator, while sessions have it open
	former      string              // its name until then

	lanes     map[uint32]*Lane
	nextLane  uint32 // no lower number is free
	groups    [protocol.MaxGroups]*group
	members   map[*Party]*member
	gone      uint64                // messages that were sent in lanes that are no more
	goneBytes uint64                // of their tensors
	left      sessionfiles.Received // by readers that are no more
	lingering *alarm.Alarm
	// lingeringSince is when that was set.
	lingeringSince time.Time
	seen           uint64    // sum of heads when adopted messages were last looked at
	name           *name     // of kind name
	function       *function // of kind function
}

// member is what one session is in a topic.
type member struct {
	opens   map[uint64]uint32 // join records by the numbers of openings
	readers map[uint64]*reader
}

func newMember() *member {
	return &member{opens: map[uint64]uint32{}, readers: map[uint64]*reader{}}
}

// reader is one reader, in a group or alone.
type reader struct {
	number uint64
	join   uint32
	group  *group
	member uint16
	// calls is how many it takes at a time, of a provider of its function's registration; 0: it is none.
	calls uint32
}

func (ts *Topics) isDone(t *Topic, s *Party, m *member) bool {
	return len(m.opens) == 0 && len(m.readers) == 0 && ts.liveLane(t, s.SessionFile) == nil
}

var kinds = map[string]uint32{
	protocol.KindTopic: protocol.TopicKindTopic, protocol.KindQueue: protocol.TopicKindQueue, protocol.KindName: protocol.TopicKindName,
	protocol.KindFunction: protocol.TopicKindFunction,
}

// isOfCalls tells whether what is sent there are calls, or replies of calls, which are counted as calls and not as
// messages. A topic for replies is private, lossless, and ends with the session that has it open.
func (t *Topic) isOfCalls() bool {
	return t.kind == protocol.TopicKindFunction ||
		t.kind == protocol.TopicKindTopic && t.token != "" && t.lossless && t.linger == 0
}

func kindName(kind uint32) string {
	for name, v := range kinds {
		if v == kind {
			return name
		}
	}
	return "unknown"
}

func (t *Topic) String() string {
	if t.deleted {
		return "deleted " + kindName(t.kind) + " " + t.former
	}
	if t.key.name == "" {
		return "private " + kindName(t.kind)
	}
	return kindName(t.kind) + " " + t.key.name
}

// makeTopic makes a topic of a session's of which everything but its place is known.
func (ts *Topics) makeTopic(s *Party, t *Topic) error {
	index, err := ts.topicTable.Take(s.Holder)
	if err != nil {
		return err
	}
	if err := ts.reserveTopic(index); err != nil {
		ts.topicTable.Give(index, s.Holder)
		return err
	}
	t.holder = s.Holder
	t.index, t.id, t.made = index, ts.store.Record.NextSerial(), time.Now()
	t.slots, t.stride = protocol.Slots(t.depth), protocol.Stride(t.description)
	ts.store.Record.Topic(index).Begin()
	ts.store.Bells.Waits(index).All().Clear()
	ts.store.Bells.Waits(index).Active().Reset()
	t.lanes, t.members = map[uint32]*Lane{}, map[*Party]*member{}
	if t.kind != protocol.TopicKindName && t.key.name == "" {
		var token [16]byte
		rand.Read(token[:])
		t.token = hex.EncodeToString(token[:])
	}
	if t.kind == protocol.TopicKindFunction {
		if err := ts.makeFunction(t); err != nil {
			ts.topicTable.Give(index, s.Holder)
			return err
		}
	}
	if t.isQueue() {
		if _, err := ts.makeGroup(s, t, t.groupName(), false); err != nil {
			ts.topicTable.Give(index, s.Holder)
			return err
		}
	}
	ts.enlist(t)
	ts.putTopic(t)
	return nil
}

// reserveTopic makes sure of the pages of a topic without lanes and groups.
func (ts *Topics) reserveTopic(index uint32) error {
	if err := ts.store.Reserve(record.TopicHeadPlace(index)); err != nil {
		return err
	}
	return ts.store.ReserveWaits(index, 0)
}

// giveBack gives the pages of a free record back. A successor does not look at those
// behind the last topic.
func (ts *Topics) giveBack(index uint32) {
	ts.store.Record.Topic(index).KeepVersion()
	ts.store.GiveBack(record.TopicPlace(index))
	used := ts.store.Record.UsedTopics()
	if index+1 != used {
		return
	}
	for used > 0 && ts.topics[used-1] == nil {
		used--
	}
	ts.store.Record.SetUsedTopics(used)
}

// enlist makes a topic findable.
func (ts *Topics) enlist(t *Topic) {
	ts.topics[t.index] = t
	if t.token != "" {
		ts.tokens[t.token] = t
	} else {
		ts.named[t.key] = t
	}
}

// putTopic writes the head of a new topic's record, the id last. Groups are
// there already.
func (ts *Topics) putTopic(t *Topic) {
	r := record.Topic{ID: t.id, State: protocol.TopicOpen, Kind: t.kind, Depth: t.depth, Slots: t.slots, Stride: t.stride,
		Description: t.description, MadeAt: uint64(t.made.UnixNano()), Linger: uint64(t.linger),
		Name: t.key.name, Namespace: t.key.namespace, Creator: t.creator, Holder: t.holder}
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
	ts.store.Record.Topic(t.index).Store(r)
}

// changed tells all sessions in the topic to look at all of it anew: the versions first,
// then the bells.
//
// SYNC topic-version: the change is visible before the version is; a sender
// reads it after the fence that follows its publish and fetches the readers anew.
func (ts *Topics) changed(t *Topic) {
	ts.store.Record.Topic(t.index).RaiseReadersVersion()
	ts.store.Record.Topic(t.index).RaiseLanesVersion()
	t.seen = 0
	shm.Fence()
	for s := range t.members {
		s.Wake() // MODEL wake:death-ring
	}
	ts.watch.Changed()
}

// lanesChanged tells the sessions that read the topic that lanes have come or gone.
//
// SYNC topic-version: as changed.
func (ts *Topics) lanesChanged(t *Topic) {
	ts.store.Record.Topic(t.index).RaiseLanesVersion()
	t.seen = 0
	ts.ring(t, func(m *member) bool { return len(m.readers) > 0 })
	ts.watch.Changed()
}

// readersChanged notifies the sessions that need to know that readers have come or gone. In a
// topic that overwrites there are none.
func (ts *Topics) readersChanged(t *Topic) {
	if t.lossless {
		ts.groupsChanged(t)
	} else {
		ts.watch.Changed()
	}
}

// groupsChanged tells the sessions in a lossless topic that groups or their members have
// come or gone: a sender may wait for a group that is no more, and the claims of a member
// that left are the others' to take.
//
// SYNC topic-version: as changed.
func (ts *Topics) groupsChanged(t *Topic) {
	ts.store.Record.Topic(t.index).RaiseReadersVersion()
	t.seen = 0 // what a group had not done yet may be done by all now
	ts.ring(t, func(*member) bool { return true })
	ts.watch.Changed()
}

// leftLast notes which session left last, for messages of timeouts.
func (ts *Topics) leftLast(t *Topic, name string) {
	ts.store.Record.Topic(t.index).SetLastLeft(name)
}

// ring has those members of a topic look again that sleep.
func (ts *Topics) ring(t *Topic, which func(*member) bool) {
	shm.Fence()
	for s, m := range t.members {
		if which(m) {
			s.Ring()
		}
	}
}

// removeTopic forgets a topic: what its adopted lanes keep is let go.
func (ts *Topics) removeTopic(t *Topic) {
	t.lingering.Cancel()
	delete(ts.draining, t)
	for _, l := range t.lanes {
		ts.dropLane(l)
	}
	if t.name != nil && t.name.lane != nil {
		ts.store.GiveBackOwn(t.name.lane.offset, nameLane)
		ts.nameRoom.give(t.name.lane.offset)
	}
	for _, g := range t.groups {
		if g != nil {
			ts.dropGroup(g)
		}
	}
	if t.kind != protocol.TopicKindName && !t.isOfCalls() { // after its lanes and readers
		ts.ended.Sent, ts.ended.SentBytes = safe(ts.ended.Sent+t.gone), safe(ts.ended.SentBytes+t.goneBytes)
		ts.ended.received(t.left)
	}
	if t.function != nil && t.function.left != nil {
		left := totals(t.function.left)
		ts.endedCalls.Add(&left)
	}
	ts.store.Record.Topic(t.index).Free()
	ts.changed(t)
	ts.topics[t.index] = nil
	ts.giveBack(t.index)
	if t.function != nil {
		ts.store.GiveBack(record.FunctionPlace(t.index))
	}
	ts.topicTable.Give(t.index, t.holder)
	if t.token != "" {
		delete(ts.tokens, t.token)
	} else {
		delete(ts.named, t.key)
	}
}

// removeIfUnused removes a topic that no session has open any more, at once or after its
// linger. A topic that a session has open again stays.
func (ts *Topics) removeIfUnused(t *Topic) {
	if ts.topics[t.index] != t {
		return
	}
	switch {
	case len(t.members) > 0:
		t.lingering.Cancel()
		t.lingering = nil
	case t.kind == protocol.TopicKindName:
		if !t.name.set && t.name.pending == 0 {
			ts.removeTopic(t)
		}
	case t.closed && len(t.lanes) == 0 || t.linger == 0:
		ts.endLinger(t)
	case t.lingering == nil:
		t.lingeringSince = time.Now()
		t.lingering = ts.clock.After(t.linger, func() { ts.endLinger(t) })
	}
}

// endLinger removes a topic that no session has had open for its linger.
func (ts *Topics) endLinger(t *Topic) {
	ts.noteDropped(t, DroppedLinger, "dropped: no session had it open for as long as it lingers")
	ts.removeTopic(t)
}

// findTopic finds a topic that the session takes part in.
func (ts *Topics) findTopic(s *Party, r protocol.TopicRef) (*Topic, *member, error) {
	if r.Topic < protocol.MaxTopics {
		if t := ts.topics[r.Topic]; t != nil && t.id == r.ID {
			if m := t.members[s]; m != nil {
				return t, m, nil
			}
		}
	}
	return nil, nil, protocol.Errorf(protocol.CodeNotFound, "open it first",
		"this session has no topic %d with id %d open", r.Topic, r.ID)
}

// End ends sending for all sessions; readers drain what is there.
func (ts *Topics) End(s *Party, r *protocol.TopicRef) error {
	t, _, err := ts.findTopic(s, *r)
	if err != nil {
		return err
	}
	if t.kind == protocol.TopicKindName {
		return protocol.Errorf(protocol.CodeInvalid, "use name.delete", "%s cannot be closed", t)
	}
	ts.Shut(t)
	return nil
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
