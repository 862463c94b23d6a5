package names

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/baton-ipc/baton/protocol"
)

// setting is a set that is under way.
type setting struct {
	Setting
	id   string
	sent atomic.Bool   // it may stand in the bucket
	over chan struct{} // closed when Won or Lost was called
	did  bool          // under the space's mutex: it is about to be
	// revision is the number of one that has won. Written before over is closed.
	revision uint64
}

// turn has one set or delete of a name of this host at a time: those that are made here one beside the other do not
// conflict.
type turn struct {
	one   chan struct{}
	users int
}

// turn waits for the turn of a name.
func (s *space) turn(ctx context.Context, name string) (release func(), err error) {
	s.mu.Lock()
	t := s.turns[name]
	if t == nil {
		t = &turn{one: make(chan struct{}, 1)}
		s.turns[name] = t
	}
	t.users++
	s.mu.Unlock()
	left := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(s.turns, name)
		}
	}
	select {
	case t.one <- struct{}{}:
		return func() { <-t.one; left() }, nil
	case <-ctx.Done():
		left()
		return nil, ctx.Err()
	}
}

// Set agrees on a revision. Errors: Conflict if another host was first, Unreachable if JetStream does not answer: before
// the write was sent the name is as it was; after it nothing is known, and the revision is held until it is.
func (n *Names) Set(ctx context.Context, st Setting) (revision uint64, err error) {
	s := n.space(st.Namespace)
	defer func(began time.Time) { s.answered(began, err) }(time.Now())
	w := &setting{Setting: st, id: n.cfg.Instance + "-" + strconv.FormatUint(st.Number, 10), over: make(chan struct{})}
	ctx, cancel := n.bounded(ctx)
	defer cancel()
	defer context.AfterFunc(n.ctx, cancel)()
	release, err := s.turn(ctx, st.Name)
	if err != nil {
		st.Lost()
		return 0, s.errWaits("name " + st.Name + " was not set, since an earlier set is not answered")
	}
	answer := make(chan error, 1)
	begun := n.begin(func() {
		defer release()
		answer <- s.set(ctx, w)
	})
	if !begun {
		release()
		st.Lost()
		return 0, ErrEnds
	}
	select {
	case err = <-answer:
	case <-ctx.Done():
		if w.sent.Load() {
			return 0, s.errWaits("name " + st.Name + " was sent, and it is not known whether it is set")
		}
		err = <-answer
	}
	return w.revision, err
}

// SetTimeout says how long a set or a delete waits for JetStream where its caller does not say.
func (n *Names) SetTimeout(d time.Duration) { n.within.Store(int64(d)) }

// bounded bounds a set or a delete.
func (n *Names) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Duration(n.within.Load()))
}

// ErrEnds says that nothing is to be answered: the client asks the next broker.
var ErrEnds = protocol.Errorf(protocol.CodeBusy, "try again", "the broker ends")

// set agrees on a revision. Once it was sent it goes on until it is known what became of it.
func (s *space) set(ctx context.Context, w *setting) error {
	s.expect(w, w)
	defer s.expect(w, nil)
	for f := (*fence)(nil); ; {
		b, err := s.ready(ctx)
		if err != nil {
			return s.lose(w, err)
		}
		f = s.fenced(ctx, b, f)
		e, err := b.read(ctx, w.Name)
		if err == nil && s.replaces(w, &e) != nil {
			e, err = s.known(ctx, b, f, w.Name, e)
		}
		if err != nil {
			if s.pause(ctx, err) != nil {
				return s.lose(w, s.errWaits("name "+w.Name+" was not set"))
			}
			continue
		}
		if seq, is := e.has(w.id); is {
			return s.win(w, b, seq)
		}
		if err := s.replaces(w, &e); err != nil {
			return s.lose(w, err)
		}
		again, err := s.write(w, b, &e, f)
		if !again {
			return err
		}
		if ctx.Err() != nil {
			return s.lose(w, s.errWaits("name "+w.Name+" was not set"))
		}
	}
}

// expect has the reader of the bucket know which set of a name is under way.
func (s *space) expect(w, now *setting) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now != nil || s.names[w.Name] != nil {
		s.nameLocked(w.Name).setting = now
	}
}

// replaces refuses a revision that is to replace another one than what is set.
func (s *space) replaces(w *setting, e *stored) error {
	switch number := s.numberOf(e.Seq); {
	case w.Replaces == 0:
		return nil
	case !e.set():
		return protocol.Errorf(protocol.CodeConflict, "get it anew", "name %s is not set any more", w.Name)
	case number != w.Replaces:
		return protocol.Errorf(protocol.CodeConflict, "get it anew", "name %s has revision %d by now, of %s, and not %d", w.Name, number, e.where(), w.Replaces)
	}
	return nil
}

// write writes on top of an entry until it is known what became of that. again: the bucket was lost meanwhile, or the entry
// may have been replaced before the set began.
func (s *space) write(w *setting, b *bucket, on *stored, f *fence) (again bool, err error) {
	mine := &entry{ID: w.id, Host: s.n.cfg.Instance, HostName: s.n.cfg.HostName, Setter: printable(w.Setter), Bytes: w.Bytes, Tensors: w.Tensors, Ephemeral: w.Ephemeral, Over: on.after()}
	ctx := s.n.ctx
	for {
		w.sent.Store(true)
		seq, err := b.put(ctx, w.Name, mine, on.Seq)
		switch {
		case err == nil:
			return false, s.win(w, b, seq)
		case isReplaced(err):
			e, err := b.read(ctx, w.Name)
			if seq, is := e.has(w.id); is { // an earlier try was written, and its answer lost
				return false, s.win(w, b, seq)
			}
			// While the same entry stands there a leader without followers has an earlier try, and may yet agree on it.
			switch {
			case err != nil || e.Seq == on.Seq:
			case f.isBehind(e.Seq):
				return false, s.lose(w, conflict(w.Name, &e))
			case s.pause(ctx, err) == nil:
				return true, nil
			}
		case isRefused(err):
			return false, s.lose(w, protocol.Errorf(protocol.CodeUnsupported, "look at the bucket "+BucketName(s.ns)+" (nats stream info "+StreamName(s.ns)+")", "name %s was refused by JetStream: %w", w.Name, err))
		}
		select {
		case <-w.over: // the bucket has said so
			return false, nil
		case <-time.After(soonTime):
		case <-ctx.Done():
			return false, ErrEnds // its client asks the next broker
		}
		now, err := s.ready(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return false, ErrEnds
			}
			continue
		}
		if now.made != b.made {
			return true, nil
		}
		b = now
	}
}

func conflict(name string, e *stored) error {
	if !e.set() {
		return protocol.Errorf(protocol.CodeConflict, "set it again if it is still wanted", "name %s was deleted on another host at the same time", name)
	}
	return protocol.Errorf(protocol.CodeConflict, "get it anew, and set it again if it is still wanted", "name %s was set by %s on %s at the same time", name, e.Setter, e.where()).With("host", e.Host)
}

// win has the revision at a place visible here, once the bucket has been read up to there.
func (s *space) win(w *setting, b *bucket, seq uint64) error {
	err := s.until(s.n.ctx, func() bool { return s.made != b.made || s.cursor >= seq || w.did })
	if err != nil {
		return ErrEnds
	}
	s.won(w, seq)
	<-w.over
	return nil
}

// won publishes a set that has won, once.
func (s *space) won(w *setting, seq uint64) {
	s.mu.Lock()
	did := w.did
	w.did = true
	a := protocol.Agreed{Revision: s.epochs.number(seq), Bucket: s.made}
	s.mu.Unlock()
	if !did {
		w.Won(a)
		s.judge(w.Name)
		w.revision = a.Revision
		close(w.over)
	}
}

// lose lets a set go that has not won, unless the bucket has said otherwise.
func (s *space) lose(w *setting, why error) error {
	s.mu.Lock()
	did := w.did
	w.did = true
	s.mu.Unlock()
	if did {
		<-w.over
		return nil
	}
	w.Lost()
	close(w.over)
	return why
}

// ready waits for the bucket.
func (s *space) ready(ctx context.Context) (b *bucket, err error) {
	var refused error
	waited := s.until(ctx, func() bool {
		b, refused = s.bucket, nil
		if protocol.CodeOf(s.trouble) == protocol.CodeUnsupported {
			refused = s.trouble
		}
		return b != nil && s.n.hosts.Current() != nil || refused != nil
	})
	switch {
	case refused != nil:
		return nil, refused
	case waited != nil:
		return nil, s.errWaits("the names of namespace " + s.ns + " cannot be agreed on")
	}
	return b, nil
}

// pause waits before JetStream is asked again.
func (s *space) pause(ctx context.Context, why error) error {
	s.n.cfg.Log.Debug("JetStream is asked again for a name", "namespace", s.ns, "error", why)
	select {
	case <-time.After(soonTime):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Delete takes a name away on all hosts. Errors: NotFound, Unreachable.
func (n *Names) Delete(ctx context.Context, ns, name string) error {
	s := n.space(ns)
	ctx, cancel := n.bounded(ctx)
	defer cancel()
	defer context.AfterFunc(n.ctx, cancel)()
	release, err := s.turn(ctx, name)
	if err != nil {
		return s.errWaits("name " + name + " was not deleted, since an earlier set is not answered")
	}
	defer release()
	return s.delete(ctx, name, func(e *stored) bool { return true })
}

// delete takes a name away if what is set is meant.
func (s *space) delete(ctx context.Context, name string, meant func(*stored) bool) error {
	id := s.n.cfg.Instance + "-" + strconv.FormatUint(protocol.RandomNumber(), 10)
	for sent := false; ; {
		b, err := s.ready(ctx)
		if err != nil {
			return err
		}
		e, err := b.read(ctx, name)
		if err == nil && !sent && (!e.set() || !meant(&e)) {
			e, err = s.known(ctx, b, s.fence(ctx, b), name, e)
		}
		switch _, did := e.has(id); {
		case err != nil:
		case did:
			return s.read(ctx, b, e.Seq)
		case !e.set() || !meant(&e):
			if sent {
				return nil
			}
			return protocol.Errorf(protocol.CodeNotFound, "baton ls names lists what there is", "no name %q is set in namespace %s", name, s.ns)
		default:
			sent = true
			seq, err := b.put(ctx, name, &entry{ID: id, Host: s.n.cfg.Instance, HostName: s.n.cfg.HostName, Deleted: true, Over: e.after()}, e.Seq)
			if err == nil {
				return s.read(ctx, b, seq)
			}
		}
		if s.pause(ctx, err) != nil {
			return s.errWaits("it is not known whether name " + name + " was deleted")
		}
	}
}

// read waits until the bucket has been read up to a place.
func (s *space) read(ctx context.Context, b *bucket, seq uint64) error {
	if s.until(ctx, func() bool { return s.made != b.made || s.cursor >= seq }) != nil {
		return s.errWaits("it was deleted, but still stands here")
	}
	return nil
}

// Ended deletes a name whose revision of a number goes with a session that has ended. It returns at once.
func (n *Names) Ended(ns, name string, revision uint64) {
	n.begin(func() {
		s := n.space(ns)
		for n.ctx.Err() == nil {
			ctx, cancel := context.WithTimeout(n.ctx, setTime)
			release, err := s.turn(ctx, name)
			if err == nil {
				err = s.delete(ctx, name, func(e *stored) bool { return e.Host == n.cfg.Instance && s.numberOf(e.Seq) == revision })
				release()
			}
			cancel()
			if err == nil || protocol.CodeOf(err) == protocol.CodeNotFound {
				return
			}
			n.cfg.Log.Debug("a name that goes with its session is not deleted yet", "namespace", ns, "name", name, "error", err)
			s.pause(n.ctx, err)
		}
	})
}
