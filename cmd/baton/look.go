package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"sync"
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
	by    reached
	w     *wire.Conn
	last  uint64    // request
	until time.Time // the answers must be here
	// answers is how long the broker may take for the first one.
	answers time.Duration
	// suspended is for how long a suspended broker is waited for: as --timeout says, and not as long as
	// one that has much to do.
	suspended time.Duration

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
	until, _ := ctx.Deadline()
	l := &looker{place: *p, by: a.reached, until: until, answers: time.Until(until), suspended: max(f.timeout, leastToAnswer)}
	return l, l.dial(ctx, until)
}

// dial connects; the answers must be here at a time.
func (l *looker) dial(ctx context.Context, until time.Time) error {
	c, err := reach.Dial(ctx, l.socket)
	if reach.Absent(err) {
		return reach.None(l.socket, remedyForNone)
	}
	if err != nil {
		return err
	}
	c.SetDeadline(until)
	l.w = wire.New(c)
	return nil
}

// lookToChange is look for a command that changes something.
func (a *app) lookToChange(ctx context.Context, f *clientFlags) (*looker, error) {
	l, err := a.look(ctx, f)
	return l, nothingDone(err)
}

// mostRedials bounds how often another broker is asked in the place of one that ends, with lookAgain before each.
const mostRedials = 20

// redial connects to the broker that takes the place of one which ends, as with --replace. Without one no request of
// this looker is carried out any more.
func (l *looker) redial(ctx context.Context) error {
	time.Sleep(lookAgain)
	l.close()
	until := later(l.until, time.Now().Add(mostRedials*lookAgain))
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	l.gaveUp = l.dial(ctx, until)
	l.unread = l.gaveUp != nil
	return l.gaveUp
}

// patient gives the broker so long at least for the next answer.
func (l *looker) patient(least time.Duration) {
	l.until = later(l.until, time.Now().Add(least))
	l.w.SetDeadline(l.until)
}

// bound gives the broker, for the next answer, the time of --timeout anew: of several names each has it.
func (l *looker) bound(f *clientFlags) {
	if f.timeout > 0 {
		l.patient(max(f.timeout, leastToAnswer))
	}
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

// lookAgain is the pause before the next question to a broker that waits for the previous one's
// clients.
const lookAgain = 50 * time.Millisecond

// Broker asks, and waits until a broker that takes over has done so. It looks and changes nothing, so one that ends
// before it answers is asked again, and then the next one.
func (l *looker) Broker(ctx context.Context, op string, body, reply any) error {
	return l.request(ctx, op, body, reply, true)
}

func (l *looker) request(ctx context.Context, op string, body, reply any, looks bool) error {
	for redials := 0; ; {
		err := l.asked(ctx, op, body, reply)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		// A request that was refused, or not read, is carried out by no broker.
		if errors.Is(err, protocol.ErrBrokerLost) && (looks || l.gaveUp == nil || l.unread) && redials < mostRedials {
			redials++
			if err := l.redial(ctx); err != nil {
				return err
			}
			continue
		}
		if op == protocol.OpEvict || !errors.Is(err, protocol.ErrBusy) { // evict says so of a process that lives
			return err
		}
		if !l.until.IsZero() && time.Until(l.until) < lookAgain {
			return protocol.Errorf(protocol.CodeTimeout, "wait longer, with --timeout", "the broker at %s was asked again until the time was over: %w", l.socket, err)
		}
		time.Sleep(lookAgain)
	}
}

// asked is ask, which the end of ctx ends.
func (l *looker) asked(ctx context.Context, op string, body, reply any) error {
	w := l.w
	defer context.AfterFunc(ctx, func() { w.SetDeadline(time.Unix(1, 0)) })()
	return l.ask(op, body, reply)
}

func (l *looker) ask(op string, body, reply any) error {
	if l.gaveUp != nil {
		l.unread = true
		return l.gaveUp
	}
	l.last++
	defer l.giveUpSuspended()()
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

// giveUpSuspended ends the wait for an answer where the broker is found suspended, once it was waited for. The
// returned function ends this.
func (l *looker) giveUpSuspended() (answered func()) {
	w, done := l.w, make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for after := time.After(l.suspended); ; after = time.After(suspendedAgain) {
			select {
			case <-after:
			case <-done:
				return
			}
			if reach.Suspended(l.socket) {
				w.SetDeadline(time.Unix(1, 0))
				return
			}
		}
	})
	return func() {
		close(done)
		watching.Wait() // the deadline of the next request is not this one's to change
	}
}

// further are the flags of a command that goes on as long as it is let: once a broker has answered, it looks for the next
// one again and again, and waits for none meanwhile.
func (f *clientFlags) further(answered bool) *clientFlags {
	next := *f
	if answered {
		next.timeout = 0
	}
	return &next
}

// follow prepares the next request of a command that goes on as long as its broker does: --timeout was for the first
// answer. One that is suspended is soon known to be.
func (l *looker) follow() {
	l.suspended = leastToAnswer
	l.w.SetDeadline(time.Now().Add(usualToAnswer))
}

// stillSuspended tells whether the broker is suspended since a request had no answer: another connection would
// get no answer either, and stay in its queue.
func (l *looker) stillSuspended() bool {
	return l.gaveUp != nil && errors.Is(l.gaveUp, protocol.ErrTimeout) && reach.Suspended(l.socket)
}

// suspendedAgain is the pause between looks whether a broker that does not answer is suspended.
const suspendedAgain = time.Second

// lost ends the connection: the broker does not carry out what it reads of a connection that its peer has ended.
func (l *looker) lost(err error, sent bool) error {
	unread := sys.GiveUp(l.w.UnixConn)
	l.unread = unread || !sent
	if errors.Is(err, os.ErrDeadlineExceeded) {
		l.gaveUp = l.silent()
	} else {
		l.gaveUp = protocol.Errorf(protocol.CodeBrokerLost, "try again", "the broker at %s did not answer: %w", l.socket, err)
	}
	return l.gaveUp
}

// silent is the error of a request that was not answered in time. One that answers others waits for something else.
func (l *looker) silent() error {
	if !reach.Suspended(l.socket) && l.serves() {
		return protocol.Errorf(protocol.CodeTimeout, "wait longer, with --timeout, or see in baton status and baton doctor what it waits for, such as NATS and other hosts",
			"the broker at %s has not answered this request in time, and answers others", l.socket)
	}
	return reach.Silent(l.socket)
}

// serves tells whether the broker answers a ping of another connection.
func (l *looker) serves() bool {
	ctx, cancel := context.WithTimeout(context.Background(), timeToPing)
	defer cancel()
	c, err := reach.Dial(ctx, l.socket)
	if err != nil {
		return false
	}
	w := wire.New(c)
	defer w.Close()
	c.SetDeadline(time.Now().Add(timeToPing))
	if err := w.Request(1, protocol.OpPing, nil); err != nil {
		return false
	}
	data, fds, err := w.Read()
	wire.CloseAll(fds)
	var e protocol.Envelope
	return err == nil && json.Unmarshal(data, &e) == nil && e.Error == nil
}

// timeToPing is how long a broker that works may take for a ping.
const timeToPing = time.Second

// change is Broker for a request that changes something; shows is the command that shows whether it was carried out. The
// error where no answer came says what is known of that.
func (l *looker) change(ctx context.Context, op string, body, reply any, shows string) error {
	err := l.request(ctx, op, body, reply, false)
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
