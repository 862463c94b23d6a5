package client

import (
	"context"
	"errors"
	"reflect"
	"sync"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/client/internal/signature"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/protocol"
)

// HandleStream is Handle of a function that gives parts, one after the other: f gives each to send, and the stream
// ends when it returns, with its error if that is not nil. Callers range over the parts (Parts).
//
// send hands a part to the caller; its tensors are released by that, as those of a result are. While the caller has as
// many that it did not take as it allows (Ahead), send waits for it, and another call may run in the place of this one
// meanwhile. Its error says that nothing is wanted any more: the caller has gone, has left its loop, or its deadline has
// passed (ErrCancelled, ErrTimeout); or that this part cannot be sent (ErrInvalid), and others can. It may be used
// from any goroutine until f returns.
func HandleStream[In, Part any](c *Client, name string, f func(ctx context.Context, in In, send func(Part) error) error, opts ...HandleOption) (*Registration, error) {
	if err := protocol.CheckFunction(name); err != nil {
		return nil, err
	}
	if f == nil {
		return nil, noFunction(name)
	}
	s := &signature.Signature{Parts: true}
	if err := describeResult(s, reflect.TypeFor[Part]()); err != nil {
		return nil, err
	}
	read, err := readerOf[In](s)
	if err != nil {
		return nil, err
	}
	return provide(c, name, s, opts, func(k *callContext, r *received, parts *partsSender) (any, error) {
		in, err := read(r)
		if err != nil {
			return nil, err
		}
		return nil, f(k, in, func(part Part) error { return parts.send(part) })
	})
}

// partsSender sends the parts of one call.
type partsSender struct {
	p     *provider
	k     *callContext
	began uint64

	mu   sync.Mutex // held while a part is sent; guards what follows
	next uint32     // number of the next part
	over error      // why no more are sent
}

// send sends a part, once its caller has room for it.
func (s *partsSender) send(v any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := &callMessage{window: s.k.record.Window}
	m.record = protocol.Call{Kind: protocol.CallReply, Flags: protocol.CallPart, Number: s.k.record.Number, Topic: s.next, Deadline: s.began, Args: m.args[:0]}
	err := m.add("", v)
	defer m.releaseAll()
	if err == nil {
		err = m.nameFunctions()
	}
	if err == nil {
		err = m.encode()
	}
	if s.over == nil {
		s.over = s.wanted()
	}
	if s.over != nil {
		return s.over
	}
	if err != nil {
		return err
	}
	err = s.publish(m)
	if err == nil {
		s.next++
		crashpoint.At("part-sent")
	} else if !isFault(err) || s.wanted() != nil {
		s.over = err
	}
	return err
}

// end ends it with its function.
func (s *partsSender) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over == nil {
		s.over = fault.Closed("the call of " + s.k.info.Function)
	}
}

// wanted is why no more parts are wanted, nil where they are.
func (s *partsSender) wanted() error {
	name := s.k.info.Function
	switch {
	case s.k.c.s.Life.Ended() != nil:
		return s.k.c.s.Life.Ended()
	case s.k.late():
		return protocol.Errorf(protocol.CodeTimeout, "", "the deadline of the call of %s has passed", name).Because(context.DeadlineExceeded)
	case s.k.claimed.IsCancelled():
		return protocol.Errorf(protocol.CodeCancelled, "", "the caller of %s wants no more parts", name).Because(context.Canceled)
	}
	return nil
}

// publish waits for room, without a place among the calls that run, and sends a part.
func (s *partsSender) publish(m *callMessage) error {
	c := s.k.c
	for {
		place, err := c.replyPlace(context.Background(), s.k.record)
		if err == nil && !place.t.IsRead() || errors.Is(err, protocol.ErrNotFound) { // it has left before its topic was opened here
			return protocol.Errorf(protocol.CodeCancelled, "", "the caller of %s takes no more parts", s.k.info.Function).Because(context.Canceled)
		}
		if err == nil {
			wait, failed := place.attempt(context.Background(), c, m)
			if failed == nil && wait == nil {
				return nil
			}
			if err = failed; err == nil {
				s.p.park()
				s.await(func(ctx context.Context, over func() bool) { place.t.AwaitBeside(ctx, wait, over) })
				s.p.resume()
				err = s.wanted()
			}
		}
		if err != nil && !s.p.again(err, &s.k.claimed, s.k.record) {
			return err
		}
	}
}

// await waits as wait does until the deadline of the call.
func (s *partsSender) await(wait func(ctx context.Context, over func() bool)) {
	ctx := context.Background()
	if until, has := s.k.Deadline(); has {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, until)
		defer cancel()
	}
	wait(ctx, s.k.claimed.IsCancelled)
}
