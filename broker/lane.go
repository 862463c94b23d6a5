package broker

import (
	"fmt"

	"github.com/baton-ipc/baton/broker/pages"
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// lane is one writer's ring in one topic. It lies in its session's file, also
// when the broker has adopted it.
type lane struct {
	topic  *topic
	number uint32
	pages  *pages.Pages
	offset uint64
	state  uint32
	// incarnation stands in the lane's record from its listing until nobody may read
	// the lane any more. No other lane of this instance ever has it.
	incarnation uint64
	view        shm.Lane
	// kept are the messages of an adopted lane: what each made the broker's row
	// count, which is what its retirement counts down.
	kept  map[uint64][]uint32
	ended uint64 // of an adopted lane: when nothing more was sent, CLOCK_MONOTONIC
}

// stamp returns the time of message i: what its writer says, but no time to come.
func (l *lane) stamp(i uint64) uint64 {
	until := l.ended
	if until == 0 {
		until = sys.Monotonic()
	}
	return min(l.view.Stamp(i), until)
}

// liveLane finds the lane that a session writes in the topic.
func (t *topic) liveLane(p *pages.Pages) *lane {
	for _, l := range t.lanes {
		if l.pages == p && l.state == protocol.LaneLive {
			return l
		}
	}
	return nil
}

// nextNumber returns the number of the message that comes behind the lane's head.
func (l *lane) nextNumber() uint64 { return l.view.Head() + 1 }

// opTopicWrite makes the session a writer, with a lane ready in its own file.
func (b *Broker) opTopicWrite(s *session, r *protocol.TopicWrite) (any, []*sys.FD, error) {
	t, _, err := b.findTopic(s, r.TopicRef)
	if err != nil {
		return nil, nil, err
	}
	have := t.liveLane(s.Pages)
	switch {
	case t.kind == protocol.TopicKindName:
		return nil, nil, protocol.Errorf(protocol.CodeInvalid, "use name.set", "only the broker writes %s", t)
	case t.closed:
		return nil, nil, closedError(t)
	case have != nil && have.offset == r.Offset:
		// Asked again, because the answer was lost.
		return protocol.TopicWriteReply{Lane: have.number, Incarnation: have.incarnation, Peers: b.peers(t)}, nil, nil
	case have != nil:
		return nil, nil, protocol.Errorf(protocol.CodeInvalid, "use the lane that it has", "this session writes %s already", t)
	}
	if err := b.checkLane(s, t, r.Offset); err != nil {
		return nil, nil, err
	}
	view, err := shm.NewLane(s.Session.Region, r.Offset, t.slots, t.stride)
	if err != nil {
		return nil, nil, err
	}
	// Whoever reads the lane must meet no hole; where the client has reserved it,
	// as it must, this does nothing.
	if err := s.Session.FD.Reserve(int64(r.Offset), int64(protocol.LaneBytes(t.slots, t.stride))); err != nil {
		return nil, nil, pages.NoMemory(err, "a lane")
	}
	number, err := t.freeLane()
	if err != nil {
		return nil, nil, err
	}
	crashpoint.At("broker-lane-reset")
	l := &lane{topic: t, number: number, pages: s.Pages, offset: r.Offset, state: protocol.LaneLive, view: view}
	b.addLane(l)
	crashpoint.At("broker-lane-listed")
	b.changed(t)
	return protocol.TopicWriteReply{Lane: number, Incarnation: l.incarnation, Peers: b.peers(t)}, nil, nil
}

func closedError(t *topic) error {
	return protocol.Errorf(protocol.CodeClosed, "open a topic of another name, or wait until all have left it", "%s is closed", t)
}

// checkLane refuses a lane outside its place in the session file, or over
// another.
func (b *Broker) checkLane(s *session, t *topic, offset uint64) error {
	bytes := protocol.LaneBytes(t.slots, t.stride)
	if offset%protocol.PageBytes != 0 || offset < protocol.SessionLanes || offset > protocol.SessionBytes ||
		bytes > protocol.SessionBytes-offset {
		return protocol.Errorf(protocol.CodeInvalid, "give a page-aligned place among the lanes",
			"a lane of %d bytes at %d is outside the session file's lanes", bytes, offset)
	}
	for l := range b.lanesIn[s.Pages] {
		have := protocol.LaneBytes(l.topic.slots, l.topic.stride)
		if offset < l.offset+have && l.offset < offset+bytes {
			return protocol.Errorf(protocol.CodeInvalid, "give a place that no other lane of the session has",
				"a lane at %d would lie over the one at %d", offset, l.offset)
		}
	}
	return nil
}

// freeLane returns the lane number that comes round next, with its claims in every
// group ready: a group is promised all of a lane that joins after it.
func (t *topic) freeLane() (uint32, error) {
	full := protocol.Errorf(protocol.CodeTooMany, "use several topics", "%s has %d writers already", t, len(t.lanes))
	for range protocol.MaxLanes {
		n := t.nextLane
		t.nextLane = (t.nextLane + 1) % protocol.MaxLanes
		if t.lanes[n] != nil {
			continue
		}
		switch err := t.resetClaims(n); err {
		case nil:
			return n, nil
		case errUsedUp:
			full = errUsedUp
		default:
			return 0, err
		}
	}
	return 0, full
}

func (t *topic) resetClaims(lane uint32) error {
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
func (b *Broker) addLane(l *lane) {
	t := l.topic
	l.incarnation = b.store.Record.NextSerial()
	t.lanes[l.number] = l
	b.listLane(l)
	b.store.Record.Topic(t.index).Lane(l.number).Store(record.Lane{
		Serial: l.pages.Serial, Offset: l.offset, Slot: l.pages.Slot, State: l.state, Incarnation: l.incarnation})
	b.store.Record.Topic(t.index).SetLaneCount(uint32(len(t.lanes)))
}

func (b *Broker) setLaneState(l *lane, state uint32) {
	l.state = state
	b.store.Record.Topic(l.topic.index).Lane(l.number).SetState(state)
}

// listLane notes a lane in a session's file, which it keeps.
func (b *Broker) listLane(l *lane) {
	if b.lanesIn[l.pages] == nil {
		b.lanesIn[l.pages] = map[*lane]struct{}{}
	}
	b.lanesIn[l.pages][l] = struct{}{}
	l.pages.Use()
}

func (b *Broker) unlistLane(l *lane) {
	if _, listed := b.lanesIn[l.pages][l]; !listed {
		return
	}
	delete(b.lanesIn[l.pages], l)
	if len(b.lanesIn[l.pages]) == 0 {
		delete(b.lanesIn, l.pages)
	}
	l.pages.Unuse()
}

// dropLane takes a lane out of its topic: what it keeps is un-named and counted
// down. With its incarnation its place is the writer's again; the event says so to a
// writer that lives. The caller calls changed.
func (b *Broker) dropLane(l *lane) {
	t := l.topic
	for i := range l.kept {
		b.retire(l, i)
	}
	if l.state == protocol.LaneAdopted {
		if b.adopted[t]--; b.adopted[t] <= 0 {
			delete(b.adopted, t)
		}
	}
	b.understood(l)
	t.gone = min(t.gone+l.view.Head(), protocol.MaxSafeInt)
	t.leaveLane(l)
	crashpoint.At("broker-lane-ending")
	b.store.Record.Topic(t.index).Lane(l.number).End()
	crashpoint.At("broker-lane-cleared")
	b.setLaneState(l, protocol.LaneClosed)
	b.store.Record.Topic(t.index).Lane(l.number).Free()
	crashpoint.At("broker-lane-dropped")
	delete(t.lanes, l.number)
	b.store.Record.Topic(t.index).SetLaneCount(uint32(len(t.lanes)))
	b.unlistLane(l)
	if s := b.slots[l.pages.Slot]; s != nil && s.Pages == l.pages && !s.ended {
		s.event(func(p *pending) { p.trim = true })
	}
	b.store.DropRemains(l.pages)
}

// retire un-names a message of an adopted lane, then counts down what it named.
//
// SYNC slot-seq: un-named before counted down, as by any writer.
func (b *Broker) retire(l *lane, i uint64) {
	l.view.Unname(i) // MODEL lanes:adopt-retire
	crashpoint.At("broker-retired")
	for _, index := range l.kept[i] {
		b.memory.Drop(index)
	}
	delete(l.kept, i)
}

func (l *lane) String() string {
	return fmt.Sprintf("lane %d of %s (session %d)", l.number, l.topic, l.pages.Serial)
}
