package broker

import "time"

// alarm is something to do later, with the broker's mutex held.
type alarm struct {
	timer *time.Timer
	off   bool
}

// after runs f with the mutex held when d has passed, unless it is cancelled or
// the broker ends before. The mutex is held by the caller.
func (b *Broker) after(d time.Duration, f func()) *alarm {
	a := &alarm{}
	a.timer = time.AfterFunc(d, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if a.off || b.closing {
			return
		}
		a.off = true
		f()
	})
	return a
}

// cancel makes sure that the alarm does not run any more. The mutex is held. A
// nil alarm is none.
func (a *alarm) cancel() {
	if a != nil {
		a.off = true
		a.timer.Stop()
	}
}
