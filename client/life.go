package client

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/baton-ipc/baton/protocol"
)

// awaitBroker is how long a call waits for the next broker at most.
const awaitBroker = 30 * time.Second

// life is how far a session has come: it goes on, or a broker that is being stopped decides
// on it, or it is over, closed here or lost. Each step but the limbo is taken once.
type life struct {
	over    atomic.Bool // closed, or lost
	closed  atomic.Bool
	lost    atomic.Pointer[protocol.Error]
	limbo   atomic.Pointer[limbo]
	evicted atomic.Bool
}

// isOver tells whether the session was closed or is lost.
func (l *life) isOver() bool { return l.over.Load() }

// isClosed tells whether the client was closed.
func (l *life) isClosed() bool { return l.closed.Load() }

// whyLost is why the session is lost; nil: it is not.
func (l *life) whyLost() *protocol.Error { return l.lost.Load() }

// inLimbo is the limbo that the session is in; nil: none.
func (l *life) inLimbo() *limbo { return l.limbo.Load() }

// evict notes that the broker has said that an operator ends this session.
func (l *life) evict() { l.evicted.Store(true) }

// isEvicted tells whether it has.
func (l *life) isEvicted() bool { return l.evicted.Load() }

// ended returns ErrClosed once the client was closed, ErrSessionLost once its session
// is lost.
func (l *life) ended() error {
	if !l.over.Load() {
		return nil
	}
	if err := l.lost.Load(); err != nil && !l.closed.Load() {
		return err
	}
	return errClosed("client")
}

// refused is why something is refused: that the session has ended, where it has.
// For then the own row may look full, as the broker has cleared it, and what is
// dropped after that lowers it below zero; and what a lease of the session
// protected is gone.
func (l *life) refused(why error) error {
	if ended := l.ended(); ended != nil {
		return ended
	}
	return why
}

// close ends the session because the client is closed.
func (l *life) close() {
	l.closed.Store(true)
	l.over.Store(true)
}

// lose ends the session for another reason. The first call counts, and tells so.
func (l *life) lose(why *protocol.Error) bool {
	if !l.lost.CompareAndSwap(nil, why) {
		return false
	}
	l.over.Store(true)
	return true
}

// limbo is the state of a session from when its client has heard that the broker is being
// stopped until the connection has ended: the broker notes meanwhile that the session is
// closed. Where it does not, because its time for that is over or it dies, the session goes
// on.
type limbo struct {
	told    sync.WaitGroup
	decided chan struct{}
}

// hear begins the limbo, in which this client allocates, recycles and counts nothing. tell
// sees to that, and has the broker know; it runs by itself.
//
// SYNC limbo: set before the broker hears of it; pairs with countUp.
func (l *life) hear(tell func()) {
	in := &limbo{decided: make(chan struct{})}
	if l.limbo.CompareAndSwap(nil, in) {
		in.told.Go(tell)
	}
}

// goOn ends the limbo, if there is one, of a session that was not closed, or that is lost.
// resume undoes what hear has paused.
func (l *life) goOn(resume func()) {
	in := l.limbo.Load()
	if in == nil {
		return
	}
	in.told.Wait() // what it pauses is resumed here
	if l.limbo.CompareAndSwap(in, nil) {
		resume()
		close(in.decided)
	}
}

// wait returns when it is decided.
func (l *limbo) wait() error {
	select {
	case <-l.decided:
		return nil
	case <-time.After(awaitBroker):
		return protocol.Errorf(protocol.CodeBrokerLost, "try again", "the broker is being stopped")
	}
}
