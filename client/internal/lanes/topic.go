package lanes

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/client/internal/sessionfiles"
	"github.com/baton-ipc/baton/client/internal/turn"
	"github.com/baton-ipc/baton/client/internal/waits"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Topic is what a session has of one topic, queue or name: the lane that it
// writes, once it writes, and the lanes and groups of others.
type Topic struct {
	set  *Topics
	Info protocol.TopicInfo

	// What the broker says of it, and the words of that which every poll reads.
	record              sessionfiles.TopicRecord
	versionWord, idWord *uint64
	stateWord           *uint32

	waits  shm.Waits
	all    shm.WaitSet // of the readers rung at each message
	active shm.Active  // lanes that have sent of late

	viewMu  turn.Turn // one renewal at a time
	lanes   atomic.Pointer[lanesView]
	rewound atomic.Bool                // a reader began with messages that were kept
	drains  atomic.Bool                // what is taken is withdrawn, as in a queue
	groups  atomic.Pointer[groupsView] // never nil

	mu       turn.Turn // the writer's turn; guards what follows
	lane     shm.Lane
	laneNo   uint32
	laneAt   uint64
	laneInc  uint64 // incarnation
	writing  bool
	head     uint64
	tail     uint64     // oldest message not withdrawn
	kept     [][]uint32 // by slot: indices that its message counts
	unwanted unwanted   // of a function
	spin     waits.Spinner
	users    []uint64 // numbers of the openings: one for each handle of this process that is open
	shares   []share  // of the groups, by number
}

// share is the wait set of a group, and whose turn it was there.
type share struct {
	shm.WaitSet
	last uint32
}

func (t *Topic) ref() protocol.TopicRef { return protocol.TopicRef{Topic: t.Info.Topic, ID: t.Info.ID} }

// version is the broker's count of changes of the sessions that take part: of lanes in its
// low half, of groups in its high one.
//
// SYNC topic-version: a sender in a lossless topic reads it after the fence of the message
// before; the broker changes it and fences before it looks where a new group begins. One of
// the two sees the other.
func (t *Topic) version() uint64 { return atomic.LoadUint64(t.versionWord) }

// isClosed tells from the broker's page whether the topic may not be sent to.
func (t *Topic) isClosed() bool {
	return !t.isThere() || atomic.LoadUint32(t.stateWord) != protocol.TopicOpen
}

// isThere tells from the broker's page whether the topic is not over.
func (t *Topic) isThere() bool { return atomic.LoadUint64(t.idWord) == t.Info.ID }

// isDeleted tells from the broker's page whether the topic is a name that is not set, or was deleted.
func (t *Topic) isDeleted() bool {
	return t.record.Flags()&protocol.TopicDeleted != 0
}

// IsStale tells from the broker's page whether a newer revision of the name may be set on another host.
func (t *Topic) IsStale() bool { return t.record.Flags()&protocol.TopicStale != 0 }

// isQueue tells whether each message is for one taker, and of no use once it is done: of a queue, a
// function, and a topic that this session sends replies in.
func (t *Topic) isQueue() bool {
	return t.Info.Kind == protocol.KindQueue || t.Info.Kind == protocol.KindFunction || t.drains.Load()
}

// leaving is how long a Close waits for the broker.
const leaving = 5 * time.Second

// behind runs what ends a use, and waits a while for it. It goes on after that: were
// the broker, or the one that comes after it, not told, the use would last as long as
// the client.
func (t *Topic) behind(end func(context.Context) error) error {
	ended := make(chan error, 1)
	go func() { ended <- end(context.Background()) }()
	ctx, cancel := context.WithTimeout(context.Background(), leaving)
	defer cancel()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	if t.set.broker.IsAway() {
		return protocol.Errorf(protocol.CodeBrokerLost, "the next one is notified", "no broker was there to be notified of the end of a use of %s", t.Title())
	}
	return fault.Context(ctx, "waiting for the broker to end a use of "+t.Title())
}

// unlessLeft is an error of leaving, unless it says that this was done before: by a
// broker that went away before it had answered. Nothing else ends what is left.
func unlessLeft(err error) error {
	if errors.Is(err, protocol.ErrNotFound) {
		return nil
	}
	return err
}

// Close ends one use by this process; with the last one its lane is handed to
// the broker, which keeps what was sent for readers that have not seen it. It goes on
// after an error that says that time ran out.
func (t *Topic) Close() error { return t.behind(t.leave) }

// leave waits as long as ctx lasts. An opening of the topic waits meanwhile behind it, and
// finds it left.
func (t *Topic) leave(ctx context.Context) error {
	s := t.set
	if err := t.mu.Take(ctx); err != nil {
		return err
	}
	defer t.mu.End()
	if err := s.openMu.Take(ctx); err != nil {
		return err
	}
	defer s.openMu.End()
	s.mu.Lock()
	opening := t.users[len(t.users)-1]
	t.users = t.users[:len(t.users)-1]
	last := len(t.users) == 0
	s.mu.Unlock()
	if last {
		// Only now: what its lane names is the client's to count down until the broker does so, also
		// where the client is closed or lost meanwhile.
		defer func() {
			if t.kept == nil {
				s.mu.Lock()
				delete(s.open, t.Info.ID)
				s.mu.Unlock()
			}
		}()
	}
	var first error
	if last && t.laneAt != 0 { // writing, or maybe so: a request to join whose answer did not come
		_, first = s.broker.CallUntil(ctx, protocol.OpTopicLeave, protocol.TopicLeave{TopicRef: t.ref(), Role: protocol.RoleNameWrite, Offset: t.laneAt}, nil)
		if !t.writing && errors.Is(first, protocol.ErrNotFound) { // the request did not come to this broker
			s.files.Lanes.Give(t.laneAt)
			t.laneAt, first = 0, nil
		} else if fault.IsSessionLost(first) {
			first = nil // EmptyLanes sees to what the lane names
		} else if first = unlessLeft(first); first == nil {
			// The broker counts for its messages now.
			crashpoint.At("leave-write")
			s.files.LaneLeft(t.laneAt, t.Info.Topic)
			crashpoint.At("leave-placed")
			t.writing, t.laneAt = false, 0
			t.letGo()
		}
	}
	_, err := s.broker.CallUntil(ctx, protocol.OpTopicLeave, protocol.TopicLeave{Role: protocol.RoleNameOpen, Opening: opening}, nil)
	if first == nil {
		first = fault.UnlessLost(unlessLeft(err))
	}
	if last {
		t.closeGroups()
	}
	return first
}

// CloseForAll closes the topic for every session.
func (t *Topic) CloseForAll(ctx context.Context) error {
	_, err := t.set.broker.Call(ctx, protocol.OpTopicClose, t.ref(), nil)
	return err
}
