package waits

import (
	"time"

	"github.com/baton-ipc/baton/internal/sys"
)

const (
	// maxSpin is what a sleep and a wake cost: spinning longer cannot pay.
	maxSpin = 50 * time.Microsecond
	// maxRest is how many waits sleep at once when spinning has brought nothing again
	// and again.
	maxRest = 63
)

// Spinner learns from waits whether spinning would have seen their end. What counts
// is how long a wait lasted until it was answered, not how far apart answers come:
// two processes that sleep while each waits for the other answer late because of
// that, and would else never find out that they need not sleep.
type Spinner struct {
	began  uint64 // when the wait that is under way began to spin; 0: none has
	rest   int    // waits that sleep at once
	futile int    // as many there were after the last one that spun without a result
}

// Budget tells for how long the wait that begins is to spin.
func (s *Spinner) Budget() time.Duration { return s.budgetAt(sys.Monotonic()) }

func (s *Spinner) budgetAt(now uint64) time.Duration {
	if s.rest > 0 {
		s.rest--
		return 0
	}
	s.began = now
	return maxSpin
}

// Happened notes when what was waited for did, by this thread's own clock or by the stamp of
// its sender; without a wait that spun it tells nothing.
func (s *Spinner) Happened(at uint64) {
	if s.began == 0 {
		return
	}
	if at > s.began && at-s.began > uint64(maxSpin) {
		s.futile = min(2*s.futile+1, maxRest)
	} else {
		s.futile = 0
	}
	s.began, s.rest = 0, s.futile
}

// GaveUp notes that what was waited for did not happen.
func (s *Spinner) GaveUp() { s.Happened(^uint64(0)) }
