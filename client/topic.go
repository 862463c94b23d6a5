package client

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// topic is what a session has of one topic, queue or name: the lane that it
// writes, once it writes, and who else takes part.
type topic struct {
	c    *Client
	info protocol.TopicInfo

	// What the broker says of it, and the words of that which every poll reads.
	record              topicRecord
	versionWord, idWord *uint64
	stateWord           *uint32

	waits  shm.Waits
	all    shm.WaitSet // of the readers rung at each message
	active shm.Active  // lanes that have sent of late

	viewMu  turn // one renewal at a time
	lanes   atomic.Pointer[lanesView]
	rewound atomic.Bool                // a reader began with messages that were kept
	groups  atomic.Pointer[groupsView] // never nil

	mu      turn // the writer's turn; guards what follows
	lane    shm.Lane
	laneNo  uint32
	laneAt  uint64
	laneInc uint64 // incarnation
	writing bool
	head    uint64
	tail    uint64     // oldest message not withdrawn
	kept    [][]uint32 // by slot: indices that its message counts
	spin    spinner
	users   []uint64 // numbers of the openings: one for each handle of this process that is open
	out     outgoing
	shares  []share // of the groups, by number
}

// share is the wait set of a group, and whose turn it was there.
type share struct {
	shm.WaitSet
	last uint32
}

// openTopic opens or makes a topic or name at the broker, once for this process. request is
// made with the number of the opening.
func (c *Client) openTopic(ctx context.Context, op string, request func(opening uint64) any) (*topic, error) {
	if err := c.openMu.take(ctx); err != nil { // an open and the last close of one topic must not cross
		return nil, err
	}
	defer c.openMu.end()
	var info protocol.TopicInfo
	opening := c.openings.Add(1)
	if _, err := c.call(ctx, op, request(opening), &info); err != nil {
		if uncertain(err) { // a broker may have done it, and the next one count it
			c.undo(protocol.OpTopicLeave, protocol.TopicLeave{Role: protocol.RoleNameOpen, Opening: opening})
		}
		return nil, err
	}
	if info.Topic >= protocol.MaxTopics || info.Slots == 0 || info.Slots > 2*protocol.MaxDepth || info.Stride < protocol.SlotSize || info.Depth == 0 || info.Depth >= info.Slots {
		return nil, protocol.Errorf(protocol.CodeProtocol, "use a broker of this version", "topic %q came with impossible sizes", info.Name)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.topics[info.ID]
	if t == nil {
		r, waits := c.pages.topicRecord(info.Topic), c.pages.bells.Waits(info.Topic)
		t = &topic{c: c, info: info, mu: newTurn(), viewMu: newTurn(), record: r, versionWord: r.r.Word(protocol.TopicVersion),
			idWord: r.r.Word(protocol.TopicID), stateWord: r.r.Word32(protocol.TopicState), waits: waits, all: waits.All(), active: waits.Active()}
		t.groups.Store(&groupsView{})
		c.topics[info.ID] = t
	}
	t.users = append(t.users, info.Opening)
	return t, nil
}

func (t *topic) ref() protocol.TopicRef { return protocol.TopicRef{Topic: t.info.Topic, ID: t.info.ID} }

// version is the broker's count of changes of the sessions that take part: of lanes in its
// low half, of groups in its high one.
//
// SYNC topic-version: who sends in a lossless topic reads it behind the fence of the message
// before; the broker changes it and fences before it looks where a new group begins. One of
// the two sees the other.
func (t *topic) version() uint64 { return atomic.LoadUint64(t.versionWord) }

// isClosed tells from the broker's page whether the topic may not be sent to.
func (t *topic) isClosed() bool {
	return atomic.LoadUint64(t.idWord) != t.info.ID || atomic.LoadUint32(t.stateWord) != protocol.TopicOpen
}

// isDeleted tells from the broker's page whether the topic is a name that is not set, or was
// deleted.
func (t *topic) isDeleted() bool {
	return t.record.flags()&protocol.TopicDeleted != 0
}

// startWriting joins as a writer, with a lane of its own. Callers hold t.mu.
func (t *topic) startWriting(ctx context.Context) error {
	if t.writing {
		return nil
	}
	c := t.c
	bytes := protocol.LaneBytes(t.info.Slots, t.info.Stride)
	at := t.laneAt // of a request whose answer did not come, which is made again
	if at == 0 {
		var err error
		c.mu.Lock()
		at, err = c.pages.lanes.take(bytes)
		c.mu.Unlock()
		if err != nil {
			if over := c.live(); over != nil {
				return over // its file is closed with the client
			}
			return err
		}
	}
	lane, err := shm.NewLane(c.pages.session.Region, at, t.info.Slots, t.info.Stride)
	if err == nil {
		lane.Init(t.info.ID)
		crashpoint.At("lane-reserved")
		var ok protocol.TopicWriteReply
		if _, err = c.call(ctx, protocol.OpTopicWrite, protocol.TopicWrite{TopicRef: t.ref(), Offset: at}, &ok); err == nil {
			t.lane, t.laneNo, t.laneAt, t.laneInc = lane, ok.Lane, at, ok.Incarnation
			crashpoint.At("lane-joined")
			t.writing, t.head, t.tail = true, 0, 1
			t.kept = make([][]uint32, t.info.Slots)
			return nil
		}
	}
	if uncertain(err) {
		t.laneAt = at
		return err
	}
	t.laneAt = 0
	c.mu.Lock()
	c.pages.lanes.give(at)
	c.mu.Unlock()
	return err
}

// send publishes a value in the own lane, waiting for room in a lossless topic. While
// it waits the turn is others'.
func (t *topic) send(ctx context.Context, v any, flags uint32, opts []SendOption) error {
	for waited := false; ; waited = true {
		wait, err := t.attempt(ctx, waited, v, flags, opts)
		if wait == nil {
			return err
		}
		crashpoint.At("room-waiting")
		if t.c.hub.wait(ctx, wait.spin, wait.look) != nil {
			if t.mu.try() { // else another's waits teach the spinner
				t.spin.gaveUp()
				t.mu.end()
			}
			return t.timeout(ctx, protocol.CodeFull, "no room for another message")
		}
	}
}

// noRoom is a wait for room.
type noRoom struct {
	look func() bool // whether there may be some
	spin time.Duration
}

// attempt is one turn of a send, which ends with a wait if there is no room.
func (t *topic) attempt(ctx context.Context, waited bool, v any, flags uint32, opts []SendOption) (*noRoom, error) {
	if err := t.mu.take(ctx); err != nil {
		return nil, t.late(ctx, err, protocol.CodeFull)
	}
	defer t.mu.end()
	defer t.out.finish()
	if waited {
		t.spin.happened(sys.Monotonic())
	}
	look, err := t.sendLocked(ctx, v, flags, opts)
	if look == nil {
		return nil, err
	}
	return &noRoom{look, t.spin.budget()}, nil
}

// sendLocked publishes: row up, slot, seq, head; then readers are rung; then the
// message that leaves is un-named and counted down. Without room it returns what to
// wait for.
func (t *topic) sendLocked(ctx context.Context, v any, flags uint32, opts []SendOption) (look func() bool, err error) {
	if err := t.c.live(); err != nil {
		return nil, err
	}
	if t.isClosed() {
		return nil, errClosed(t.title())
	}
	if err := t.startWriting(ctx); err != nil {
		return nil, t.late(ctx, err, protocol.CodeFull)
	}
	c, o := t.c, &t.out
	t.lane.PrepareWrite(t.head + 2)
	if depth := uint64(t.info.Depth); t.head >= depth {
		t.lane.PrepareUnname(t.head + 1 - depth)
	}
	o.reset(flags)
	if err := c.compose(o, v, opts); err != nil {
		return nil, err
	}
	if look, err := t.makeRoom(ctx); look != nil || err != nil {
		return look, err
	}
	if o.devices != nil {
		if o.order, err = c.devices.orderSend(ctx, o.devices, &o.options); err != nil {
			return nil, err
		}
	}
	words, head, err := c.place(ctx, o, t.lane.Room())
	if err != nil {
		return nil, err
	}
	for k, index := range o.counted {
		if err := c.countUp(index); err != nil { // MODEL lanes:send-up
			for _, up := range o.counted[:k] {
				c.drop(up)
			}
			return nil, err
		}
		crashpoint.At("send-counting")
	}
	crashpoint.At("send-counted")
	i := t.head + 1
	t.lane.Write(i, &head, words)
	t.lane.SetStamp(i, sys.Monotonic()) // as late as can be: readers have the slot's lines again soon
	t.lane.AddTotal(head.Bytes)
	crashpoint.At("send-written")
	t.lane.Publish(i) // MODEL lanes:send-publish
	crashpoint.At("send-published")
	t.head = i
	slot := i & (t.lane.Slots() - 1)
	t.kept[slot] = append(t.kept[slot][:0], o.counted...)
	// SYNC waiting: published before this fence; who waits sets its bits, fences, and
	// looks again. The fence serves the looks at version and state as well: a reader
	// who finds the topic closed looks for messages after that, and sees this one
	// unless the state is closed here, too.
	//
	// SYNC limbo: behind the publish: it is set here, or a broker that is being stopped, which
	// takes the lane over when it has heard, sees the message.
	shm.Fence() // MODEL wake:fence-ringer
	limbo, ended := c.limbo.Load(), t.isClosed()
	crashpoint.At("send-ring")
	t.active.Mark(t.laneNo)
	t.ring()
	// What leaves holds nobody up; those who sleep were rung first.
	if i > uint64(t.info.Depth) {
		t.withdraw(i - uint64(t.info.Depth))
		c.pool.RecycleOne() // here it delays nobody who waits for this message
	}
	c.handovers.Add(1)
	c.bytesSent.Add(o.bytes)
	if limbo != nil {
		if err := limbo.wait(); err != nil {
			return nil, err
		}
	}
	if err := c.live(); err != nil { // perhaps no reader looks there any more
		return nil, err
	}
	if ended {
		return nil, errClosed(t.title())
	}
	return nil, nil
}

// ring wakes who sleeps until a message comes: all who look on, and of each group one. Callers
// hold t.mu, have published, and then fenced.
//
// The groups are those of this moment: one that came meanwhile may be promised the message.
func (t *topic) ring() {
	t.all.Ring()
	n := int(t.record.groupsEnd())
	for len(t.shares) < n {
		t.shares = append(t.shares, share{WaitSet: t.waits.Group(uint32(len(t.shares)))})
	}
	for k := range t.shares[:n] {
		s := &t.shares[k]
		s.RingOne(&s.last)
	}
}

// withdraw un-names message i, if that has not happened yet, then counts down
// what it named. All before it are withdrawn. Callers hold t.mu.
func (t *topic) withdraw(i uint64) {
	if i < t.tail {
		return
	}
	t.tail = i + 1
	t.unname(i)
}

// unname withdraws message i of those that are at or behind the tail, in any order; done again it
// changes nothing. Callers hold t.mu.
func (t *topic) unname(i uint64) {
	slot := i & (t.lane.Slots() - 1)
	t.lane.Unname(i) // MODEL lanes:send-unname
	crashpoint.At("send-unnamed")
	for _, index := range t.kept[slot] {
		t.c.drop(index) // MODEL lanes:send-drop
		crashpoint.At("send-dropping")
	}
	t.kept[slot] = t.kept[slot][:0]
}

// withdrawDone gives back messages that a queue is finished with, and those that an operator
// has purged, also behind one that a taker still holds.
func (t *topic) withdrawDone() {
	if !t.mu.try() {
		return // a sender at work does it itself
	}
	defer t.mu.end()
	if !t.writing {
		return
	}
	view, queue := t.groups.Load(), t.info.Kind == protocol.KindQueue
	for i := t.tail; i <= t.head; i++ {
		switch {
		case t.lane.Has(i) && !(queue && t.done(view, i)):
		case i == t.tail:
			t.withdraw(i)
		default:
			t.unname(i)
		}
	}
}

// withdrawLocked un-names, from the oldest on, what every group is done with. A
// queue's messages are of no use to anybody then; a topic keeps its last ones
// for late readers.
func (t *topic) withdrawLocked(v *groupsView) {
	if t.info.Kind != protocol.KindQueue {
		return
	}
	for t.tail <= t.head && t.done(v, t.tail) {
		t.withdraw(t.tail)
	}
}

// done tells whether every group is finished with message i of the own lane. A queue has a
// group always, also when a broker is just about to list it.
func (t *topic) done(v *groupsView, i uint64) bool {
	if !v.whole || len(v.groups) == 0 && t.info.Kind == protocol.KindQueue {
		return false
	}
	for _, k := range v.groups {
		g, err := shm.NewGroupLane(k.file.Region, t.laneNo, t.info.Slots)
		if err == nil && !g.Done(i) {
			return false
		}
	}
	runtime.KeepAlive(v)
	return true
}

// makeRoom makes sure of room for another message. Where messages are overwritten there
// always is: no slot is kept for anybody. In a lossless topic the one of depth before it has
// to be done with by every group, and each has to be known before a slot is used again; it
// returns what to wait for where that is not so. Callers hold t.mu.
func (t *topic) makeRoom(ctx context.Context) (look func() bool, err error) {
	if t.info.Overwrite {
		return nil, nil
	}
	// Read before the view: what changes behind it must end the wait. While the
	// broker is away the view may be older than this version.
	version, epoch := t.version(), t.c.epoch.Load()
	view, err := t.groupsNow(ctx)
	if err != nil {
		return nil, t.late(ctx, err, protocol.CodeFull)
	}
	t.withdrawLocked(view)
	depth := uint64(t.info.Depth)
	if t.head+1 <= depth || t.done(view, t.head+1-depth) { // MODEL group:wait-done
		return nil, nil
	}
	i := t.head + 1 - depth
	return func() bool {
		return t.done(view, i) || t.version() != version || t.isClosed() || t.c.epoch.Load() != epoch
	}, nil
}

// leaving is how long a Close waits for the broker.
const leaving = 5 * time.Second

// behind runs what ends a use, and waits a while for it. It goes on behind that: were
// the broker, or the one that comes after it, not told, the use would last as long as
// the client.
func (t *topic) behind(end func(context.Context) error) error {
	ended := make(chan error, 1)
	go func() { ended <- end(context.Background()) }()
	ctx, cancel := context.WithTimeout(context.Background(), leaving)
	defer cancel()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	if t.c.brokerAway() {
		return protocol.Errorf(protocol.CodeBrokerLost, "the next one is told", "no broker was there to hear of the end of a use of %s", t.title())
	}
	return contextError(ctx, "waiting for the broker to end a use of "+t.title())
}

// unlessLeft is an error of leaving, unless it says that this was done before: by a
// broker that went away before it had answered. Nothing else ends what is left.
func unlessLeft(err error) error {
	if errors.Is(err, protocol.ErrNotFound) {
		return nil
	}
	return err
}

// close ends one use by this process; with the last one its lane is handed to
// the broker, which keeps what was sent for those who have not seen it. It goes on
// behind an error that says that time ran out.
func (t *topic) close() error { return t.behind(t.leave) }

// leave waits as long as ctx lasts. Who opens the topic meanwhile waits behind it, and
// finds it left.
func (t *topic) leave(ctx context.Context) error {
	c := t.c
	if err := t.mu.take(ctx); err != nil {
		return err
	}
	defer t.mu.end()
	if err := c.openMu.take(ctx); err != nil {
		return err
	}
	defer c.openMu.end()
	c.mu.Lock()
	opening := t.users[len(t.users)-1]
	t.users = t.users[:len(t.users)-1]
	last := len(t.users) == 0
	c.mu.Unlock()
	if last {
		// Only now: what its lane names is the client's to count down until the broker does so, also
		// where the client is closed or lost meanwhile.
		defer func() {
			if t.kept == nil {
				c.mu.Lock()
				delete(c.topics, t.info.ID)
				c.mu.Unlock()
			}
		}()
	}
	var first error
	if last && t.laneAt != 0 { // writing, or maybe so: a request to join whose answer did not come
		_, first = c.callUntil(ctx, protocol.OpTopicLeave, protocol.TopicLeave{TopicRef: t.ref(), Role: protocol.RoleNameWrite, Offset: t.laneAt}, nil)
		if !t.writing && errors.Is(first, protocol.ErrNotFound) { // the request did not come to this broker
			c.mu.Lock()
			c.pages.lanes.give(t.laneAt)
			c.mu.Unlock()
			t.laneAt, first = 0, nil
		} else if protocolCode(first) == protocol.CodeSessionLost {
			first = nil // emptyLanes sees to what the lane names
		} else if first = unlessLeft(first); first == nil {
			// The broker counts for its messages now.
			crashpoint.At("leave-write")
			c.laneLeft(t.laneAt, t.info.Topic)
			crashpoint.At("leave-placed")
			t.writing, t.laneAt = false, 0
			t.letGo()
		}
	}
	_, err := c.callUntil(ctx, protocol.OpTopicLeave, protocol.TopicLeave{Role: protocol.RoleNameOpen, Opening: opening}, nil)
	if first == nil {
		first = unlessLost(unlessLeft(err))
	}
	if last {
		t.closeGroups()
	}
	return first
}
