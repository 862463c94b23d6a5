package lanes

import (
	"context"
	"runtime"
	"time"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Backpressure is a wait for a free slot.
type Backpressure struct {
	look func() bool // whether there may be some
	spin time.Duration
}

// Begin takes the writer's turn, which end gives up, and joins as a writer. waited: it has
// waited for room before.
func (t *Topic) Begin(ctx context.Context, waited bool) error {
	if err := t.mu.Take(ctx); err != nil {
		return t.DeadlineError(ctx, err, protocol.CodeFull)
	}
	if waited {
		t.spin.Happened(sys.Monotonic())
	}
	err := t.set.life.Ended()
	closed := err == nil && t.isClosed()
	if closed && !t.mayReopen() {
		err = fault.Closed(t.Title())
	}
	if err == nil {
		err = t.DeadlineError(ctx, t.startWriting(ctx), protocol.CodeFull)
	}
	if closed && fault.Code(err) == protocol.CodeClosed && t.set.life.Ended() == nil {
		err = fault.Closed(t.Title())
	}
	if err != nil {
		t.mu.End()
		return err
	}
	t.lane.PrepareWrite(t.head + 2)
	if depth := uint64(t.Info.Depth); t.head >= depth {
		t.lane.PrepareUnname(t.head + 1 - depth)
	}
	return nil
}

// mayReopen tells whether the broker is to be asked to open a closed topic again, as it does for the
// first sender of another run. Callers have the turn.
func (t *Topic) mayReopen() bool {
	return !t.writing && t.Info.Name != "" && t.Info.Kind != protocol.KindFunction && t.isThere() && !t.isDeleted()
}

// End gives the writer's turn up.
func (t *Topic) End() { t.mu.End() }

// SlotCapacity is how many bytes a slot has for what describes a message. Callers have the turn.
func (t *Topic) SlotCapacity() int { return t.lane.Capacity() }

// Await waits for room, outside of the turn.
func (t *Topic) Await(ctx context.Context, wait *Backpressure) error {
	if t.AwaitBeside(ctx, wait, func() bool { return false }) == nil {
		return nil
	}
	if t.mu.Try() { // else another's waits teach the spinner
		t.spin.GaveUp()
		t.mu.End()
	}
	return t.Timeout(ctx, protocol.CodeFull, "no room for another message")
}

// AwaitBeside waits for room, or until something else says so, outside of the turn.
func (t *Topic) AwaitBeside(ctx context.Context, wait *Backpressure, also func() bool) error {
	crashpoint.At("room-waiting")
	return t.set.waits.Wait(ctx, wait.spin, func() bool { return wait.look() || also() })
}

// Publish publishes a message: refcount up, slot, seq, head; then readers are rung; then the
// message that leaves is un-named and counted down. counted are the storages that the slot
// names. sent: readers have it, whatever the error. Callers have the turn, and room.
func (t *Topic) Publish(head *shm.SlotHead, words []uint64, counted []uint32) (sent bool, err error) {
	m := t.set.memory
	for k, index := range counted {
		if err := m.CountUp(index); err != nil { // MODEL lanes:send-up
			for _, up := range counted[:k] {
				m.Drop(up)
			}
			return false, err
		}
		crashpoint.At("send-counting")
	}
	crashpoint.At("send-counted")
	i := t.head + 1
	t.lane.Write(i, head, words)
	t.lane.SetStamp(i, sys.Monotonic()) // as late as can be: readers have the slot's lines again soon
	t.lane.AddTotal(head.Bytes)
	crashpoint.At("send-written")
	t.lane.Publish(i) // MODEL lanes:send-publish
	crashpoint.At("send-published")
	t.head = i
	slot := i & (t.lane.Slots() - 1)
	t.kept[slot] = append(t.kept[slot][:0], counted...)
	// SYNC waiting: published before this fence; a waiter sets its bits, fences, and
	// looks again. The fence serves the looks at version and state as well: a reader
	// that finds the topic closed looks for messages after that, and sees this one
	// unless the state is closed here, too.
	//
	// SYNC undecided: after the publish: it is set here, or a broker that is being stopped, which adopts
	// the lane once this client has acknowledged the notice `stopped`, sees the message.
	shm.Fence() // MODEL wake:fence-ringer
	undecided, ended := t.set.life.Undecided(), t.isClosed()
	crashpoint.At("send-ring")
	t.active.Mark(t.laneNo)
	t.ring()
	// What leaves holds no reader up; those that sleep were rung first.
	if i > uint64(t.Info.Depth) {
		t.withdraw(i - uint64(t.Info.Depth))
		m.RecycleOne() // here it delays no reader of this message
	}
	if undecided != nil {
		if err := undecided.Wait(); err != nil {
			return true, err
		}
	}
	if err := t.set.life.Ended(); err != nil { // perhaps no reader looks there any more
		return true, err
	}
	if ended {
		return true, fault.Closed(t.Title())
	}
	return true, nil
}

// startWriting joins as a writer, with a lane of its own. Callers hold t.mu.
func (t *Topic) startWriting(ctx context.Context) error {
	if t.writing {
		return nil
	}
	s := t.set
	bytes := protocol.LaneBytes(t.Info.Slots, t.Info.Stride)
	at := t.laneAt // of a request whose answer did not come, which is made again
	if at == 0 {
		var err error
		at, err = s.files.Lanes.Take(bytes)
		if err != nil {
			if over := s.life.Ended(); over != nil {
				return over // its file is closed with the client
			}
			return err
		}
	}
	lane, err := shm.NewLane(s.files.Session.Region, at, t.Info.Slots, t.Info.Stride)
	if err == nil {
		lane.Init(t.Info.ID)
		crashpoint.At("lane-reserved")
		var ok protocol.TopicWriteReply
		if _, err = s.broker.Call(ctx, protocol.OpTopicWrite, protocol.TopicWrite{TopicRef: t.ref(), Offset: at}, &ok); err == nil {
			t.lane, t.laneNo, t.laneAt, t.laneInc = lane, ok.Lane, at, ok.Incarnation
			crashpoint.At("lane-joined")
			t.writing, t.head, t.tail = true, 0, 1
			t.kept = make([][]uint32, t.Info.Slots)
			if t.Info.Kind == protocol.KindFunction {
				t.unwanted = make(unwanted, t.Info.Slots)
			}
			return nil
		}
	}
	if fault.Uncertain(err) {
		t.laneAt = at
		return err
	}
	t.laneAt = 0
	s.files.Lanes.Give(at)
	return err
}

// ring wakes readers that sleep until a message comes: all that look on, and of each group one. Callers
// hold t.mu, have published, and then fenced.
//
// The groups are those of this moment: one that came meanwhile may be promised the message.
func (t *Topic) ring() {
	t.all.Ring()
	n := int(t.record.GroupsEnd())
	for len(t.shares) < n {
		t.shares = append(t.shares, share{WaitSet: t.waits.Group(uint32(len(t.shares)))})
	}
	for k := range t.shares[:n] {
		s := &t.shares[k]
		s.RingOne(&s.last)
	}
}

// withdraw un-names message i, if that has not happened yet, then counts down
// what it named. Callers hold t.mu.
func (t *Topic) withdraw(i uint64) {
	if i < t.tail {
		return
	}
	t.tail = i + 1
	t.unname(i)
}

// unname withdraws message i of those that are at or behind the tail, in any order; done again it
// changes nothing. The caller holds t.mu.
func (t *Topic) unname(i uint64) {
	slot := i & (t.lane.Slots() - 1)
	t.lane.Unname(i) // MODEL lanes:send-unname
	crashpoint.At("send-unnamed")
	for _, index := range t.kept[slot] {
		t.set.memory.Drop(index) // MODEL lanes:send-drop
		crashpoint.At("send-dropping")
	}
	t.kept[slot] = t.kept[slot][:0]
}

// withdrawDone gives back messages that a queue is finished with, and those that an operator
// has purged, also behind one that a taker still holds.
func (t *Topic) withdrawDone() {
	if !t.mu.Try() {
		return // a sender at work does it itself
	}
	defer t.mu.End()
	if !t.writing {
		return
	}
	view, queue := t.groups.Load(), t.isQueue()
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
// queue's messages are of no use then; a topic keeps its last ones
// for late readers.
func (t *Topic) withdrawLocked(v *groupsView) {
	if !t.isQueue() {
		return
	}
	for t.tail <= t.head && t.done(v, t.tail) {
		t.withdraw(t.tail)
	}
}

// done tells whether every group is finished with message i of the session's own lane. A queue has a
// group always, also when a broker is just about to list it.
func (t *Topic) done(v *groupsView, i uint64) bool {
	if !v.whole || len(v.groups) == 0 && t.isQueue() {
		return false
	}
	for _, k := range v.groups {
		g, err := shm.NewGroupLane(k.file.Region, t.laneNo, t.Info.Slots)
		if err == nil && !g.Done(i) {
			return false
		}
	}
	runtime.KeepAlive(v)
	return true
}

// ReserveSlot makes sure of a slot for another message. Where messages are overwritten there
// always is: no slot is kept for a reader. In a lossless topic the one of depth before it has
// to be done with by every group, and each has to be known before a slot is used again; it
// returns what to wait for where that is not so. within, from 1 to the depth, is how many messages
// may be there that are not done with. Callers have the turn.
func (t *Topic) ReserveSlot(ctx context.Context, within uint32) (wait *Backpressure, err error) {
	if t.Info.Overwrite {
		return nil, nil
	}
	// Read before the view: what changes after it must end the wait. While the
	// broker is away the view may be older than this version.
	version, epoch := t.version(), t.set.broker.Epoch()
	view, err := t.groupsNow(ctx)
	if err != nil {
		return nil, t.DeadlineError(ctx, err, protocol.CodeFull)
	}
	t.withdrawLocked(view)
	for _, before := range [...]uint64{uint64(t.Info.Depth), uint64(within)} {
		if i := t.head + 1 - before; t.head+1 > before && !t.done(view, i) && !t.forsake(view, i) { // MODEL group:wait-done
			return t.untilDone(view, i, version, epoch), nil
		}
	}
	return nil, nil
}

func (t *Topic) untilDone(view *groupsView, i, version, epoch uint64) *Backpressure {
	unwanted := t.unwanted
	return &Backpressure{func() bool {
		return t.done(view, i) || unwanted.has(i) || t.version() != version || t.isClosed() || t.set.broker.Epoch() != epoch
	}, t.spin.Budget()}
}
