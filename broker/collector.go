package broker

import "time"

const (
	careSoonest = 20 * time.Millisecond
	careLatest  = 500 * time.Millisecond
	// careTime bounds how long the collector keeps the mutex at a time: requests wait for it.
	careTime = 700 * time.Microsecond
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
	return b.memory.Orphans() > 0 || b.topics.Adopted() > 0 || len(b.closed) > 0 || len(b.forked) > 0 || len(b.away) > 0
}

func (b *Broker) care() {
	b.caretaker = nil
	progress := b.topics.Retire()
	progress = b.memory.Collect(careTime) || progress
	progress = b.endEmpty() || progress
	for s := range b.forked {
		if !b.childInherits(s) {
			b.bury(s)
			progress = true
		}
	}
	for s := range b.away {
		progress = b.endReplaced(s) || progress
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
