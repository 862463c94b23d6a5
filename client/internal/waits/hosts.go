package waits

import (
	"context"
	"time"
)

// AfterHosts is how long the answer of the broker is waited for when the time of what other hosts are asked is over: it tells
// more than a deadline.
const AfterHosts = 2 * time.Second

// SecondsForHosts is how long the broker may take for what other hosts are asked; 0: the call has no deadline.
func SecondsForHosts(ctx context.Context) float64 {
	end, has := ctx.Deadline()
	if !has {
		return 0
	}
	left := time.Until(end)
	return max(left-min(left/10, AfterHosts), time.Millisecond).Seconds()
}
