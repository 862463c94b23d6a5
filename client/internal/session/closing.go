package session

import (
	"context"
	"time"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/protocol"
)

const (
	// closeTime is how long Close waits for a broker. What it could not do goes on in
	// the background.
	closeTime = 2 * time.Second
	// closedTry bounds one attempt in the background.
	closedTry = 5 * time.Second
	// closedForNothing is how long a client that holds nothing looks for a broker to
	// tell that its session is over. What its lanes name stays counted, for readers.
	closedForNothing = 30 * time.Second
	// keeperLook is how often a keeper gives up what is held no more.
	keeperLook = 2 * time.Second
)

// Close ends the session as Client.Close says.
func (s *Session) Close() error {
	if !s.Link.Close() {
		return nil
	}
	s.Memory.Close()
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	e := &ending{s: s, lanes: s.Topics.Quiesce()}
	if s.Devices != nil {
		s.Devices.Close()
	}
	s.jobs.end()
	s.Waits.WakeAll()
	over, err := e.advance(ctx)
	said := e.said
	if over {
		e.finish()
	} else {
		go e.linger()
	}
	if said || fault.IsLost(err) || fault.Code(err) == protocol.CodeTimeout {
		return nil // it goes on, the next broker is told, or the process's death says the same
	}
	return err
}

// ending is the way of a closed client's session to its end. One goroutine at a time
// goes it: that of Close, then linger.
type ending struct {
	s      *Session
	lanes  <-chan map[uint32]uint64 // gives named, once; nil when it has
	named  map[uint32]uint64        // what the lanes name, until it is counted down
	said   bool                     // the broker has answered bye
	kept   bool                     // the client is its instance's keeper
	denied bool                     // its user may not use the broker any more
}

// advance goes as far as it can now, and tells whether the session is over here. No
// error: it is a keeper that still holds.
func (e *ending) advance(ctx context.Context) (over bool, err error) {
	s := e.s
	if s.Life.WhyLost() != nil || s.Files.IsOver() {
		e.await(ctx)
		e.countDown()
		return true, nil
	}
	if e.stopped() {
		return true, nil
	}
	if !e.said {
		e.await(ctx) // what the lanes name stays counted otherwise, so the session stays as well
		s.claims.tell(func(op string, body any) error { return s.Link.AskNow(ctx, op, body, nil) })
		held, err := e.bye(ctx)
		crashpoint.At("bye-said")
		if err != nil {
			return false, err
		}
		e.said = true
		counted := e.countDown()
		crashpoint.At("bye-counted")
		if counted && held {
			held, err = e.bye(ctx)
		}
		if !held || err != nil {
			return err == nil, err
		}
	} else if e.look() {
		e.countDown()
	}
	return e.keep(ctx)
}

// stopped tells whether the broker was stopped and nothing is left to be told: the next one
// with the same memory directory looks at the refcounts themselves.
func (e *ending) stopped() bool {
	s := e.s
	if s.Life.Undecided() == nil || !s.Link.IsAway() || !s.Files.IsClosed() {
		return false
	}
	return e.said || e.look() && len(e.named) == 0
}

// look tells whether it is known what the lanes name: no send waits for an answer.
func (e *ending) look() bool {
	select {
	case e.named = <-e.lanes:
		e.lanes = nil
	default:
	}
	return e.lanes == nil
}

// await looks, and waits for it.
func (e *ending) await(ctx context.Context) {
	if e.look() {
		return
	}
	select {
	case e.named = <-e.lanes:
		e.lanes = nil
	case <-ctx.Done():
	}
}

// countDown counts down what the lanes named: the broker counts for it now. It tells
// whether they were still counted.
func (e *ending) countDown() bool {
	if e.named == nil {
		return false
	}
	for index, n := range e.named {
		for range n {
			e.s.Files.Refcounts.Drop(index)
		}
	}
	e.named = nil
	return true
}

// bye tells whether the refcounts still count anything. A session that the broker does not
// know any more is over.
func (e *ending) bye(ctx context.Context) (held bool, err error) {
	var r protocol.ByeReply
	err = e.s.Link.AskNow(ctx, protocol.OpBye, nil, &r)
	if fault.Code(err) == protocol.CodeClosed {
		return false, nil
	}
	return r.Held, err
}

// linger goes on until the session is over: it finds the next broker where this one
// goes away, and waits as a keeper while anything is held.
func (e *ending) linger() {
	s := e.s
	heard := time.Now()
	pause := reconnectSoon
	for {
		ctx, cancel := context.WithTimeout(context.Background(), closedTry)
		over, err := e.advance(ctx)
		if !over && s.Link.IsAway() {
			over = e.comeBack(ctx)
		}
		cancel()
		if over || err != nil && time.Since(heard) > closedForNothing && !e.holds() {
			e.finish()
			return
		}
		if err == nil {
			heard = time.Now()
			pause = keeperLook
			select {
			case <-s.Link.Away():
				pause = reconnectSoon
			case <-time.After(pause):
			}
			continue
		}
		time.Sleep(pause)
		pause = min(2*pause, reconnectLate)
	}
}

// holds tells whether the process holds anything: the refcounts count more than the lanes name.
// Without a broker nothing else can count down what they name.
func (e *ending) holds() bool {
	if !e.look() {
		return true
	}
	return e.s.Memory.HoldsMore(e.named)
}

// comeBack resumes the session at the broker that is there now, and tells whether the
// session is over instead. A closed session is no reason to start a broker.
func (e *ending) comeBack(ctx context.Context) (over bool) {
	s := e.s
	ctl, err := s.resume(ctx)
	if ctl == nil {
		e.denied = fault.IsFinal(err) && !fault.IsUnknown(err)
		return fault.IsFinal(err)
	}
	s.goOn()
	s.Link.SwitchClosed(ctl)
	return false
}

// finish closes what is left of a session that is over.
func (e *ending) finish() {
	s := e.s
	e.leave()
	s.Link.End()
	if e.look(); !e.denied { // else the broker is about to count for what the lanes name
		s.Memory.LeaveNamed(e.named)
	}
	all := s.Memory.UnmapFree()
	s.closeFiles()
	if !all || s.hasExports() {
		s.unmapOnce.Do(func() { go s.unmapReleased() })
	}
}

// closeFiles closes every descriptor; what is in use stays mapped.
func (s *Session) closeFiles() {
	s.Files.CloseFiles()
	s.Memory.CloseFiles()
	s.Topics.CloseFiles()
}
