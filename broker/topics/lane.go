package topics

import (
	"fmt"
	"time"

	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Lane is one writer's ring in one topic. It lies in its session's file, also
// when the broker has adopted it.
type Lane struct {
	Topic  *Topic
	Number uint32
	File   *sessionfiles.SessionFile
	View   shm.Lane
	offset uint64
	state  uint32
	// incarnation is in the lane's record from its listing until the lane must not be read any
	// more. No other lane of this instance ever has the same.
	incarnation uint64
	// kept are the messages of an adopted lane: what each made the broker's refcounts
	// count, which is what dropKept counts down.
	kept  map[uint64][]uint32
	ended uint64 // of an adopted lane: when nothing more was sent, CLOCK_MONOTONIC
	// holding is the item that kept its sender from sending more when that was last looked at, 0: none; and since when.
	holding      uint64
	holdingSince time.Time
	asked        uint64 // of a deleted topic: sum of the messages that its writer was asked to count down
}

// stamp returns the time of message i, as its writer gives it, but no later than now.
func (l *Lane) stamp(i uint64) uint64 {
	until := l.ended
	if until == 0 {
		until = sys.Monotonic()
	}
	return min(l.View.Stamp(i), until)
}

// liveLane finds the lane that a session writes in the topic.
func (ts *Topics) liveLane(t *Topic, p *sessionfiles.SessionFile) *Lane {
	for l := range ts.lanesIn[p] {
		if l.Topic == t && l.state == protocol.LaneLive {
			return l
		}
	}
	return nil
}

// nextNumber returns the number of the message that comes after the lane's head.
func (l *Lane) nextNumber() uint64 { return l.View.Head() + 1 }

// Write makes the session a writer, with a lane ready in its own file. last is as of [memory.Memory.Grant].
func (ts *Topics) Write(s *Party, r *protocol.TopicWrite, last bool) (reply protocol.TopicWriteReply, err error) {
	t, _, err := ts.findTopic(s, r.TopicRef)
	if err != nil {
		return reply, err
	}
	have := ts.liveLane(t, s.SessionFile)
	switch {
	case t.kind == protocol.TopicKindName:
		return reply, protocol.Errorf(protocol.CodeInvalid, "use name.set", "only the broker writes %s", t)
	case t.closed && !t.mayReopen():
		return reply, closedError(t)
	case have != nil && have.offset == r.Offset:
		// Asked again, because the answer was lost.
		return protocol.TopicWriteReply{Lane: have.Number, Incarnation: have.incarnation}, nil
	case have != nil:
		return reply, protocol.Errorf(protocol.CodeInvalid, "use the lane that it has", "this session writes %s already", t)
	}
	if err := ts.checkLane(s, t, r.Offset); err != nil {
		return reply, err
	}
	if err := ts.memory.CheckLane(s.SessionFile, protocol.LaneBytes(t.slots, t.stride), last); err != nil {
		return reply, err
	}
	view, err := shm.NewLane(s.File.Region, r.Offset, t.slots, t.stride)
	if err != nil {
		return reply, err
	}
	// A reader of the lane must meet no hole. This does nothing where the client has
	// reserved the pages, as it must.
	if err := s.File.FD.Reserve(int64(r.Offset), int64(protocol.LaneBytes(t.slots, t.stride))); err != nil {
		return reply, sessionfiles.NoMemory(err, "a lane")
	}
	if t.closed {
		ts.reopen(s, t)
	}
	number, err := ts.freeLane(t)
	if err != nil {
		return reply, err
	}
	crashpoint.At("broker-lane-reset")
	l := &Lane{Topic: t, Number: number, File: s.SessionFile, offset: r.Offset, state: protocol.LaneLive, View: view}
	ts.addLane(l)
	crashpoint.At("broker-lane-listed")
	ts.lanesChanged(t)
	return protocol.TopicWriteReply{Lane: number, Incarnation: l.incarnation}, nil
}

func closedError(t *Topic) error {
	return protocol.Errorf(protocol.CodeClosed, "open one of another name, or wait until all that had it open when it was closed have left it", "%s is closed", t)
}

// checkLane refuses a lane outside its place in the session file, or over
// another.
func (ts *Topics) checkLane(s *Party, t *Topic, offset uint64) error {
	bytes := protocol.LaneBytes(t.slots, t.stride)
	if offset%protocol.PageBytes != 0 || offset < protocol.SessionLanes || offset > protocol.SessionBytes ||
		bytes > protocol.SessionBytes-offset {
		return protocol.Errorf(protocol.CodeInvalid, "give a page-aligned place among the lanes",
			"a lane of %d bytes at %d is outside the session file's lanes", bytes, offset)
	}
	for l := range ts.lanesIn[s.SessionFile] {
		have := protocol.LaneBytes(l.Topic.slots, l.Topic.stride)
		if offset < l.offset+have && l.offset < offset+bytes {
			return protocol.Errorf(protocol.CodeInvalid, "give a place that no other lane of the session has",
				"a lane at %d would lie over the one at %d", offset, l.offset)
		}
	}
	return nil
}

// freeLane returns the lowest lane number that is free, with its claims in every
// group ready: a group is promised all of a lane that joins after it.
func (ts *Topics) freeLane(t *Topic) (uint32, error) {
	full := protocol.Errorf(protocol.CodeTooMany, "use several topics", "%s has %d writers already", t, len(t.lanes))
	for n := t.nextLane; n < protocol.MaxLanes; n++ {
		if t.lanes[n] != nil {
			continue
		}
		if err := ts.store.Reserve(record.LanePlace(t.index, n)); err != nil {
			return 0, err
		}
		switch err := t.resetClaims(n); err {
		case nil:
			t.nextLane = n + 1
			return n, nil
		case errUsedUp:
			full = errUsedUp
		default:
			return 0, err
		}
	}
	return 0, full
}

func (t *Topic) resetClaims(lane uint32) error {
	for _, g := range t.groups {
		if g != nil {
			if err := g.reset(t, lane, 1); err != nil {
				return err
			}
		}
	}
	return nil
}

// addLane lists a lane, under an incarnation of its own.
func (ts *Topics) addLane(l *Lane) {
	t := l.Topic
	l.incarnation = ts.store.Record.NextSerial()
	t.lanes[l.Number] = l
	ts.listLane(l)
	ts.store.Record.Topic(t.index).Lane(l.Number).Store(record.Lane{
		Serial: l.File.Serial, Offset: l.offset, Slot: l.File.Slot, State: l.state, Incarnation: l.incarnation})
}

func (ts *Topics) setLaneState(l *Lane, state uint32) {
	l.state = state
	ts.store.Record.Topic(l.Topic.index).Lane(l.Number).SetState(state)
}

// listLane notes a lane in a session's file, which it keeps.
func (ts *Topics) listLane(l *Lane) {
	if ts.lanesIn[l.File] == nil {
		ts.lanesIn[l.File] = map[*Lane]struct{}{}
	}
	ts.lanesIn[l.File][l] = struct{}{}
	if l.File != ts.store.Own {
		ts.memory.AddLane(l.File, protocol.LaneBytes(l.Topic.slots, l.Topic.stride))
	}
	l.File.Use()
}

func (ts *Topics) unlistLane(l *Lane) {
	if _, listed := ts.lanesIn[l.File][l]; !listed {
		return
	}
	if l.File != ts.store.Own {
		ts.memory.SubLane(l.File, protocol.LaneBytes(l.Topic.slots, l.Topic.stride))
	}
	delete(ts.lanesIn[l.File], l)
	if len(ts.lanesIn[l.File]) == 0 {
		delete(ts.lanesIn, l.File)
	}
	l.File.Unuse()
}

// dropLane takes a lane out of its topic: what it keeps is un-named and counted down. Once its
// incarnation is cleared, its place is the writer's again; a living writer is notified by an
// event. The caller calls changed.
func (ts *Topics) dropLane(l *Lane) {
	t := l.Topic
	for i := range l.kept {
		ts.dropKept(l, i)
	}
	if l.state == protocol.LaneAdopted {
		if ts.adopted[t]--; ts.adopted[t] <= 0 {
			delete(ts.adopted, t)
		}
	}
	ts.understood(l)
	if t.function != nil {
		delete(t.function.begun, l)
	}
	t.leaveLane(l) // MODEL reuse:leave
	crashpoint.At("broker-lane-ending")
	ts.store.Record.Topic(t.index).Lane(l.Number).End()
	crashpoint.At("broker-lane-cleared")
	ts.setLaneState(l, protocol.LaneClosed)
	crashpoint.At("broker-lane-closed")
	// After the lane's end: a reader that still has the lane counts what it missed there.
	t.gone, t.goneBytes = safe(t.gone+l.View.Head()), safe(t.goneBytes+safe(l.View.Total()))
	ts.store.Record.Topic(t.index).SetGone(t.gone, t.goneBytes)
	ts.store.Record.Topic(t.index).Lane(l.Number).Free()
	crashpoint.At("broker-lane-dropped")
	delete(t.lanes, l.Number)
	t.nextLane = min(t.nextLane, l.Number)
	used := ts.store.Record.Topic(t.index).UsedLanes()
	for used > 0 && t.lanes[used-1] == nil {
		used--
	}
	ts.store.Record.Topic(t.index).SetUsedLanes(used)
	ts.unlistLane(l)
	if s := ts.parties[l.File]; s != nil {
		s.sent, s.sentBytes = safe(s.sent+l.View.Head()), safe(s.sentBytes+safe(l.View.Total()))
		s.client.Trim()
	}
	ts.store.DropRemains(l.File)
}

// dropKept un-names a message of an adopted lane, then counts down what it named.
//
// SYNC slot-seq: un-named before counted down, as by any writer.
func (ts *Topics) dropKept(l *Lane, i uint64) {
	l.View.Unname(i) // MODEL lanes:adopt-drop
	crashpoint.At("broker-kept-dropped")
	for _, index := range l.kept[i] {
		ts.memory.Drop(index)
	}
	delete(l.kept, i)
}

func (l *Lane) String() string {
	return fmt.Sprintf("lane %d of %s (session %d)", l.Number, l.Topic, l.File.Serial)
}
