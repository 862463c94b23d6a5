package record

import "time"

// Formerly is a time of CLOCK_REALTIME that a previous broker wrote. The clock may have been set
// since. So the result is never later than now, and its age grows evenly.
func Formerly(ns uint64) time.Time {
	now := time.Now()
	return now.Add(-max(now.Sub(time.Unix(0, int64(ns))), 0))
}
