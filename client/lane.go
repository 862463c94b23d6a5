package client

import (
	"sync/atomic"

	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// lane is the lane of a session in a topic, as it is mapped here to be read. But for before,
// which its maker sets, it is never changed: of a lane in another state there is another.
type lane struct {
	laneRecord
	ring   shm.Lane
	record *uint64   // the incarnation in the lane's record
	bell   *shm.Bell // of the writer
	peer   *peer     // whose mapping they look through
	before uint64    // its head when the first view was made: what a reader begins behind
}

// newLane maps the lane of a record in the file of its session.
func newLane(of topicRecord, l laneRecord, q *peer, bell *shm.Bell, info *protocol.TopicInfo) (*lane, error) {
	ring, err := shm.NewLane(q.file.Region, l.offset, info.Slots, info.Stride)
	if err != nil {
		return nil, err
	}
	return &lane{l, ring, of.incarnation(l.number), bell, q, 0}, nil
}

// as is the same lane with what a later look at its record says.
func (l *lane) as(now laneRecord) *lane {
	if l.laneRecord == now {
		return l
	}
	other := *l
	other.laneRecord = now
	return &other
}

// current tells whether the lane is still there. Once it is not, its place may be
// another lane's, of this topic or any other, and what is read there means nothing.
//
// SYNC lane-incarnation: behind the second look at a slot, and behind the base of the
// claims; the broker clears it before the place may be used anew, so that it is seen
// cleared by a process that has seen something of another lane.
func (l *lane) current() bool { return atomic.LoadUint64(l.record) == l.incarnation }

// firstIn returns the oldest message whose slot none up to head has taken over.
func (l *lane) firstIn(head uint64) uint64 {
	if n := l.ring.Slots(); head > n {
		return head - n + 1
	}
	return 1
}
