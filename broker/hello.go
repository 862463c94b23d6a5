package broker

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// hello opens a session, or gives a reconnecting client its own back.
func (c *conn) hello(id uint64, data []byte, fds []*sys.FD) bool {
	reply, out, err := c.b.hello(c, data, fds)
	if err == nil {
		if !reply.Restore { // else until it has handed over what it has
			c.w.SetReadDeadline(time.Time{})
		}
		c.w.Trust()
	}
	c.violated = c.session != nil && err != nil
	c.refusedEarly(protocol.OpHello, err)
	c.answer(id, reply, out, err, err == nil && !reply.Restore)
	return err == nil
}

func (b *Broker) hello(c *conn, data []byte, fds []*sys.FD) (*protocol.HelloReply, []*sys.FD, error) {
	var h protocol.Hello
	if err := decode(data, &h); err != nil {
		return nil, nil, err
	}
	if err := b.checkHello(&h); err != nil {
		return nil, nil, err
	}
	fds, err := c.keepAlive(&h, fds)
	if err != nil {
		return nil, nil, err
	}
	pidfd, err := c.pidfd(fds)
	if err != nil {
		return nil, nil, err
	}
	c.lookAtProcess()
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closing:
		pidfd.Close()
		return nil, nil, errEnding
	case c.session != nil:
		pidfd.Close()
		return nil, nil, protocol.Errorf(protocol.CodeProtocol, "send hello once", "this connection said hello before")
	case b.taking != nil:
		return b.helloTaking(c, &h, pidfd)
	}
	return b.admitOrRestore(c, &h, pidfd)
}

// lookAtProcess asks the kernel about the process that says hello. The mutex is not held: /proc may make it wait.
func (c *conn) lookAtProcess() {
	if c.cred.PID != 0 {
		c.start, _ = sys.StartTime(c.cred.PID) // 0: a successor cannot tell whether it lives
		c.container = sys.Container(c.cred.PID)
	}
}

// admitOrRestore is admit; a client that has not handed over its files yet is asked for them
// instead. It takes ownership of pidfd.
func (b *Broker) admitOrRestore(c *conn, h *protocol.Hello, pidfd *sys.FD) (*protocol.HelloReply, []*sys.FD, error) {
	if s := b.resumable(c, h); s != nil && s.absent {
		return b.askToRestore(c, h, pidfd), nil, nil
	}
	return b.admit(c, h, pidfd)
}

// refusalHeard is how long the process of a session that is over may take to read the refusal.
const refusalHeard = time.Second

// admit resumes or opens the session of a hello. It takes ownership of pidfd.
func (b *Broker) admit(c *conn, h *protocol.Hello, pidfd *sys.FD) (*protocol.HelloReply, []*sys.FD, error) {
	if s := b.resumable(c, h); s != nil && !(s.evicted && s.left) {
		s.memory.CUDA = slices.Contains(h.Features, protocol.FeatureCUDA)
		b.resume(c, s, h, pidfd)
		reply := b.helloReply(s)
		reply.Resumed = true
		return reply, nil, nil
	}
	if h.Resume != nil {
		pidfd.Close()
		// Until it reads this it may have gone on taking items, which nothing else frees.
		b.clock.After(refusalHeard, b.topics.FreeStrays)
		return nil, nil, b.errNotResumable(h.Resume)
	}
	var secret [16]byte
	rand.Read(secret[:])
	s, err := b.openSession(c, h, pidfd, hashSecret(secret[:]))
	if err != nil {
		return nil, nil, err
	}
	out, err := sessionfiles.Descriptors(b.store.Broker.FD.ReopenReadOnly, s.File.FD.Dup, b.store.LendBells,
		b.store.Own.File.FD.ReopenReadOnly)
	if err != nil {
		b.endSession(s)
		return nil, nil, fmt.Errorf("hand out shared files: %w", err)
	}
	crashpoint.At("broker-hello-opened")
	s.takeAlive(c)
	c.session, s.memory.CUDA = s, slices.Contains(h.Features, protocol.FeatureCUDA)
	reply := b.helloReply(s)
	reply.Secret = hex.EncodeToString(secret[:])
	return reply, out, nil
}

// errNotResumable says why a session does not go on, where this broker or one before knows that.
func (b *Broker) errNotResumable(r *protocol.Resume) error {
	if r.Instance == b.id && b.wasEvicted(r.Serial) {
		return protocol.Errorf(protocol.CodeExpired, "open a new session", "an operator evicted it").With("reason", protocol.ReasonEvicted)
	}
	return protocol.Errorf(protocol.CodeExpired, "open a new session",
		"this broker (instance %s) has no session %d of instance %s that this process could resume", b.id, r.Serial, r.Instance)
}

// wasEvicted tells whether an operator has ended a session, which may hold something still.
func (b *Broker) wasEvicted(serial uint64) bool {
	if s := b.bySerial(serial); s != nil {
		return s.byOperator()
	}
	return b.store.Record.WasEvicted(serial)
}

func (b *Broker) helloReply(s *session) *protocol.HelloReply {
	reply := b.greeting()
	reply.Slot, reply.Serial = s.Slot, s.Serial
	return reply
}

// greeting is what every reply to a hello says of the broker.
func (b *Broker) greeting() *protocol.HelloReply {
	return &protocol.HelloReply{
		Protocol: protocol.Version, Layout: protocol.Layout, Features: []string{},
		Instance: b.id, Version: b.cfg.Version,
		Limits: protocol.Limits{SessionBytes: b.cfg.SessionMemory, MemoryBytes: b.cfg.Memory},
	}
}

func (b *Broker) checkHello(h *protocol.Hello) error {
	err := protocol.This(protocol.SpeakerBroker, b.cfg.Version).CheckPeer(
		protocol.Speaker{Role: protocol.SpeakerClient, Build: sessionfiles.Printable(h.Client.Version, maxClientVersion), Speaks: h.Protocol, Layout: h.Layout})
	if err != nil {
		return err
	}
	if h.Namespace == "" {
		h.Namespace = protocol.DefaultNamespace
	}
	return protocol.CheckNamespace(h.Namespace)
}

// pidfd returns a descriptor that becomes readable at the end of the process that connected.
// It comes from the kernel, or, before Linux 6.5, from the client, checked against the
// credentials of the socket.
func (c *conn) pidfd(fds []*sys.FD) (*sys.FD, error) {
	fd, err := sys.PeerPidfd(c.w.UnixConn)
	if err == nil || sys.IsNoDescriptors(err) {
		return fd, err
	}
	if len(fds) == 0 {
		return nil, protocol.Errorf(protocol.CodeUnsupported, "send a pidfd of the process itself with hello",
			"this kernel cannot tell which process connected")
	}
	pid, err := sys.PidfdPID(fds[0])
	if err != nil || pid != c.cred.PID {
		return nil, protocol.Errorf(protocol.CodePermission, "send a pidfd of the process itself with hello",
			"the descriptor sent is not a pidfd of the process that connected (%d)", c.cred.PID)
	}
	return fds[0].Dup()
}

func hashSecret(secret []byte) (h [16]byte) {
	sum := sha256.Sum256(secret)
	copy(h[:], sum[:16])
	return h
}

// isSecret tells whether a text is the secret of a hash.
func isSecret(text string, hash [16]byte) bool {
	secret, err := hex.DecodeString(text)
	own := hashSecret(secret)
	return err == nil && subtle.ConstantTimeCompare(own[:], hash[:]) == 1
}

// resumable finds the session that a hello may resume: the same instance, the
// secret, and the same process.
func (b *Broker) resumable(c *conn, h *protocol.Hello) *session {
	r := h.Resume
	if r == nil || r.Instance != b.id {
		return nil
	}
	for _, s := range b.used() {
		if s != nil && s.Serial == r.Serial && s.uid == c.cred.UID && isSecret(r.Secret, s.secretHash) &&
			(c.cred.PID == 0 || c.cred.PID == s.PID || s.absent && b.foreign) {
			return s
		}
	}
	return nil
}

// resume gives a session a new connection and sends it every event. It
// takes ownership of pidfd.
func (b *Broker) resume(c *conn, s *session, h *protocol.Hello, pidfd *sys.FD) {
	if s.process == nil {
		go b.watch(s, pidfd)()
	} else {
		pidfd.Close()
	}
	if s.absent {
		s.absent, s.unknown = false, false
		s.version = sessionfiles.Printable(h.Client.Version, maxClientVersion) // on no page: a previous broker knew it
		if c.cred.PID != 0 {
			before := s.lineOf()
			s.PID, s.pidNS = c.cred.PID, sys.PIDNamespace(c.cred.PID)
			s.start = c.start
			b.putSession(s)
			if line := s.lineOf(); line != before && b.begun { // else all of it is written when it begins
				b.noteState(stateChange{Opened: &line})
			}
		}
	}
	if old := s.conn; old != nil {
		old.finish()
	}
	s.conn, c.session = c, s
	s.takeAlive(c)
	delete(b.away, s)
	// An event may have been lost with the connection before, or written and not read.
	c.event(func(p *pending) { p.trim, p.collect, p.room = true, true, true })
	if s.evicted && !s.left {
		s.tellEvicted()
		return
	}
	if s.state == protocol.SessionClosed {
		s.counting = true // until its next bye
		b.leave(s)
	} else {
		b.setState(s, protocol.SessionLive)
	}
	b.custody.Resume(s.custody)
	b.log.Info("session resumed", events.Of(events.Session), "slot", s.Slot, "serial", s.Serial, "name", s.Name, "pid", s.PID)
}
