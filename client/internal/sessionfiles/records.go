package sessionfiles

import (
	"bytes"
	"math/bits"
	"strings"
	"unicode"

	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Where records stand in the broker file.

func segmentRecordAt(index uint32) uint64 {
	return protocol.BrokerSegments + uint64(index)*protocol.SegmentRecordSize
}

func topicRecordAt(topic uint32) uint64 {
	return protocol.BrokerTopics + uint64(topic)*protocol.TopicRecordSize
}

func laneRecordAt(topic, number uint32) uint64 {
	return topicRecordAt(topic) + protocol.TopicLanes + uint64(number)*protocol.LaneRecordSize
}

// LaneRecord is a copy of the record of a lane.
type LaneRecord struct {
	Number      uint32
	Slot, State uint32
	Serial      uint64 // of the session in whose file it lies
	offset      uint64 // there
	Incarnation uint64
}

// GroupRecord says which group has a number.
type GroupRecord struct {
	Number uint32
	ID     uint64
}

// TopicRecord is what the broker says of a topic. It may change at any time: what is read of
// it in the midst of a change is left out, and its version differs at the next look.
type TopicRecord struct{ r shm.Region }

// TopicRecord returns the record of a topic.
func (p *Files) TopicRecord(topic uint32) TopicRecord {
	return TopicRecord{p.broker.Sub(topicRecordAt(topic), protocol.TopicRecordSize)}
}

// ID tells which topic the record is of.
func (t TopicRecord) ID() uint64 { return t.r.Load64(protocol.TopicID) }

// Flags are those of the topic.
func (t TopicRecord) Flags() uint32 { return t.r.Load32(protocol.TopicFlags) }

// Gone counts the messages of lanes that are no more.
func (t TopicRecord) Gone() uint64 { return t.r.Load64(protocol.TopicGone) }

// lanesEnd tells from which number on there are no lanes.
func (t TopicRecord) lanesEnd() uint32 {
	return min(t.r.Load32(protocol.TopicLanesEnd), protocol.MaxLanes)
}

// GroupsEnd is as lanesEnd.
func (t TopicRecord) GroupsEnd() uint32 {
	return min(t.r.Load32(protocol.TopicGroupsEnd), protocol.MaxGroups)
}

// incarnation returns where the broker says which lane has a number.
func (t TopicRecord) incarnation(lane uint32) *uint64 {
	return t.r.Word(protocol.TopicLanes + uint64(lane)*protocol.LaneRecordSize + protocol.LaneRecordIncarnation)
}

// lane copies the record of a lane; false where there is none, or it changes right now.
//
// SYNC lane-incarnation: the same before and after the rest was read.
func (t TopicRecord) lane(number uint32) (l LaneRecord, ok bool) {
	at := protocol.TopicLanes + uint64(number)*protocol.LaneRecordSize
	incarnation := t.r.Load64(at + protocol.LaneRecordIncarnation)
	if incarnation == 0 {
		return l, false
	}
	l = LaneRecord{number, t.r.Load32(at + protocol.LaneRecordSlot), t.r.Load32(at + protocol.LaneRecordState),
		t.r.Load64(at + protocol.LaneRecordSerial), t.r.Load64(at + protocol.LaneRecordOffset), incarnation}
	return l, l.Slot < protocol.MaxSessions && t.r.Load64(at+protocol.LaneRecordIncarnation) == incarnation
}

// Lanes copies the records of all lanes of which something may be left.
func (t TopicRecord) Lanes() (all []LaneRecord) {
	for n := range t.lanesEnd() {
		if l, ok := t.lane(n); ok && l.State != protocol.LaneClosed {
			all = append(all, l)
		}
	}
	return all
}

// Groups lists the groups.
func (t TopicRecord) Groups() (all []GroupRecord) {
	for n := range t.GroupsEnd() {
		if id := t.GroupID(n); id != 0 {
			all = append(all, GroupRecord{n, id})
		}
	}
	return all
}

// GroupID returns which group has a number, 0 for none.
func (t TopicRecord) GroupID(number uint32) uint64 {
	return t.r.Load64(protocol.TopicGroups + uint64(number)*protocol.GroupRecordSize + protocol.GroupID)
}

// Readers counts the sessions that read.
func (t TopicRecord) Readers() (n int) {
	for w := range uint64(protocol.BitmapWords) {
		n += bits.OnesCount64(t.r.Load64(protocol.TopicReaders + 8*w))
	}
	return n
}

// LastLeft is the name of the session that left last.
func (t TopicRecord) LastLeft() string {
	return textAt(t.r, protocol.TopicLastLeft, protocol.SessionNameBytes)
}

// senderName is what a session calls itself, as its file says to those that receive from it.
func senderName(session shm.Region) string {
	return textAt(session, protocol.SessionSender, protocol.SessionNameBytes)
}

// textAt copies a text to its NUL. Another process may have written it: what cannot be
// printed is replaced.
func textAt(r shm.Region, at, n uint64) string {
	b := bytes.Clone(r.Bytes(at, n))
	if end := bytes.IndexByte(b, 0); end >= 0 {
		b = b[:end]
	}
	return strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return unicode.ReplacementChar
		}
		return c
	}, string(b))
}

// SegmentSerial returns the serial of the segment that the broker has now at an index.
func (p *Files) SegmentSerial(index uint32) uint64 {
	return p.broker.Load64(segmentRecordAt(index) + protocol.SegmentSerial)
}

// Listed tells whether the broker still lists a lane.
//
// SYNC lane-incarnation: cleared when nothing of the lane is to be read any more; then
// its place is this session's.
func (p *Files) Listed(l LeftLane) bool {
	return p.broker.Load64(laneRecordAt(l.topic, l.number)+protocol.LaneRecordIncarnation) == l.incarnation
}

// findLane finds where a topic lists a lane of the session's own file.
func (p *Files) findLane(topic uint32, at uint64) (LeftLane, bool) {
	for n := range p.TopicRecord(topic).lanesEnd() {
		record := laneRecordAt(topic, n)
		if p.broker.Load64(record+protocol.LaneRecordSerial) == p.Serial && p.broker.Load64(record+protocol.LaneRecordOffset) == at {
			l := LeftLane{topic, n, p.broker.Load64(record + protocol.LaneRecordIncarnation)}
			return l, l.incarnation != 0
		}
	}
	return LeftLane{}, false
}

// LaneLeft notes that the broker has adopted a lane, or takes it back where it is no
// longer needed.
func (p *Files) LaneLeft(at uint64, topic uint32) {
	if of, ok := p.findLane(topic, at); ok {
		p.Lanes.leave(at, of)
	} else {
		p.Lanes.Give(at)
	}
}

// OnDevice tells from the broker's page whether a segment lies on a device.
func (p *Files) OnDevice(index uint32) bool {
	if index >= p.segmentsEnd() {
		return false
	}
	kind := p.broker.Load32(segmentRecordAt(index) + protocol.SegmentKind)
	return kind == protocol.KindCUDA || kind == protocol.KindCUDALegacy
}

// Granted lists the segments that the broker lists as this session's.
func (p *Files) Granted() (all []protocol.Return) {
	for i := range p.segmentsEnd() {
		at := segmentRecordAt(i)
		serial := p.broker.Load64(at + protocol.SegmentSerial)
		if serial != 0 && p.broker.Load64(at+protocol.SegmentOwnerSerial) == p.Serial {
			all = append(all, protocol.Return{Segment: i, Serial: serial})
		}
	}
	return all
}

// Words are those of the record that every poll reads.
func (t TopicRecord) Words() (version, id *uint64, state *uint32) {
	return t.r.Word(protocol.TopicVersion), t.r.Word(protocol.TopicID), t.r.Word32(protocol.TopicState)
}
