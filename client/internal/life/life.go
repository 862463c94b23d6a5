package life

import (
	"sync/atomic"
	"time"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/protocol"
)

// AwaitBroker is how long a call waits for the next broker at most.
const AwaitBroker = 30 * time.Second

// Life is how far a session has come: it goes on, or a broker that is being stopped decides
// on it, or it is over, closed here or lost. Each step but the undecided state is taken once.
type Life struct {
	over      atomic.Bool // closed, or lost
	closed    atomic.Bool
	lost      atomic.Pointer[protocol.Error]
	undecided atomic.Pointer[Undecided]
	evicted   atomic.Bool
}

// IsOver tells whether the session was closed or is lost.
func (l *Life) IsOver() bool { return l.over.Load() }

// IsClosed tells whether the client was closed.
func (l *Life) IsClosed() bool { return l.closed.Load() }

// WhyLost is why the session is lost; nil: it is not.
func (l *Life) WhyLost() *protocol.Error { return l.lost.Load() }

// Undecided is the undecided state of the session; nil: it is in none.
func (l *Life) Undecided() *Undecided { return l.undecided.Load() }

// Evict notes that the broker has said that an operator ends this session.
func (l *Life) Evict() { l.evicted.Store(true) }

// IsEvicted tells whether it has.
func (l *Life) IsEvicted() bool { return l.evicted.Load() }

// Ended returns ErrClosed once the client was closed, ErrSessionLost once its session
// is lost, or ErrPermissionDenied where its user may not use the broker any more.
func (l *Life) Ended() error {
	if !l.over.Load() {
		return nil
	}
	if err := l.lost.Load(); err != nil && !l.closed.Load() {
		return err
	}
	return fault.Closed("client")
}

// Refused is why something is refused: that the session has ended, where it has.
// For then the session's own refcounts may look full, as the broker has cleared them, and what is
// dropped after that lowers it below zero; and what a lease of the session
// protected is gone.
func (l *Life) Refused(why error) error {
	if ended := l.Ended(); ended != nil {
		return ended
	}
	return why
}

// Close ends the session because the client is closed.
func (l *Life) Close() {
	l.closed.Store(true)
	l.over.Store(true)
}

// Lose ends the session for another reason. The first call counts, and tells so.
func (l *Life) Lose(why *protocol.Error) bool {
	if !l.lost.CompareAndSwap(nil, why) {
		return false
	}
	l.over.Store(true)
	return true
}

// Undecided is the state of a session from when its client has read the notice `stopped`
// until the connection has ended: the broker notes meanwhile that the session is
// closed. Where it does not, because its time for that is over or it dies, the session goes
// on.
type Undecided struct {
	told    chan struct{} // closed once what Acknowledge starts is over
	decided chan struct{}
}

// Acknowledge begins the undecided state, in which this client allocates, recycles and counts nothing. tell
// sees to that, and acknowledges the notice `stopped`; it runs by itself.
//
// SYNC undecided: set before the broker learns of it; pairs with CountUp.
func (l *Life) Acknowledge(tell func()) {
	in := &Undecided{decided: make(chan struct{}), told: make(chan struct{})}
	if l.undecided.CompareAndSwap(nil, in) {
		go func() {
			defer close(in.told)
			tell()
		}()
	}
}

// GoOn ends the undecided state, if there is one, of a session that was not closed, or that is lost.
// resume undoes what Acknowledge has paused.
func (l *Life) GoOn(resume func()) {
	in := l.undecided.Load()
	if in == nil {
		return
	}
	<-in.told // what it pauses is resumed here
	if l.undecided.CompareAndSwap(in, nil) {
		resume()
		close(in.decided)
	}
}

// Wait returns when it is decided.
func (l *Undecided) Wait() error {
	select {
	case <-l.decided:
		return nil
	case <-time.After(AwaitBroker):
		return protocol.Errorf(protocol.CodeBrokerLost, "try again", "the broker is being stopped")
	}
}
