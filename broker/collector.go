package broker

import "time"

const (
	careSoonest = 20 * time.Millisecond
	careLatest  = 500 * time.Millisecond
	// careTime bounds how long the collector keeps the mutex at a time: requests wait for it.
	careTime = 300 * time.Microsecond
)

// careSoon makes the broker look after what dead sessions left (storages that are no
// longer held, messages that all readers have seen) and after closed sessions. It looks
// again while there is any, less often while nothing changes.
func (b *Broker) careSoon() {
	if !b.hasCares() {
		return
	}
	if b.caretaker != nil && b.careDelay == careSoonest {
		return // it looks soon, and not later because ever more sessions end
	}
	b.careDelay = careSoonest
	b.caretaker.Cancel()
	b.caretaker = b.clock.After(b.careDelay, b.care)
}

// hasCares tells whether there is anything to look after.
func (b *Broker) hasCares() bool {
	return b.memory.Orphans() > 0 || b.topics.Adopted() > 0 || b.topics.Left() > 0 || b.topics.Draining() > 0 || len(b.closed) > 0 || len(b.forked) > 0 || len(b.away) > 0
}

// someOf looks after sessions, in any order and until the time is over, and tells whether it
// found any to end.
func someOf(sessions map[*session]struct{}, end func(*session) bool) (progress bool) {
	began := time.Now()
	for s := range sessions {
		progress = end(s) || progress
		if time.Since(began) > careTime {
			return progress
		}
	}
	return progress
}

// endWithoutChild ends a session whose process ended in a fork, once no child may count what
// its row counts.
func (b *Broker) endWithoutChild(s *session) bool {
	if b.childInherits(s) {
		return false
	}
	b.bury(s)
	return true
}

func (b *Broker) care() {
	b.caretaker = nil
	progress, began := false, time.Now()
	cares := [...]func() bool{
		func() bool { return b.topics.Retire(careTime) },
		func() bool { return b.memory.Collect(careTime) },
		func() bool { return b.topics.FreeLeft(careTime) },
		func() bool { return b.topics.Drain(careTime) },
		func() bool { return someOf(b.closed, b.endIfEmptyToo) },
		func() bool { return someOf(b.forked, b.endWithoutChild) },
		func() bool { return someOf(b.away, b.endReplaced) },
	}
	for range cares {
		progress = cares[b.nextCare]() || progress
		b.nextCare = (b.nextCare + 1) % len(cares)
		if time.Since(began) > careTime {
			break // the next time it begins behind this one
		}
	}
	if !b.hasCares() {
		return
	}
	b.careDelay = min(2*b.careDelay, careLatest)
	if progress {
		b.careDelay = careSoonest
	}
	b.caretaker = b.clock.After(b.careDelay, b.care)
}
