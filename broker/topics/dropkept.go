package topics

import (
	"slices"
	"time"

	"github.com/baton-ipc/baton/protocol"
)

// Adopted tells for how many topics the broker keeps messages of ended sessions.
func (ts *Topics) Adopted() int { return len(ts.adopted) }

// DropKept drops the messages of ended sessions that no reader needs any more, and tells
// whether it found any. When the time is over it stops after a lane; the next call
// goes on with others.
func (ts *Topics) DropKept(most time.Duration) (progress bool) {
	began := time.Now()
	for t := range ts.adopted {
		if !t.isQueue() && !ts.moved(t) {
			continue
		}
		found, all := ts.dropKeptIn(t, began, most)
		progress = found || progress
		if !all {
			t.seen = 0 // it is to be looked at again
			return progress
		}
	}
	return progress
}

// moved tells whether anything was sent since the last look. For a lossless topic with groups
// it is always true: what was taken counts there.
func (ts *Topics) moved(t *Topic) bool {
	if t.lossless {
		for _, g := range t.groups {
			if g != nil {
				return true
			}
		}
	}
	sum := uint64(1)
	for _, l := range t.lanes {
		if l.File.There() {
			sum += l.View.Head()
		}
	}
	was := t.seen
	t.seen = sum
	return was != sum
}

// keepsNothing tells whether no later reader has a message that every group is done with: of a queue, and of a private
// lossless topic, such as that for the replies to a caller. What a named one keeps is listed.
func (t *Topic) keepsNothing() bool {
	return t.isQueue() || t.lossless && t.token != "" && slices.ContainsFunc(t.groups[:], func(g *group) bool { return g != nil })
}

// dropKeptIn drops messages of a topic's adopted lanes. Of one that keeps nothing it drops those that are done.
// Of another it drops those that every group is done with and that are older, by stamp, than the
// depth newest messages of all lanes together.
func (ts *Topics) dropKeptIn(t *Topic, began time.Time, most time.Duration) (progress, all bool) {
	newest, keeps := uint64(0), !t.keepsNothing()
	if keeps {
		newest = t.oldestKept()
	}
	left, all, looked := false, true, 0
	for _, l := range t.lanes { // in any order
		if l.state != protocol.LaneAdopted {
			continue
		}
		if looked++; looked > 1 && time.Since(began) > most {
			all = false
			break
		}
		for i := range l.kept {
			if keeps && l.stamp(i) >= newest || !l.doneByAll(i) {
				continue
			}
			ts.dropKept(l, i)
			progress = true
		}
		if _, unread := ts.unread[l]; len(l.kept) == 0 && !unread {
			ts.dropLane(l)
			left = true
		}
	}
	if left {
		ts.lanesChanged(t)
		ts.removeIfUnused(t)
	}
	return progress, all
}

// doneByAll tells whether every group is finished with a message.
//
// SYNC claim: a group's DONE came after its member held the message.
func (l *Lane) doneByAll(i uint64) bool {
	_, done := l.openOrDone(i)
	return done
}

// openOrDone tells whether some group may still take a message, and whether every group is
// finished with it. Neither is so while members hold it unacknowledged. A group whose claims are
// not here counts as open.
func (l *Lane) openOrDone(i uint64) (open, done bool) {
	done = true
	for _, g := range l.Topic.groups {
		if g == nil {
			continue
		}
		a, ok := g.area(l.Number)
		if !ok || !a.Done(i) {
			done = false
			open = open || !ok || a.Open(i)
		}
	}
	return open, done
}

// oldestKept returns the stamp of the depth-th newest message of the topic, 0
// when there are fewer: what is older may go.
func (t *Topic) oldestKept() uint64 {
	var stamps []uint64
	for _, l := range t.lanes {
		stamps = l.appendStamps(stamps, uint64(t.depth))
	}
	if len(stamps) < int(t.depth) {
		return 0
	}
	slices.Sort(stamps)
	return stamps[len(stamps)-int(t.depth)]
}

// appendStamps adds the stamps of a lane's newest n messages.
func (l *Lane) appendStamps(stamps []uint64, n uint64) []uint64 {
	if !l.File.There() {
		return stamps
	}
	head := l.View.Head()
	for i := head; i > 0 && head-i < min(n, l.View.Slots()); i-- {
		if stamp := l.stamp(i); l.View.Has(i) {
			stamps = append(stamps, stamp)
		}
	}
	return stamps
}
