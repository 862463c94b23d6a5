package broker

import "time"

const (
	careSoonest = 20 * time.Millisecond
	careLatest  = 500 * time.Millisecond
)

// careSoon makes the broker look after what the dead left: storages that nobody
// holds any more, messages that all have seen. It looks again and again while
// there is any, less often while nothing changes.
func (b *Broker) careSoon() {
	if b.memory.Orphans() == 0 && b.topics.Adopted() == 0 {
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
	progress := b.topics.Retire()
	progress = b.memory.Collect() || progress
	if b.memory.Orphans() == 0 && b.topics.Adopted() == 0 {
		return
	}
	b.careDelay = min(2*b.careDelay, careLatest)
	if progress {
		b.careDelay = careSoonest
	}
	b.caretaker = b.clock.After(b.careDelay, b.care)
}
