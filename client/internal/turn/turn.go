package turn

import (
	"context"
	"sync/atomic"

	"github.com/baton-ipc/baton/client/internal/fault"
)

// Turn is a lock that is waited for with a context: under some of them the broker is
// asked, and a goroutine that waits behind such a call has a deadline of its own.
type Turn struct {
	state atomic.Int32
	ended chan struct{} // notified of the end of a turn that a goroutine may wait for
}

const (
	turnFree    = 0
	turnTaken   = 1
	turnAwaited = 2
)

// New makes a turn that is free.
func New() Turn { return Turn{ended: make(chan struct{}, 1)} }

// Try takes the turn if it is free.
func (t *Turn) Try() bool { return t.state.CompareAndSwap(turnFree, turnTaken) }

// Take waits for the turn until ctx ends.
func (t *Turn) Take(ctx context.Context) error {
	if t.Try() {
		return nil
	}
	for {
		// A goroutine that took it so may wake one for nothing at its end: others may wait too.
		if t.state.Swap(turnAwaited) == turnFree {
			return nil
		}
		select {
		case <-t.ended:
		case <-ctx.Done():
			return fault.Context(ctx, "waiting for another call that asks the broker")
		}
	}
}

// Must takes the turn however long it lasts.
func (t *Turn) Must() {
	_ = t.Take(context.Background()) // which never ends
}

// End gives the turn up.
func (t *Turn) End() {
	if t.state.Swap(turnFree) == turnAwaited {
		select {
		case t.ended <- struct{}{}:
		default: // told already
		}
	}
}

// Awaited tells whether a goroutine may wait for the turn.
func (t *Turn) Awaited() bool { return t.state.Load() == turnAwaited }
