package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"time"

	"github.com/baton-ipc/baton/internal/reach"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

// looker asks a broker without a session, since a broker at a limit has none to give. It is for
// one goroutine.
type looker struct {
	place
	w     *wire.Conn
	last  uint64    // request
	until time.Time // the answers must be here
	// answers is how long the broker may take for the first one.
	answers time.Duration

	gaveUp error // the last request had no answer; the connection is ended
	unread bool  // and the broker had not read it, and does not carry it out
}

// look connects to a broker to look at it. The caller closes it.
func (a *app) look(ctx context.Context, f *clientFlags) (*looker, error) {
	ctx, p, cancel, err := f.reach(ctx, false)
	if err != nil {
		return nil, err
	}
	defer cancel()
	c, err := reach.Dial(ctx, p.socket)
	if reach.Absent(err) {
		return nil, reach.None(p.socket, remedyForNone)
	}
	if err != nil {
		return nil, err
	}
	until, _ := ctx.Deadline()
	c.SetDeadline(until)
	return &looker{place: *p, w: wire.New(c), until: until, answers: time.Until(until)}, nil
}

// lookToChange is look for a command that changes something.
func (a *app) lookToChange(ctx context.Context, f *clientFlags) (*looker, error) {
	l, err := a.look(ctx, f)
	return l, nothingDone(err)
}

// patient gives the broker so long at least for the next answer.
func (l *looker) patient(least time.Duration) {
	l.until = later(l.until, time.Now().Add(least))
	l.w.SetDeadline(l.until)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (l *looker) close() {
	l.w.Discard()
	l.w.Close()
}

// lookAgain is the pause before the next question to a broker that waits for a dead one's
// clients.
const lookAgain = 50 * time.Millisecond

// Broker asks, and waits until a broker that takes over has done so.
func (l *looker) Broker(ctx context.Context, op string, body, reply any) error {
	defer context.AfterFunc(ctx, func() { l.w.SetDeadline(time.Unix(1, 0)) })()
	for {
		err := l.ask(op, body, reply)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if op == protocol.OpEvict || !errors.Is(err, protocol.ErrBusy) { // evict says so of a process that lives
			return err
		}
		time.Sleep(lookAgain)
	}
}

func (l *looker) ask(op string, body, reply any) error {
	if l.gaveUp != nil {
		l.unread = true
		return l.gaveUp
	}
	l.last++
	// One that is suspended is not waited for as long as one that has much to do.
	defer time.AfterFunc(leastToAnswer, func() {
		if reach.Suspended(l.socket) {
			l.w.SetDeadline(time.Unix(1, 0))
		}
	}).Stop()
	sent := l.w.Request(l.last, op, body)
	data, fds, err := l.w.Read() // a broker that refuses the connection says so, and reads nothing
	wire.CloseAll(fds)
	if err != nil && sent != nil {
		err = sent
	}
	var e protocol.Envelope
	if err == nil {
		err = json.Unmarshal(data, &e)
	}
	switch {
	case err != nil:
		return l.lost(err, sent == nil)
	case e.Error != nil:
		return e.Error
	case reply == nil:
		return nil
	}
	return json.Unmarshal(e.OK, reply)
}

// lost ends the connection: the broker does not carry out what it reads of a connection that its peer has ended.
func (l *looker) lost(err error, sent bool) error {
	unread := sys.GiveUp(l.w.UnixConn)
	l.unread = unread || !sent
	if errors.Is(err, os.ErrDeadlineExceeded) {
		l.gaveUp = reach.Silent(l.socket)
	} else {
		l.gaveUp = protocol.Errorf(protocol.CodeBrokerLost, "try again", "the broker at %s did not answer: %w", l.socket, err)
	}
	return l.gaveUp
}

// change is Broker for a request that changes something; shows is the command that shows whether it was carried out. The
// error where no answer came says what is known of that.
func (l *looker) change(ctx context.Context, op string, body, reply any, shows string) error {
	err := l.Broker(ctx, op, body, reply)
	switch {
	case err == nil || l.gaveUp == nil || !errors.Is(err, l.gaveUp):
		return err
	case l.unread:
		return nothingDone(err)
	}
	return maybeDone(err, shows)
}

// nothingDone adds to the error of a command that has given up that it has changed nothing.
func nothingDone(err error) error {
	if e := (*protocol.Error)(nil); errors.As(err, &e) && isLost(err) {
		return protocol.Errorf(e.Code, e.Remedy, "%w; nothing was done", err)
	}
	return err
}

// maybeDone adds to the error of a command that has given up that it may have changed something, and which command
// shows that.
func maybeDone(err error, shows string) error {
	if e := (*protocol.Error)(nil); errors.As(err, &e) && isLost(err) {
		return protocol.Errorf(e.Code, e.Remedy+"; then look with "+shows+" whether it was done", "%w; what was asked for may have been done", err)
	}
	return err
}

// isLost tells whether an error is that no answer came.
func isLost(err error) bool {
	return errors.Is(err, protocol.ErrTimeout) || errors.Is(err, protocol.ErrBrokerLost) || errors.Is(err, protocol.ErrNoBroker)
}
