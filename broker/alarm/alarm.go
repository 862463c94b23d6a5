// Package alarm does things later, under the broker's mutex.
//
// Concurrency: every method is called, and every alarm runs, with that mutex held.
package alarm

import (
	"sync"
	"time"
)

// Clock makes alarms that run with one mutex held, until it is stopped.
type Clock struct {
	mu      sync.Locker
	stopped bool
}

// named is a mutex that is given the name of what is done while it is held.
type named interface{ Doing(func()) }

// NewClock makes a clock whose alarms take mu before they run.
func NewClock(mu sync.Locker) *Clock { return &Clock{mu: mu} }

// Stop makes sure that no alarm runs any more.
func (c *Clock) Stop() { c.stopped = true }

// Alarm is something to do later.
type Alarm struct {
	timer *time.Timer
	off   bool
}

// After runs f when d has passed, unless the alarm is cancelled or the clock is
// stopped before.
func (c *Clock) After(d time.Duration, f func()) *Alarm {
	a := &Alarm{}
	a.timer = time.AfterFunc(d, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if a.off || c.stopped {
			return
		}
		a.off = true
		if n, ok := c.mu.(named); ok {
			n.Doing(f)
		}
		f()
	})
	return a
}

// Cancel makes sure that the alarm does not run any more. A nil alarm is none.
func (a *Alarm) Cancel() {
	if a != nil {
		a.off = true
		a.timer.Stop()
	}
}
