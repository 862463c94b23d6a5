package broker

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

const (
	// helloTime is how long a connection may take until its hello.
	helloTime = 30 * time.Second
	// farewellTime is how long a closing connection may take to read its last
	// words.
	farewellTime = time.Second
)

// conn is one connection: a goroutine that reads requests, carries them out in order
// and answers them itself, so that a response wakes only the thread that sent the
// request, and one that writes events while there are any. The broker reads no requests of a
// client that does not read its replies.
type conn struct {
	b    *Broker
	w    *wire.Conn
	cred sys.Credentials
	// start is when the process of hello began, container the one in which it runs, where the kernel tells.
	start     uint64
	container string
	// observes: it may look, and change nothing.
	observes bool
	// stranger: its user may not connect.
	stranger bool
	// holder shares the connections with others of its process, which has no session yet.
	holder record.Holder

	stop  chan struct{} // closed: the last events are written, then the socket is closed
	ended chan struct{} // closed when the socket is
	read  chan struct{} // closed when nothing more is read
	once  sync.Once

	// answering is held while a request is carried out and answered, so that a connection that is finished
	// answers what it has changed: a client asks the next broker for what was not answered, and a
	// revision would be published twice.
	answering sync.Mutex

	writing sync.Mutex // one frame at a time; never taken with the broker's mutex held
	heard   bool       // it said something after hello; the reader's alone
	greeted bool       // under writing: hello is answered, so that events may follow
	broken  bool       // under writing: nothing may follow, a frame was not written whole or the socket is closed

	mu      sync.Mutex // guards what follows; taken with or without the broker's
	pending pending
	telling bool // a goroutine is about to write them

	violated  bool     // the reader's: the client has broken the protocol
	watch     func()   // the reader's: what waits for the end of a new session's process
	session   *session // set by hello; the broker's mutex guards it
	alive     *sys.FD  // came with hello, and no session has it yet
	crowd     crowd    // among whom it is counted during a takeover; the broker's mutex guards it
	fetches   fetches
	returning *returning // between a previous broker's client's hello and its restored
}

// pending are events not yet written. Each but the reason is a flag: an event that happens again before the
// client has read it is sent once.
type pending struct {
	trim, collect, reclaim, closing, evicted, stopped, room, custody bool
	why                                                              *protocol.Error // it is evicted; nil: by hand
}

func newConn(b *Broker, w *wire.Conn, cred sys.Credentials) *conn {
	holder := record.Holder{Family: uint64(cred.PID) + 1, User: b.userOf(cred.UID)}
	return &conn{b: b, w: w, cred: cred, holder: holder, stop: make(chan struct{}), ended: make(chan struct{}), read: make(chan struct{})}
}

// event changes the pending events and has them written. It never blocks.
func (c *conn) event(change func(*pending)) {
	c.mu.Lock()
	change(&c.pending)
	told := c.telling
	c.telling = true
	c.mu.Unlock()
	if !told {
		go func() {
			c.writing.Lock()
			defer c.writing.Unlock()
			c.sendEvents()
		}()
	}
}

// finish lets the request under way be answered and the last events be written, then closes
// the socket. It never blocks. Any goroutine.
func (c *conn) finish() {
	c.once.Do(func() {
		c.w.SetWriteDeadline(time.Now().Add(farewellTime))
		close(c.stop)
		go func() {
			c.answering.Lock()
			defer c.answering.Unlock()
			c.writing.Lock()
			defer c.writing.Unlock()
			c.sendEvents()
			c.broken = true
			c.w.Close()
			close(c.ended)
		}()
	})
}

// refuse answers a connection that will not be served and closes it.
func (c *conn) refuse(err error) {
	c.refusedEarly(opConnect, err)
	c.reply(0, nil, nil, err)
	c.finish()
	<-c.ended
	c.b.mu.Lock()
	c.b.forgetConn(c)
	c.b.mu.Unlock()
}

// reply writes a reply, and waits while the client leaves no room for it. It takes
// ownership of the descriptors. The broker's mutex is not held.
func (c *conn) reply(id uint64, ok any, fds []*sys.FD, err error) {
	c.answer(id, ok, fds, err, false)
}

// answer is reply; with greets it is the answer to a hello.
func (c *conn) answer(id uint64, ok any, fds []*sys.FD, err error, greets bool) {
	defer c.startWatch()
	frame, fds := encodedReply(id, ok, fds, err)
	defer wire.CloseAll(fds)
	c.writing.Lock()
	defer c.writing.Unlock()
	c.writeReply(frame, fds)
	if !greets || c.broken {
		return
	}
	c.greeted = true
	crashpoint.At("broker-hello-answered")
	c.b.answered(c)
	c.sendEvents()
}

// startWatch starts the goroutine that waits for the end of the process of a session just
// opened. It comes after the answer, since it wakes a thread. The answer does not wait for
// the client, since it is the first thing written on its connection.
func (c *conn) startWatch() {
	if c.watch != nil {
		go c.watch()
		c.watch = nil
	}
}

type reply struct {
	ID    uint64          `json:"id"`
	OK    any             `json:"ok,omitempty"`
	Error *protocol.Error `json:"error,omitempty"`
}

// encodedReply is the frame of a reply, and the descriptors that go with it: none where the reply cannot be encoded,
// which the frame says then. It takes ownership of those given.
func encodedReply(id uint64, ok any, fds []*sys.FD, err error) ([]byte, []*sys.FD) {
	frame, encodeErr := encodeReply(id, ok, len(fds), err)
	if encodeErr != nil {
		wire.CloseAll(fds)
		fds = nil
		frame, _ = encodeReply(id, nil, 0, encodeErr)
	}
	return frame, fds
}

// writeReply writes a reply, unless a write has failed before. The caller holds c.writing.
func (c *conn) writeReply(frame []byte, fds []*sys.FD) {
	if !c.broken {
		c.wrote(c.w.WriteFrame(frame, fds))
	}
}

func encodeReply(id uint64, ok any, fds int, err error) ([]byte, error) {
	if err != nil {
		return wire.Encode(reply{ID: id, Error: sessionfiles.AsError(err)}, 0)
	}
	return wire.Encode(reply{ID: id, OK: ok}, fds)
}

// sendEvents writes the events there are, once hello was answered: until then they
// wait for its answer. It is called under writing.
func (c *conn) sendEvents() {
	if !c.greeted || c.broken {
		return
	}
	c.mu.Lock()
	p := c.pending
	c.pending, c.telling = pending{}, false
	c.mu.Unlock()
	if p.why != nil {
		c.tell(reply{Error: p.why})
	}
	for _, e := range []struct {
		told bool
		name string
	}{
		{p.trim, protocol.EventTrim},
		{p.collect, protocol.EventCollect},
		{p.reclaim, protocol.EventReclaim},
		{p.closing, protocol.EventClosing},
		{p.evicted, protocol.EventEvicted}, // before what it explains
		{p.stopped, protocol.EventStopped},
		{p.room, protocol.EventRoom},
		{p.custody, protocol.EventCustody},
	} {
		if e.told {
			c.tell(protocol.Envelope{Event: e.name})
		}
	}
}

// tell writes one event, unless one before it failed.
func (c *conn) tell(event any) {
	if !c.broken {
		c.wrote(c.w.Write(event))
	}
}

// wrote ends a connection on which a frame could not be written.
func (c *conn) wrote(err error) {
	if err != nil {
		c.broken = true
		c.finish()
	}
}

// readLoop carries out requests until the connection ends.
func (c *conn) readLoop() {
	defer c.w.Discard()
	c.w.SetReadDeadline(time.Now().Add(helloTime))
	for {
		data, fds, err := c.w.Read()
		if err == wire.ErrNoDescriptors && c.lack(data) {
			continue
		}
		if err != nil {
			c.lost(err)
			break
		}
		if !c.request(data, fds) {
			break
		}
	}
	c.b.mu.Lock()
	c.b.forgetConn(c)
	if c.returning != nil {
		c.returning.pidfd.Close()
	}
	c.alive.Close()
	c.b.disconnected(c)
	c.b.mu.Unlock()
	close(c.read)
	c.finish()
	<-c.ended
}

// drainTime bounds how long the requests of a dead process are read: another process may have its socket.
const drainTime = 100 * time.Millisecond

// drain waits until the requests that the client's process had sent before its death are
// carried out. The mutex is not held.
func (c *conn) drain() {
	c.w.SetReadDeadline(time.Now().Add(drainTime))
	select {
	case <-c.read:
	case <-time.After(2 * drainTime):
	}
}

// lost answers what was malformed; a mere end needs no answer.
func (c *conn) lost(err error) {
	var e *protocol.Error
	if err == wire.ErrNoDescriptors { // many hand over their files at once, near the limit
		c.b.sparing.Warn(c.causer(), "a client was sent away, and tries again: too many files are open", "pid", c.cred.PID)
		c.reply(0, nil, nil, err)
		return
	}
	if errors.As(err, &e) {
		c.b.sparing.Warn(c.causer(), "malformed frame", "pid", c.cred.PID, "error", err)
		c.violated = true
		c.reply(0, nil, nil, e)
		return
	}
	if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		c.b.log.Debug("connection lost", "pid", c.cred.PID, "error", err)
	}
}

// lack answers a request whose descriptors this process could not receive, and tells whether
// to go on. A session goes on, since it has not broken the protocol.
func (c *conn) lack(data []byte) bool {
	var h head
	if c.session == nil || json.Unmarshal(data, &h) != nil {
		return false
	}
	c.reply(h.ID, nil, nil, protocol.Errorf(protocol.CodeTooMany, "try again, and raise the broker's limit of open files (ulimit -n)",
		"the broker could not receive the descriptors of %s: it has too many open files", sessionfiles.Printable(h.Op, 32)))
	return true
}

// head is what every request has.
type head struct {
	ID uint64 `json:"id"`
	Op string `json:"op"`
}

// request carries out one request and tells whether to go on. It closes the
// descriptors that came with it unless the op keeps them.
func (c *conn) request(data []byte, fds []*sys.FD) bool {
	var h head
	err := json.Unmarshal(data, &h)
	if refused := c.mayLook(h.Op, data); err == nil && refused != nil {
		wire.CloseAll(fds)
		c.refusedEarly(h.Op, refused)
		if h.Op == protocol.OpHello {
			c.b.fetchOfRefused(c.cred)
		}
		c.reply(h.ID, nil, nil, refused)
		if h.Op == protocol.OpHello {
			c.b.refused(c.cred)
		}
		return true
	}
	if err == nil && (h.Op == protocol.OpRestore || h.Op == protocol.OpRestored) {
		return c.restore(h, data, fds)
	}
	defer wire.CloseAll(fds)
	if err != nil {
		c.violated = true
		c.reply(0, nil, nil, protocol.Errorf(protocol.CodeProtocol, "send one JSON object in each frame", "malformed request: %w", err))
		return false
	}
	switch {
	case h.Op == protocol.OpStop:
		c.stopBroker(h.ID, data)
		return false
	case h.Op == protocol.OpReplace:
		c.handOver(h.ID, data)
		return false
	case h.Op == protocol.OpHello:
		return c.hello(h.ID, data, fds)
	case c.session == nil && !looks[h.Op] && steers[h.Op] == nil:
		c.reply(h.ID, nil, nil, protocol.Errorf(protocol.CodeProtocol, "send hello first", "the request %q came before hello", h.Op))
		return false
	}
	op := ops[h.Op]
	if h.Op == protocol.OpOffer { // the one op that keeps a descriptor
		op = func(b *Broker, s *session, data []byte) (any, []*sys.FD, error) {
			return done{}, nil, b.opOffer(s, data, fds)
		}
	}
	if take := takesMemory[h.Op]; take != nil {
		op = func(b *Broker, s *session, data []byte) (any, []*sys.FD, error) { return take(b, s, data, false) }
	}
	if steer := steers[h.Op]; steer != nil { // which may wait, also for the end
		op = func(_ *Broker, _ *session, data []byte) (any, []*sys.FD, error) {
			ok, err := steer(c, data)
			return ok, nil, err
		}
	}
	if op == nil && h.Op != protocol.OpHandleFetch {
		c.reply(h.ID, nil, nil, protocol.Errorf(protocol.CodeUnsupported, "update the broker, or leave this out", "unknown op %q", h.Op))
		return true
	}
	if !c.heard && c.session != nil {
		c.heard = true
		c.b.heard(c.session)
	}
	if h.Op == protocol.OpHandleFetch {
		c.fetchHandle(h.ID, data)
		return true
	}
	if c.b.cfg.Span != nil && c.agree(h.Op, h.ID, data) {
		return true
	}
	if steers[h.Op] == nil {
		c.answering.Lock()
		defer c.answering.Unlock()
	}
	if h.Op == protocol.OpEvents {
		c.awaitEvents(data)
	}
	began := time.Now()
	ok, out, err := op(c.b, c.session, data)
	if c.waitsForMemory(h, data, began, err) {
		return true
	}
	err = c.b.nameAbsentees(err)
	c.carriedOut(h.Op, data, began, err)
	c.reply(h.ID, ok, out, err)
	bye, is := ok.(protocol.ByeReply)
	return !is || bye.Held
}
