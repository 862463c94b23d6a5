package client

import (
	"time"

	"github.com/baton-ipc/baton/protocol"
)

// compareEvery is how often a client that maps anything of others compares it with the
// broker's records, although no event asks for it: an event may be lost with a
// connection.
const compareEvery = 5 * time.Second

// compare finds what the broker has taken back: segments that are mapped here and
// recorded no more, lanes that were left and are listed no more, and the files of
// sessions that are over. A broker that is away takes nothing back.
func (c *Client) compare() {
	if c.link.isAway() {
		return
	}
	p := c.pages
	var gone []uint64
	c.mu.Lock()
	for serial, e := range c.segments {
		if !e.own && p.segmentSerial(e.Index) != serial {
			gone = append(gone, serial)
		}
	}
	p.lanes.compare(p.listed)
	c.mu.Unlock()
	c.trim(gone)
	c.forgetEnded()
	c.handOverOwed()
	for _, t := range c.got.forgetDeleted() {
		t.close()
	}
}

// segmentSerial returns the serial of the segment that the broker has now at an index.
func (p *pages) segmentSerial(index uint32) uint64 {
	return p.broker.Load64(segmentRecordAt(index) + protocol.SegmentSerial)
}

// listed tells whether the broker still lists a lane.
//
// SYNC lane-incarnation: cleared when nothing of the lane is to be read any more; then
// its place is this session's.
func (p *pages) listed(l leftLane) bool {
	return p.broker.Load64(laneRecordAt(l.topic, l.number)+protocol.LaneRecordIncarnation) == l.incarnation
}

// findLane finds where a topic lists a lane of the own session file.
func (p *pages) findLane(topic uint32, at uint64) (leftLane, bool) {
	for n := range p.topicRecord(topic).lanesEnd() {
		record := laneRecordAt(topic, n)
		if p.broker.Load64(record+protocol.LaneRecordSerial) == p.serial && p.broker.Load64(record+protocol.LaneRecordOffset) == at {
			l := leftLane{topic, n, p.broker.Load64(record + protocol.LaneRecordIncarnation)}
			return l, l.incarnation != 0
		}
	}
	return leftLane{}, false
}

// laneLeft notes that the broker has taken over a lane, or takes it back where it is no
// longer needed.
func (c *Client) laneLeft(at uint64, topic uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if of, ok := c.pages.findLane(topic, at); ok {
		c.pages.lanes.leave(at, of)
	} else {
		c.pages.lanes.give(at)
	}
}
