package link

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/client/internal/life"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

// Link is a session's way to its broker: one connection after another. It knows what it
// takes to ask a broker and to find the next one, and nothing of what is asked.
type Link struct {
	life  *life.Life
	via   Place
	hello protocol.Hello // what each connection begins with
	event func(string)   // gets the events of the broker

	mu     sync.Mutex // guards what follows
	ctl    *Control
	next   chan struct{} // closed when ctl is replaced; a new one each time
	closed bool

	epoch atomic.Uint64
	away  atomic.Uint64 // since when there is no connection, ns; 0: there is one
}

// New makes the link of a session to the broker of a place. event is called on the goroutine
// that reads replies.
func New(l *life.Life, via Place, hello protocol.Hello, event func(string)) *Link {
	return &Link{life: l, via: via, hello: hello, event: event, next: make(chan struct{})}
}

// Open connects to a broker and asks it for a session. One that goes away meanwhile is
// followed by another.
func (l *Link) Open(ctx context.Context) (*protocol.HelloReply, []*sys.FD, error) {
	for pause := dialSoon; ; pause = min(2*pause, dialLate) {
		conn, err := dial(ctx, &l.via)
		if err != nil {
			return nil, nil, err
		}
		l.ctl = newControl(wire.New(conn), l.event, l.onOrphanedReply)
		go l.ctl.run()
		var hello protocol.HelloReply
		fds, err := l.greet(ctx, l.ctl, nil, &hello)
		if err == nil {
			return &hello, fds, nil
		}
		if err == wire.ErrNoDescriptors {
			l.ctl.leave()
			return nil, nil, err
		}
		l.ctl.close()
		if !fault.IsLost(err) {
			return nil, nil, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, nil, err
		}
	}
}

// Leave ends a session that came to nothing.
func (l *Link) Leave() { l.ctl.leave() }

// greet says hello.
func (l *Link) greet(ctx context.Context, ctl *Control, resume *protocol.Resume, ok *protocol.HelloReply) ([]*sys.FD, error) {
	file := aliveFile()
	hello := l.hello
	hello.Resume, hello.Alive = resume, len(file) > 0
	return ctl.call(ctx, protocol.OpHello, &hello, ok, file...)
}

// Request makes one request of a broker.
type Request func(ctx context.Context, op string, body, ok any, send ...*sys.FD) ([]*sys.FD, error)

// Resume tries once to have a broker take a session back; restore gives a new broker what it
// asks for. Only an answer of the broker tells that the session is lost.
func (l *Link) Resume(ctx context.Context, session *protocol.Resume, restore func(context.Context, Request) error) (*Control, error) {
	conn, err := dial(ctx, &l.via)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeBrokerLost, "try again", "%w", err)
	}
	ctl := newControl(wire.New(conn), l.event, l.onOrphanedReply)
	go ctl.run()
	var ok protocol.HelloReply
	fds, err := l.greet(ctx, ctl, session, &ok)
	wire.CloseAll(fds)
	if err == nil && ok.Restore {
		err = restore(ctx, ctl.call)
	} else if err == nil && !ok.Resumed {
		err = protocol.ErrBrokerLost
	}
	if err != nil {
		ctl.close()
		return nil, err
	}
	return ctl, nil
}

// SwitchTo makes another connection the current one. False: the client was closed meanwhile.
func (l *Link) SwitchTo(ctl *Control) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		ctl.close()
		return false
	}
	l.ctl = ctl
	l.away.Store(0)
	l.release()
	l.epoch.Add(1)
	return true
}

// SwitchClosed makes another connection the current one where the client is closed: AskNow alone uses it.
func (l *Link) SwitchClosed(ctl *Control) {
	l.mu.Lock()
	l.ctl = ctl
	l.mu.Unlock()
}

// release has calls that wait for a broker look again. Callers hold l.mu.
func (l *Link) release() {
	close(l.next)
	l.next = make(chan struct{})
}

// Close has every call fail from now on, those that wait for a broker too. False: it was
// closed before.
func (l *Link) Close() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.closed = true
	l.release()
	return true
}

// Lose has every call fail because the session is lost. The first call counts; a client that
// was closed is not lost.
func (l *Link) Lose(why *protocol.Error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || !l.life.Lose(why) {
		return false
	}
	l.release()
	return true
}

// IsClosed tells whether the client was closed.
func (l *Link) IsClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// now returns the connection of this moment.
func (l *Link) now() *Control {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ctl
}

// End closes the connection of this moment.
func (l *Link) End() { l.now().close() }

// EndWriting tells the broker that nothing more is asked of it.
func (l *Link) EndWriting() { l.now().conn.CloseWrite() }

// Call makes a request of the broker. While the broker is away it waits for the
// next one until ctx ends, 30 s at most, then returns ErrBrokerLost.
func (l *Link) Call(ctx context.Context, op string, body, ok any, send ...*sys.FD) ([]*sys.FD, error) {
	ctx, cancel := WithDefaultTimeout(ctx, life.AwaitBroker)
	defer cancel()
	tooLong := time.NewTimer(life.AwaitBroker)
	defer tooLong.Stop()
	fds, _, err := l.ask(ctx, tooLong.C, op, body, ok, send...)
	return fds, err
}

// CallNoting is Call, without descriptors. It tells whether another broker was asked before,
// and went away before it had answered.
func (l *Link) CallNoting(ctx context.Context, op string, body, ok any) (before bool, err error) {
	ctx, cancel := WithDefaultTimeout(ctx, life.AwaitBroker)
	defer cancel()
	tooLong := time.NewTimer(life.AwaitBroker)
	defer tooLong.Stop()
	_, before, err = l.ask(ctx, tooLong.C, op, body, ok)
	return before, err
}

// CallUntil is Call without a time of its own: where ctx has no end, until a broker
// has answered, or the session is over.
func (l *Link) CallUntil(ctx context.Context, op string, body, ok any, send ...*sys.FD) ([]*sys.FD, error) {
	fds, _, err := l.ask(ctx, nil, op, body, ok, send...)
	return fds, err
}

// ask makes a request of the broker, and of the next one where it goes away. It waits
// for one until ctx or the time for that ends. before tells whether one was asked that has
// gone away before it had answered.
func (l *Link) ask(ctx context.Context, tooLong <-chan time.Time, op string, body, ok any, send ...*sys.FD) (fds []*sys.FD, before bool, err error) {
	for {
		l.mu.Lock()
		ctl, next, closed := l.ctl, l.next, l.closed
		l.mu.Unlock()
		if closed {
			return nil, before, fault.Closed("client")
		}
		if err := l.life.WhyLost(); err != nil {
			return nil, before, err
		}
		over := ctl.over()
		fds, err := ctl.call(ctx, op, body, ok, send...)
		switch {
		case err == nil:
			return fds, before, nil
		case !fault.IsLost(err):
			// What a session takes part in ends with it, before those that wait for an answer know of its end.
			return nil, before, l.refused(err)
		}
		before = before || !over
		select {
		case <-next: // reconnected: ask the new connection
		case <-ctx.Done():
			return nil, before, err
		case <-tooLong:
			return nil, before, err
		}
	}
}

// refused is why a request was refused: that the session has ended, where it has.
func (l *Link) refused(why error) error {
	l.mu.Lock()
	closed := l.closed
	l.mu.Unlock()
	if closed {
		return fault.Closed("client")
	}
	return l.life.Refused(why)
}

// AskNow makes a request by the connection of this moment.
func (l *Link) AskNow(ctx context.Context, op string, body, ok any) error {
	_, err := l.now().call(ctx, op, body, ok)
	return err
}

// Away is closed once the connection of this moment to the broker is down.
func (l *Link) Away() <-chan struct{} { return l.now().done }

// WhyOver is why the session is over, where the broker has said so by the connection of this
// moment; nil: it has not.
func (l *Link) WhyOver() error {
	k := l.now()
	k.mu.Lock()
	defer k.mu.Unlock()
	if fault.IsSessionLost(k.refused) {
		return k.refused
	}
	return nil
}

// CheckLost asks the broker whether the session goes on: that it is over may stand in shared memory before anything here
// has read why. It returns the error of each call of a lost session, or that of ctx.
func (l *Link) CheckLost(ctx context.Context) error {
	// What was said before the answer has been read with it.
	if _, err := l.Call(ctx, protocol.OpPing, nil, nil); err != nil && ctx.Err() != nil {
		return fault.Context(ctx, "asking whether the session goes on")
	}
	if l.life.IsEvicted() {
		if err := l.awaitLost(ctx); err != nil {
			return err
		}
	} else if in := l.life.Undecided(); in != nil {
		_ = in.Wait() // where that takes too long, the session goes on for all that is known
	}
	if lost := l.life.WhyLost(); lost != nil {
		return lost
	}
	return nil
}

// awaitLost waits until an evicted session is lost here, too, or closed.
func (l *Link) awaitLost(ctx context.Context) error {
	for {
		l.mu.Lock()
		next, closed := l.next, l.closed
		l.mu.Unlock()
		if closed || l.life.WhyLost() != nil {
			return nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return fault.Context(ctx, "waiting for the end of an evicted session")
		}
	}
}

// IsAway tells whether the connection is down right now.
func (l *Link) IsAway() bool {
	select {
	case <-l.Away():
		return true
	default:
		return false
	}
}

// NoteAway notes that the connection is down, from when on AwayFor counts.
func (l *Link) NoteAway() { l.away.Store(sys.Monotonic()) }

// AwayFor tells for how long there has been no broker, 0 while there is one. It takes no lock.
func (l *Link) AwayFor() time.Duration {
	since := l.away.Load()
	if since == 0 {
		return 0
	}
	return time.Duration(sys.Monotonic() - since)
}

// UntilAway returns a context that ends with the connection to the broker, too, and has
// ErrBrokerLost as its cause then.
func (l *Link) UntilAway(ctx context.Context) (context.Context, context.CancelFunc) {
	away := l.Away()
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-away:
			cancel(protocol.ErrBrokerLost)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// onOrphanedReply undoes a request that the broker carried out for nothing: its caller had given up,
// or could not be given the descriptors. It runs on the goroutine that reads replies.
//
// An opening and a lease have numbers that the caller chose, by which it has undone them
// itself. A lane that the broker listed late is found by the next send, which asks for it
// with the same offset.
func (l *Link) onOrphanedReply(op string, body any, ok []byte) {
	switch op {
	case protocol.OpGrant:
		var r protocol.GrantReply
		if json.Unmarshal(ok, &r) == nil {
			l.Undo(protocol.OpReturn, protocol.Return{Segment: r.Segment, Serial: r.SegmentSerial})
		}
	case protocol.OpTopicRead:
		if asked, is := body.(protocol.TopicRead); is {
			l.Undo(protocol.OpTopicLeave, protocol.TopicLeave{TopicRef: asked.TopicRef, Role: protocol.RoleNameRead, Reader: asked.Reader})
		}
	}
}

// Undo has the broker, or the next one, take back what a request may have made that nothing
// here knows of. It does not wait for that.
func (l *Link) Undo(op string, body any) {
	go l.CallUntil(context.Background(), op, body, nil)
}

// WithDefaultTimeout bounds a context that has no deadline.
func WithDefaultTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d)
}

// Epoch counts the connections that came after the first.
func (l *Link) Epoch() uint64 { return l.epoch.Load() }

// Requests counts those that were made by the connection of this moment.
func (l *Link) Requests() uint64 {
	k := l.now()
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.next
}
