package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"time"

	"github.com/baton-ipc/baton/internal/reach"
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
		return l.lost(err)
	case e.Error != nil:
		return e.Error
	case reply == nil:
		return nil
	}
	return json.Unmarshal(e.OK, reply)
}

func (l *looker) lost(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return reach.Silent(l.socket)
	}
	return protocol.Errorf(protocol.CodeBrokerLost, "try again", "the broker at %s did not answer: %w", l.socket, err)
}
