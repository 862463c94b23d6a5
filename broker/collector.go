package broker

import (
	"slices"
	"time"

	"github.com/baton-ipc/baton/protocol"
)

const (
	careSoonest = 20 * time.Millisecond
	careLatest  = 500 * time.Millisecond
)

// careSoon makes the broker look after what the dead left: storages that nobody
// holds any more, messages that all have seen. It looks again and again while
// there is any, less often while nothing changes.
func (b *Broker) careSoon() {
	if b.memory.Orphans() == 0 && len(b.adopted) == 0 {
		return
	}
	if b.caretaker != nil && b.careDelay == careSoonest {
		return // it looks soon, and not later because ever more sessions end
	}
	b.careDelay = careSoonest
	b.caretaker.Cancel()
	b.caretaker = b.clock.After(b.careDelay, b.care)
}

func (b *Broker) care() {
	b.caretaker = nil
	progress := b.retireAdopted()
	progress = b.memory.Collect() || progress
	if b.memory.Orphans() == 0 && len(b.adopted) == 0 {
		return
	}
	b.careDelay = min(2*b.careDelay, careLatest)
	if progress {
		b.careDelay = careSoonest
	}
	b.caretaker = b.clock.After(b.careDelay, b.care)
}

// retireAdopted lets go of what the dead sent and nobody needs any more.
func (b *Broker) retireAdopted() (progress bool) {
	for t := range b.adopted {
		if t.kind == protocol.TopicKindQueue || b.moved(t) {
			progress = b.retireIn(t) || progress
		}
	}
	return progress
}

// moved tells whether anything was sent since the last look. For a lossless
// topic with groups it cannot tell: what counts there is what was taken.
func (b *Broker) moved(t *topic) bool {
	if t.lossless {
		for _, g := range t.groups {
			if g != nil {
				return true
			}
		}
	}
	sum := uint64(1)
	for _, l := range t.lanes {
		if l.pages.There() {
			sum += l.view.Head()
		}
	}
	was := t.seen
	t.seen = sum
	return was != sum
}

// retireIn retires messages of a topic's adopted lanes: of a queue those that
// are done, else those that every group is done with and that depth newer ones
// follow, by stamp, in all lanes together.
func (b *Broker) retireIn(t *topic) (progress bool) {
	newest := uint64(0)
	if t.kind != protocol.TopicKindQueue {
		newest = t.oldestKept()
	}
	left := false
	for _, l := range t.lanes {
		if l.state != protocol.LaneAdopted {
			continue
		}
		for i := range l.kept {
			if t.kind != protocol.TopicKindQueue && l.stamp(i) >= newest || !l.doneByAll(i) {
				continue
			}
			b.retire(l, i)
			progress = true
		}
		if _, unread := b.unread[l]; len(l.kept) == 0 && !unread {
			b.dropLane(l)
			left = true
		}
	}
	if left {
		b.changed(t)
		b.leftAlone(t)
	}
	return progress
}

// doneByAll tells whether every group is finished with a message.
//
// SYNC claim: a group's DONE came after its member held the message.
func (l *lane) doneByAll(i uint64) bool {
	for _, g := range l.topic.groups {
		if g == nil {
			continue
		}
		if a, ok := g.area(l.number); !ok || !a.Done(i) {
			return false
		}
	}
	return true
}

// oldestKept returns the stamp of the depth-th newest message of the topic, 0
// when there are fewer: what is older may go.
func (t *topic) oldestKept() uint64 {
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
func (l *lane) appendStamps(stamps []uint64, n uint64) []uint64 {
	if !l.pages.There() {
		return stamps
	}
	head := l.view.Head()
	for i := head; i > 0 && head-i < min(n, l.view.Slots()); i-- {
		if stamp := l.stamp(i); l.view.Has(i) {
			stamps = append(stamps, stamp)
		}
	}
	return stamps
}
