package broker

import (
	"time"

	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

// returning is a client of a previous broker between its hello and `restored`.
type returning struct {
	hello      protocol.Hello
	pidfd      *sys.FD
	handed     map[sessionfiles.Key]bool // what it handed over, true where it is a file of this instance
	unanswered []protocol.Reading
	sessions   []uint64 // whose files it has mapped without a descriptor
	segments   []uint64 // as sessions
}

// helloTaking answers a hello while the broker waits for the previous broker's
// clients: one of those is asked for what it has, others wait. The mutex is held
// and released while they do. It takes ownership of pidfd.
func (b *Broker) helloTaking(c *conn, h *protocol.Hello, pidfd *sys.FD) (*protocol.HelloReply, []*sys.FD, error) {
	if h.Resume != nil && h.Resume.Instance == b.id && b.taking.knows(h.Resume.Serial, c.cred.PID) {
		if err := b.claims(c, *h.Resume); err != nil {
			pidfd.Close()
			return nil, nil, err
		}
		return b.askToRestore(c, h, pidfd), nil, nil
	}
	t := b.taking
	err := t.wait(c)
	if err == nil {
		err = b.waitTaking(c)
	}
	if err == nil { // it is over: no connection is added to those that are admitted
		b.mu.Unlock()
		t.admitting.Wait()
		b.mu.Lock()
		if b.closing {
			err = errEnding
		}
	}
	if err != nil {
		pidfd.Close()
		return nil, nil, err
	}
	return b.admitOrRestore(c, h, pidfd)
}

// claims counts a connection as the one that is asked for the files of a session. It sends the
// connection away for a while if another one is asked, or if the broker file contradicts it.
func (b *Broker) claims(c *conn, resume protocol.Resume) error {
	if !b.believed(resume, c.cred) {
		return tryAgain("the broker file names another process or secret for session %d", resume.Serial)
	}
	if !b.taking.asks(c, resume.Serial) {
		return tryAgain("another connection is asked for the files of session %d", resume.Serial)
	}
	return nil
}

// tryAgain is the answer to a client that connects again until the broker has taken over.
func tryAgain(format string, args ...any) error {
	return protocol.Errorf(protocol.CodeBrokerLost, "connect again until the broker has taken over", format, args...)
}

// askToRestore tells a client to hand over its files. It takes ownership of pidfd.
func (b *Broker) askToRestore(c *conn, h *protocol.Hello, pidfd *sys.FD) *protocol.HelloReply {
	c.returning = &returning{hello: *h, pidfd: pidfd, handed: map[sessionfiles.Key]bool{}}
	reply := b.greeting()
	reply.Restore = true
	return reply
}

// waitTaking releases the mutex until the takeover is over.
func (b *Broker) waitTaking(c *conn) error {
	t := b.taking
	if t == nil {
		return nil
	}
	b.mu.Unlock()
	select {
	case <-t.over:
	case <-c.stop:
	}
	b.mu.Lock()
	if b.closing || b.taking != nil || t.err != nil {
		return errEnding
	}
	return nil
}

// restore carries out `restore` and `restored` and tells whether to go on.
func (c *conn) restore(h head, data []byte, fds []*sys.FD) bool {
	if c.returning == nil && c.session != nil && h.Op == protocol.OpRestore {
		err := c.b.restoreUnlisted(c.session, data, fds)
		c.reply(h.ID, done{}, nil, err)
		return true
	}
	if c.returning == nil {
		wire.CloseAll(fds)
		c.reply(h.ID, nil, nil, protocol.Errorf(protocol.CodeProtocol, "send this only when hello's reply asks for it", "this broker asked for no files"))
		return false
	}
	if h.Op == protocol.OpRestored {
		wire.CloseAll(fds)
		var r protocol.Restored
		if err := decode(data, &r); err != nil {
			return c.refuseFiles(h.ID, err)
		}
		c.returning.unanswered, c.returning.sessions, c.returning.segments = r.Unanswered, r.Sessions, r.Segments
		reply, out, err := c.b.restored(c)
		if err == nil {
			c.w.SetReadDeadline(time.Time{})
		}
		c.answer(h.ID, reply, out, err, err == nil)
		return err == nil
	}
	if err := c.b.restoreFiles(c, data, fds); err != nil {
		return c.refuseFiles(h.ID, err)
	}
	c.reply(h.ID, done{}, nil, nil)
	return true
}

// refuseFiles refuses what a client hands over. The connection is no longer the one that is
// asked before the client reads the answer, since the client may connect again at once.
func (c *conn) refuseFiles(id uint64, err error) bool {
	c.b.mu.Lock()
	c.b.taking.forget(c)
	c.b.mu.Unlock()
	c.reply(id, nil, nil, err)
	return false
}

// decodeRestore reads a `restore`. On an error the descriptors are closed.
func decodeRestore(data []byte, fds []*sys.FD) (r protocol.Restore, err error) {
	err = decode(data, &r)
	if err == nil && len(r.Items) != len(fds) {
		err = protocol.Errorf(protocol.CodeInvalid, "send one descriptor for each item", "%d items with %d descriptors", len(r.Items), len(fds))
	}
	if err != nil {
		wire.CloseAll(fds)
	}
	return r, err
}

// restoreUnlisted takes files from a session that is back and did not list them: the answers that
// brought them were under way. Those that are not missing are closed.
func (b *Broker) restoreUnlisted(s *session, data []byte, fds []*sys.FD) error {
	r, err := decodeRestore(data, fds)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.reachable(s); err != nil {
		wire.CloseAll(fds)
		return err
	}
	for i, item := range r.Items {
		k := sessionfiles.Key{Role: item.Role, Serial: item.Serial}
		known := b.wantedOrKnown(k)
		if err := b.acceptRestored(k, fds[i]); err != nil {
			wire.CloseAll(fds[i+1:])
			return err
		}
		b.handed(s, k, known)
	}
	b.assignSoon()
	return nil
}

func (b *Broker) restoreFiles(c *conn, data []byte, fds []*sys.FD) error {
	r, err := decodeRestore(data, fds)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closing {
		wire.CloseAll(fds)
		return errEnding
	}
	if !b.believes(c) {
		wire.CloseAll(fds)
		return b.errNotResumable(c.returning.hello.Resume)
	}
	for i, item := range r.Items {
		k := sessionfiles.Key{Role: item.Role, Serial: item.Serial}
		c.returning.handed[k] = b.wantedOrKnown(k)
		if err := b.acceptRestored(k, fds[i]); err != nil {
			wire.CloseAll(fds[i+1:])
			return err
		}
	}
	return nil
}

// restored gives a client that handed over its files its session back, as soon
// as the broker serves again.
func (b *Broker) restored(c *conn) (*protocol.HelloReply, []*sys.FD, error) {
	b.mu.Lock()
	t := b.taking
	if t == nil {
		defer b.mu.Unlock()
		return b.admitRestored(c)
	}
	t.admitting.Add(1)
	t.claims = append(t.claims, claim{*c.returning.hello.Resume, c.cred})
	b.tryComplete()
	err := b.waitTaking(c)
	if err != nil {
		c.returning.pidfd.Close()
		c.returning = nil
		t.admitting.Done()
		b.mu.Unlock()
		return nil, nil, err
	}
	reply, fds, err := b.admitRestored(c)
	t.admitting.Done()
	b.mu.Unlock()
	t.admitting.Wait()
	return reply, fds, err
}

// admitRestored is restored while the broker serves and the mutex is held.
func (b *Broker) admitRestored(c *conn) (*protocol.HelloReply, []*sys.FD, error) {
	r := c.returning
	c.returning = nil
	if b.closing {
		r.pidfd.Close()
		return nil, nil, errEnding
	}
	reply, fds, err := b.admit(c, &r.hello, r.pidfd)
	if err == nil && reply.Resumed {
		b.reconcile(c.session, r)
		b.finishRecovery()
	}
	return reply, fds, err
}

// reconcile notes what a session has mapped, and undoes answers that it did not get: a reader
// that it does not know of would be waited for without a result. What it did not list stays:
// the list may be incomplete.
func (b *Broker) reconcile(s *session, r *returning) {
	mapped := r.segments
	for k, known := range r.handed {
		if known && k.Role == protocol.RestoreSegment {
			mapped = append(mapped, k.Serial)
		}
	}
	b.memory.Reconcile(s.memory, mapped)
	b.takeCustody(s, r)
	b.topics.TakeBack(s.party, r.unanswered)
}
