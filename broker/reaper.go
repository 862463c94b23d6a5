package broker

import "time"

const (
	reapSoonest = 20 * time.Millisecond
	reapLatest  = 500 * time.Millisecond
	// reapTime bounds how long the reaper keeps the mutex at a time: requests wait for it.
	reapTime = 300 * time.Microsecond
)

// reapSoon makes the reaper look at what dead sessions left (storages that are no longer
// held, messages that all readers have seen) and at closed sessions. The reaper looks again
// while there is any, less often while nothing changes.
func (b *Broker) reapSoon() {
	if !b.hasReaping() {
		return
	}
	if b.reaper != nil && b.reapDelay == reapSoonest {
		return // it looks soon; a further end must not put that off
	}
	b.reapDelay = reapSoonest
	b.reaper.Cancel()
	b.reaper = b.clock.After(b.reapDelay, b.reap)
}

// hasReaping tells whether there is anything for the reaper.
func (b *Broker) hasReaping() bool {
	return b.memory.Orphans() > 0 || b.topics.Adopted() > 0 || b.topics.Left() > 0 || b.topics.Draining() > 0 || len(b.closed) > 0 || len(b.unheard) > 0 || len(b.forked) > 0 || len(b.away) > 0
}

// someOf looks at sessions, in any order and until the time is over, and tells whether it
// found any to end.
func someOf(sessions map[*session]struct{}, end func(*session) bool) (progress bool) {
	began := time.Now()
	for s := range sessions {
		progress = end(s) || progress
		if time.Since(began) > reapTime {
			return progress
		}
	}
	return progress
}

// endWithoutChild ends a session whose process ended in a fork, once no child may count what
// its refcounts count.
func (b *Broker) endWithoutChild(s *session) bool {
	if b.childInherits(s) {
		return false
	}
	b.endSession(s)
	return true
}

func (b *Broker) reap() {
	b.reaper = nil
	progress, began := false, time.Now()
	jobs := [...]func() bool{
		func() bool { return b.topics.DropKept(reapTime) },
		func() bool { return b.memory.ReclaimOrphans(reapTime) },
		func() bool { return b.topics.FreeLeft(reapTime) },
		func() bool { return b.topics.Drain(reapTime) },
		func() bool { return someOf(b.closed, b.endIfEmptyToo) },
		func() bool { return someOf(b.unheard, b.endIfLost) },
		func() bool { return someOf(b.forked, b.endWithoutChild) },
		func() bool { return someOf(b.away, b.endReplaced) },
	}
	for range jobs {
		progress = jobs[b.nextReap]() || progress
		b.nextReap = (b.nextReap + 1) % len(jobs)
		if time.Since(began) > reapTime {
			break // the next run begins after this job
		}
	}
	if !b.hasReaping() {
		return
	}
	b.reapDelay = min(2*b.reapDelay, reapLatest)
	if progress {
		b.reapDelay = reapSoonest
	}
	b.reaper = b.clock.After(b.reapDelay, b.reap)
}
