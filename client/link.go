package client

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

// link is a session's way to its broker: one connection after another. It knows what it
// takes to ask a broker and to find the next one, and nothing of what is asked.
type link struct {
	life  *life
	via   brokerPlace
	hello protocol.Hello // what each connection begins with
	event func(string)   // hears what the broker says unasked

	mu     sync.Mutex // guards what follows
	ctl    *control
	next   chan struct{} // closed when ctl is replaced; a new one each time
	closed bool

	epoch atomic.Uint64
}

func newLink(l *life, via brokerPlace, hello protocol.Hello, event func(string)) *link {
	return &link{life: l, via: via, hello: hello, event: event, next: make(chan struct{})}
}

// open connects to a broker and asks it for a session. One that goes away meanwhile is
// followed by another.
func (l *link) open(ctx context.Context) (*protocol.HelloReply, []*sys.FD, error) {
	for pause := dialSoon; ; pause = min(2*pause, dialLate) {
		conn, err := dial(ctx, &l.via)
		if err != nil {
			return nil, nil, err
		}
		l.ctl = newControl(wire.New(conn), l.event, l.onLate)
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
		if !isLost(err) {
			return nil, nil, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, nil, err
		}
	}
}

// leave ends a session that came to nothing.
func (l *link) leave() { l.ctl.leave() }

// greet says hello.
func (l *link) greet(ctx context.Context, ctl *control, resume *protocol.Resume, ok *protocol.HelloReply) ([]*sys.FD, error) {
	file := aliveFile()
	hello := l.hello
	hello.Resume, hello.Alive = resume, len(file) > 0
	return ctl.call(ctx, protocol.OpHello, &hello, ok, file...)
}

// request makes one request of a broker.
type request func(ctx context.Context, op string, body, ok any, send ...*sys.FD) ([]*sys.FD, error)

// resume tries once to have a broker take a session back; restore gives a new broker what it
// asks for. Only an answer of the broker tells that the session is lost.
func (l *link) resume(ctx context.Context, who *protocol.Resume, restore func(context.Context, request) error) (*control, error) {
	conn, err := dial(ctx, &l.via)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeBrokerLost, "", "%w", err)
	}
	ctl := newControl(wire.New(conn), l.event, l.onLate)
	go ctl.run()
	var ok protocol.HelloReply
	fds, err := l.greet(ctx, ctl, who, &ok)
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

// adopt goes on by another connection. False: the client was closed meanwhile.
func (l *link) adopt(ctl *control) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		ctl.close()
		return false
	}
	l.ctl = ctl
	l.release()
	l.epoch.Add(1)
	return true
}

// adoptClosed goes on by another connection where the client is closed: askNow alone uses it.
func (l *link) adoptClosed(ctl *control) {
	l.mu.Lock()
	l.ctl = ctl
	l.mu.Unlock()
}

// release has calls that wait for a broker look again. Callers hold l.mu.
func (l *link) release() {
	close(l.next)
	l.next = make(chan struct{})
}

// close has every call fail from now on, those that wait for a broker too. False: it was
// closed before.
func (l *link) close() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.closed = true
	l.release()
	return true
}

// lose has every call fail because the session is lost. The first call counts; a client that
// was closed is not lost.
func (l *link) lose(why *protocol.Error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || !l.life.lose(why) {
		return false
	}
	l.release()
	return true
}

// isClosed tells whether the client was closed.
func (l *link) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// now returns the connection of this moment.
func (l *link) now() *control {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ctl
}

// end closes the connection of this moment.
func (l *link) end() { l.now().close() }

// endWriting tells the broker that nothing more is asked of it.
func (l *link) endWriting() { l.now().conn.CloseWrite() }

// Call makes a request of the broker. While the broker is away it waits for the
// next one until ctx ends, 30 s at most, then returns ErrBrokerLost.
func (l *link) Call(ctx context.Context, op string, body, ok any, send ...*sys.FD) ([]*sys.FD, error) {
	ctx, cancel := withDefaultTimeout(ctx, awaitBroker)
	defer cancel()
	tooLong := time.NewTimer(awaitBroker)
	defer tooLong.Stop()
	fds, _, err := l.ask(ctx, tooLong.C, op, body, ok, send...)
	return fds, err
}

// callNoting is Call, without descriptors. It tells whether another broker was asked before,
// and went away before it had answered.
func (l *link) callNoting(ctx context.Context, op string, body, ok any) (before bool, err error) {
	ctx, cancel := withDefaultTimeout(ctx, awaitBroker)
	defer cancel()
	tooLong := time.NewTimer(awaitBroker)
	defer tooLong.Stop()
	_, before, err = l.ask(ctx, tooLong.C, op, body, ok)
	return before, err
}

// CallUntil is Call without a time of its own: where ctx has no end, until a broker
// has answered, or the session is over.
func (l *link) CallUntil(ctx context.Context, op string, body, ok any, send ...*sys.FD) ([]*sys.FD, error) {
	fds, _, err := l.ask(ctx, nil, op, body, ok, send...)
	return fds, err
}

// ask makes a request of the broker, and of the next one where it goes away. It waits
// for one until ctx or the time for that ends. before tells whether one was asked that has
// gone away before it had answered.
func (l *link) ask(ctx context.Context, tooLong <-chan time.Time, op string, body, ok any, send ...*sys.FD) (fds []*sys.FD, before bool, err error) {
	for {
		l.mu.Lock()
		ctl, next, closed := l.ctl, l.next, l.closed
		l.mu.Unlock()
		if closed {
			return nil, before, errClosed("client")
		}
		if err := l.life.whyLost(); err != nil {
			return nil, before, err
		}
		over := ctl.over()
		fds, err := ctl.call(ctx, op, body, ok, send...)
		if err == nil || !isLost(err) {
			return fds, before, err
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

// askNow makes a request by the connection of this moment.
func (l *link) askNow(ctx context.Context, op string, body, ok any) error {
	_, err := l.now().call(ctx, op, body, ok)
	return err
}

// away is closed once the connection of this moment to the broker is down.
func (l *link) away() <-chan struct{} { return l.now().done }

// IsAway tells whether the connection is down right now.
func (l *link) IsAway() bool {
	select {
	case <-l.away():
		return true
	default:
		return false
	}
}

// UntilAway returns a context that ends with the connection to the broker, too, and has
// ErrBrokerLost as its cause then.
func (l *link) UntilAway(ctx context.Context) (context.Context, context.CancelFunc) {
	away := l.away()
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

// onLate undoes a request that the broker carried out for nothing: its caller had given up,
// or could not be given the descriptors. It runs on the goroutine that reads replies.
//
// An opening and a lease have numbers that the caller chose, by which it has undone them
// itself. A lane that the broker listed late is found by the next send, which asks for it
// with the same offset.
func (l *link) onLate(op string, body any, ok []byte) {
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
func (l *link) Undo(op string, body any) {
	go l.CallUntil(context.Background(), op, body, nil)
}

func withDefaultTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d)
}

// Epoch counts the connections that came after the first.
func (l *link) Epoch() uint64 { return l.epoch.Load() }

// Requests counts those that were made by the connection of this moment.
func (l *link) Requests() uint64 {
	k := l.now()
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.next
}
