package client

import (
	"context"
	"sync/atomic"
)

// turn is a lock that is waited for with a context: under some of them the broker is
// asked, and who waits behind such a call has a deadline of his own.
type turn struct {
	state atomic.Int32
	ended chan struct{} // told of the end of a turn that somebody may wait for
}

const (
	turnFree    = 0
	turnTaken   = 1
	turnAwaited = 2
)

// newTurn makes a turn that nobody has.
func newTurn() turn { return turn{ended: make(chan struct{}, 1)} }

// try takes the turn if nobody has it.
func (t *turn) try() bool { return t.state.CompareAndSwap(turnFree, turnTaken) }

// take waits for the turn until ctx ends.
func (t *turn) take(ctx context.Context) error {
	if t.try() {
		return nil
	}
	for {
		// Who has it taken so may wake one for nothing at its end: others may wait too.
		if t.state.Swap(turnAwaited) == turnFree {
			return nil
		}
		select {
		case <-t.ended:
		case <-ctx.Done():
			return contextError(ctx, "waiting for another call that asks the broker")
		}
	}
}

// must takes the turn however long it lasts.
func (t *turn) must() {
	_ = t.take(context.Background()) // which never ends
}

// end gives the turn up.
func (t *turn) end() {
	if t.state.Swap(turnFree) == turnAwaited {
		select {
		case t.ended <- struct{}{}:
		default: // told already
		}
	}
}

// awaited tells whether somebody may wait for the turn.
func (t *turn) awaited() bool { return t.state.Load() == turnAwaited }
