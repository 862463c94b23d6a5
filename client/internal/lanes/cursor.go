package lanes

import (
	"github.com/baton-ipc/baton/client/internal/sessionfiles"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// cursor is a reader's place in one lane.
type cursor struct {
	*sessionfiles.Lane
	next  uint64
	lost  uint64
	group shm.GroupLane
	over  bool // the lane is no more; the next view says so, too
	aside bool // its next message cannot be taken now
	wait  waiting
}

// waiting is how long a lane's next message has been seen waiting: how often one of
// another lane was taken before it.
type waiting struct{ number, passed uint64 }

// see notes the message that the lane offers.
func (w *waiting) see(i uint64) {
	if w.number != i {
		*w = waiting{number: i}
	}
}

// before tells whether a message goes before another: the one with the smaller stamp.
// Stamps are what writers say. When a message is first seen, a lane has at most as many
// older ones as it has slots; one that was passed over more often than that waits for a
// writer that breaks the protocol, and goes first.
func (w *waiting) before(stamp uint64, than *waiting, other, most uint64) bool {
	if late := w.passed >= most; late != (than.passed >= most) {
		return late
	} else if late && w.passed != than.passed {
		return w.passed > than.passed
	}
	return stamp < other
}

// there tells whether the lane is still there, and notes if not: nothing is looked
// for in it then.
func (k *cursor) there() bool {
	k.over = k.over || !k.Current()
	return !k.over
}

// oldest returns the first message that the lane still has, or the next to come.
func (k *cursor) oldest() uint64 {
	head := k.Ring.Head()
	for i := k.FirstIn(head + 1); i <= head; i++ {
		if k.Ring.Has(i) {
			return i
		}
	}
	return head + 1
}

// pending tells, without a call, whether the lane has something for the reader.
func (k *cursor) pending(grouped bool) bool {
	if k.over {
		return false
	}
	if grouped {
		_, _, ok := k.group.Next(k.Ring.Head())
		return ok
	}
	return k.Ring.Has(k.next) || !k.caughtUp() && k.Ring.Head() >= k.next
}

// caughtUp tells, when slot next does not hold its message, that it has never
// been there, without a look at the head, whose line the writer changes at the
// very moment that is waited for. Messages leave in their order, but for those of a
// queue, at which no reader looks on: where the one before still is, next cannot have left. The broker may leave gaps in the lane
// of the dead, which has nothing new anyway. A reader that has caught up waits for the slot:
// it is fetched ahead.
func (k *cursor) caughtUp() bool {
	if k.State != protocol.LaneLive || k.next <= 1 || !k.Ring.Has(k.next-1) {
		return false
	}
	k.Ring.FetchSecond(k.next)
	return true
}
