package sessionfiles

import (
	"sync/atomic"

	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Lane is the lane of a session in a topic, as it is mapped here to be read. But for before,
// which its maker sets, it is never changed: of a lane in another state there is another.
type Lane struct {
	LaneRecord
	Ring   shm.Lane
	record *uint64   // the incarnation in the lane's record
	Bell   *shm.Bell // of the writer
	Peer   *Peer     // whose mapping they look through
	Before uint64    // its head when the first view was made: what a reader begins after
}

// NewLane maps the lane of a record in the file of its session.
func NewLane(of TopicRecord, l LaneRecord, q *Peer, bell *shm.Bell, info *protocol.TopicInfo) (*Lane, error) {
	ring, err := shm.NewLane(q.File.Region, l.offset, info.Slots, info.Stride)
	if err != nil {
		return nil, err
	}
	return &Lane{l, ring, of.incarnation(l.Number), bell, q, 0}, nil
}

// As is the same lane with what a later look at its record says.
func (l *Lane) As(now LaneRecord) *Lane {
	if l.LaneRecord == now {
		return l
	}
	other := *l
	other.LaneRecord = now
	return &other
}

// Current tells whether the lane is still there. Once it is not, its place may be
// another lane's, of this topic or any other, and what is read there means nothing.
//
// SYNC lane-incarnation: after the second look at a slot, and after the base of the
// claims; the broker clears it before the place may be used anew, so that it is seen
// cleared by a process that has seen something of another lane.
func (l *Lane) Current() bool { return atomic.LoadUint64(l.record) == l.Incarnation }

// FirstIn returns the oldest message whose slot none up to head has reused.
func (l *Lane) FirstIn(head uint64) uint64 {
	if n := l.Ring.Slots(); head > n {
		return head - n + 1
	}
	return 1
}
