package natsbridge

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/baton-ipc/baton/protocol"
)

const (
	codeTooLarge jetstream.ErrorCode = 10054 // message size exceeds maximum allowed

	// headerRoom is what the headers of an answer may take of a message.
	headerRoom = 256
)

// flight is a key that is being written.
type flight struct {
	name    string
	was     key
	changes uint64 // of all keys when it was looked up
	ack     jetstream.PubAckFuture
}

// write brings up to namesBatch dirty keys to the bucket. Each write says which message
// of its key it expects to be the last, and the server refuses it where that is another:
// what another broker wrote meanwhile stays. The server's answers are awaited together, so
// that a distant server costs one round trip for all.
func (n *names) write(ctx context.Context, s *space) (more bool, err error) {
	todo, more := n.todo(s)
	var errs []error
	for i := range todo {
		f := &todo[i]
		m, err := n.message(s, f)
		if err == nil {
			f.ack, err = n.js.PublishMsgAsync(m, jetstream.WithExpectLastSequencePerSubject(f.was.sequence))
		}
		if err != nil {
			errs = append(errs, n.recordOutcome(s, f, nil, err))
		}
	}
	for i := range todo {
		f := &todo[i]
		if f.ack == nil {
			continue
		}
		select {
		case ack := <-f.ack.Ok():
			errs = append(errs, n.recordOutcome(s, f, ack, nil))
		case err := <-f.ack.Err():
			errs = append(errs, n.recordOutcome(s, f, nil, err))
		case <-ctx.Done():
			n.mu.Lock()
			if k := s.keys[f.name]; k != nil {
				k.unsure = true // it may have been written
			}
			n.mu.Unlock()
			errs = append(errs, ctx.Err())
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(s.keys) == 0 {
		s.leave() // the bucket is compared when there is a name again
		s.asked++
	}
	return more || n.refusedLocked(s), firstError(errs)
}

// todo picks keys to be written or removed.
func (n *names) todo(s *space) (todo []flight, more bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name := range s.dirty {
		k := s.keys[name]
		switch {
		case k.unsure:
			continue // it was seen to change since inspect looked, or is looked at next
		case k.relic && !n.told && !n.closed:
			continue // perhaps it is set again
		case !k.wanted() && !k.ours:
			s.markCleanLocked(name, k)
			continue
		}
		if len(todo) == namesBatch {
			return todo, true
		}
		todo = append(todo, flight{name: name, was: *k, changes: n.changes})
	}
	return todo, false
}

// refusedLocked tells whether a key waits for a look.
func (n *names) refusedLocked(s *space) bool {
	for name := range s.dirty {
		if s.keys[name].unsure {
			return true
		}
	}
	return false
}

// message is what is written of a key.
func (n *names) message(s *space, f *flight) (*nats.Msg, error) {
	n.mu.Lock()
	m := &nats.Msg{Subject: keySubject(s.ns, f.name), Header: n.headers(&f.was, n.muted[s.ns])}
	markers := s.markers
	n.mu.Unlock()
	if !f.was.wanted() {
		m.Header.Set(headerOperation, "PURGE")
		m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
		if markers {
			m.Header.Set(jetstream.MsgTTLHeader, markerTTL.String())
		}
		return m, nil
	}
	m.Header.Set(headerRevision, strconv.FormatUint(f.was.revision, 10))
	m.Data = f.was.value
	if f.was.reference {
		short := f.was.short
		short.Subject = protocol.NameSubject(s.ns, n.self.owner, f.name)
		var err error
		if m.Data, err = short.MarshalJSON(); err != nil {
			return nil, fmt.Errorf("refer to %s: %w", f.name, err)
		}
	}
	return m, nil
}

// recordOutcome records the result of writing one key. It returns an error if a later attempt
// may succeed.
func (n *names) recordOutcome(s *space, f *flight, ack *jetstream.PubAck, err error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	k := s.keys[f.name]
	switch {
	case k == nil:
		return nil
	case err == nil:
		n.recordWrittenLocked(s, f, k, ack.Sequence)
		return nil
	case f.was.wanted() && tooLarge(err):
		n.tooLargeLocked(s, f, k)
		return nil
	case wrongLast(err):
		// Another broker was faster, unless that was seen already.
		k.unsure = k.unsure || k.sequence == f.was.sequence
		return nil
	}
	k.unsure = true
	return fmt.Errorf("write %s: %w", f.name, err)
}

// recordWrittenLocked takes a written key off the list, unless it has changed meanwhile, here or
// in the bucket.
func (n *names) recordWrittenLocked(s *space, f *flight, k *key, sequence uint64) {
	if sequence < k.sequence {
		return // what came later was seen already
	}
	k.sequence, k.ours, k.unsure = sequence, f.was.wanted(), false
	k.applied = f.changes
	n.heldLocked(s, f.name, k, nil)
	if k.change == f.was.change {
		k.reference = f.was.reference
		s.markCleanLocked(f.name, k)
	}
}

// tooLargeLocked tries the reference next, and leaves the name out where that is too
// large as well: an older value would mislead.
func (n *names) tooLargeLocked(s *space, f *flight, k *key) {
	if k.change != f.was.change {
		return
	}
	if !f.was.reference {
		k.reference = true
		n.kick()
		return
	}
	ns, name, most := s.ns, f.name, s.most
	n.say = append(n.say, func() {
		n.log.Warn("a name is not on NATS: what stands for it is too large", "namespace", ns, "name", name, "bucket takes", most)
	})
	k.left = fmt.Sprintf("its bucket takes messages of %d bytes", most)
	n.changedLocked(s, f.name, k)
	n.kick()
}

// tooLarge tells whether the server or the bucket's limit refused a value for good.
func tooLarge(err error) bool {
	var refused *jetstream.APIError
	return errors.Is(err, nats.ErrMaxPayload) || errors.As(err, &refused) && refused.ErrorCode == codeTooLarge
}

// wrongLast tells whether a write was refused because the bucket has a later message.
func wrongLast(err error) bool {
	var refused *jetstream.APIError
	return errors.As(err, &refused) && (refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

func firstError(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
