package sys

import (
	"time"

	"golang.org/x/sys/unix"
)

// ThreadTime is how long the calling thread has run so far; 0 where the kernel does not say.
// A caller that compares two readings keeps its thread meanwhile.
func ThreadTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
