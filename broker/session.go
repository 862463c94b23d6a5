package broker

import (
	"fmt"
	"os"
	"time"

	"github.com/baton-ipc/baton/broker/custody"
	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/broker/memory"
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/broker/topics"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

var processID = os.Getpid()

// session is one client process's place at the broker, from hello until its
// process has ended or it said bye. Connections may come and go meanwhile.
type session struct {
	*sessionfiles.SessionFile
	state       uint32 // as in the SessionRecord
	ended       bool
	absent      bool            // of a previous broker, and not back yet
	left        bool            // closed, and its part in all is over
	counting    bool            // closed, and may count up until its next bye
	evicted     bool            // by hand; its client may not know of it yet
	why         *protocol.Error // it is evicted; nil: by hand
	denied      bool            // not connected, and its user may not connect any more
	returnless  bool            // evicted, and its client has read so: it counts up nothing, and no client comes back for it
	givenUp     bool            // by hand, though what it sent may be lost
	answered    bool            // its client knows of it: hello was answered
	read        bool            // absent, and all files that its process has were looked at
	heard       bool            // its client said something after that
	unknown     bool            // absent, and not known whether its process lives
	conn        *conn           // nil while disconnected
	secretHash  [16]byte
	uid         uint32
	start       uint64 // start time of the process
	pidNS       uint64
	namespace   string
	language    uint32
	version     string // of the client library
	connectedAt time.Time
	process     *sys.Watched // by its pidfd; nil: it is not watched
	alive       *sys.FD      // mapped for writing as long as the program runs; may be nil

	over chan struct{} // closed once the session, evicted by hand, is closed or over; nil: no request waits

	memory  *memory.Account
	party   *topics.Party
	custody *custody.Session
}

var languages = map[string]uint32{
	"go": protocol.LanguageGo, "rust": protocol.LanguageRust, "c": protocol.LanguageC, "python": protocol.LanguagePython,
}

func languageName(n uint32) string {
	for name, v := range languages {
		if v == n {
			return name
		}
	}
	return "unknown"
}

// maxClientVersion bounds the text of a client's version, in bytes.
const maxClientVersion = 64

// used are the slots that were ever given out, free ones as nil.
func (b *Broker) used() []*session { return b.slots[:b.slotTable.Used()] }

// Trim, Collect and Room notify the session of changes of its memory and lanes.
func (s *session) Trim() { s.event(func(p *pending) { p.trim = true }) }

// Collect is as Trim.
func (s *session) Collect() { s.event(func(p *pending) { p.collect = true }) }

// Reclaim is as Trim. It tells whether the client can be notified.
func (s *session) Reclaim() bool {
	s.event(func(p *pending) { p.reclaim = true })
	return s.conn != nil
}

// Room is as Trim.
func (s *session) Room() { s.event(func(p *pending) { p.room = true }) }

// Custody is as Trim, for the descriptors that it keeps.
func (s *session) Custody() { s.event(func(p *pending) { p.custody = true }) }

// openSession makes a session for the process of pidfd. It takes ownership of pidfd.
func (b *Broker) openSession(c *conn, h *protocol.Hello, pidfd *sys.FD, secretHash [16]byte) (*session, error) {
	pid := c.cred.PID
	if pid == 0 {
		pid = h.PID
	}
	serial := b.store.Record.NextSerial()
	holder := b.holderOf(serial, c.cred.PID, c.cred.UID)
	slot, err := b.slotTable.Take(holder)
	if err != nil {
		pidfd.Close()
		return nil, err
	}
	p, err := b.makeSessionFile(slot, serial, holder)
	if err != nil {
		b.slotTable.Give(slot, holder)
		pidfd.Close()
		return nil, err
	}
	p.PID = pid
	if p.SetName(h.Client.Name); p.Name == "" {
		p.SetName(fmt.Sprintf("process %d", pid))
	}
	s := &session{SessionFile: p}
	s.state, s.conn, s.secretHash, s.uid = protocol.SessionLive, c, secretHash, c.cred.UID
	s.namespace, s.language = h.Namespace, languages[h.Client.Language]
	s.version, s.connectedAt = sessionfiles.Printable(h.Client.Version, maxClientVersion), time.Now()
	s.start = c.start
	b.slots[slot] = s
	b.enter(s)
	b.putSession(s)
	c.watch = b.watch(s, pidfd)
	line := s.lineOf()
	b.noteState(stateChange{Opened: &line})
	b.noteFiles()
	b.checkIdle()
	opened := []any{events.Of(events.Session), "slot", slot, "serial", s.Serial, "name", s.Name, "pid", pid, "uid", s.uid, "namespace", s.namespace}
	if c.container != "" {
		opened = append(opened, "container", c.container)
	}
	b.log.Info("session opened", opened...)
	return s, nil
}

// makeSessionFile makes the file of a session, and reserves its record and its bell.
func (b *Broker) makeSessionFile(slot uint32, serial uint64, h record.Holder) (*sessionfiles.SessionFile, error) {
	if err := b.store.ReserveSession(slot, b.liveSessions()+1); err != nil {
		return nil, err
	}
	if err := b.store.ReserveBell(slot); err != nil {
		return nil, err
	}
	return b.store.Make(slot, serial, h)
}

// enter gives a session its place in each part.
func (b *Broker) enter(s *session) {
	s.memory = b.memory.Open(s.SessionFile, s)
	s.party = b.topics.Open(s.SessionFile, s.namespace, s)
	s.party.Process = s
	s.custody = b.custody.Open(s.PID, s.Slot, s)
}

// Exit tells how the session's process has ended, as far as it is known.
func (s *session) Exit() sys.Exit {
	if s.process == nil {
		return sys.Exit{}
	}
	return s.process.Exit()
}

// Evicted tells whether the session was ended by an operator, or since its user may not have one.
func (s *session) Evicted() bool { return s.evicted || s.returnless }

// Began tells when the session's process began, 0 where that is not known, and of which user it is.
func (s *session) Began() (start uint64, uid uint32) { return s.start, s.uid }

// putSession writes the session's record, the serial last.
func (b *Broker) putSession(s *session) {
	b.store.Record.Session(s.Slot).Store(record.Session{
		Serial: s.Serial, State: s.state, PID: uint32(s.PID), StartTime: s.start, UID: s.uid, Language: s.language,
		SecretHash: s.secretHash, Connected: uint64(s.connectedAt.UnixNano()), PIDNS: s.pidNS, Name: s.Name, Namespace: s.namespace,
		File: s.File.Inode, Answered: s.answered, Heard: s.heard, Holder: s.Holder})
}

// answered notes that the client of a connection knows its session: the answer to
// its hello is written. If this broker dies before, the client may not be able to
// resume the session, and the next broker does not wait for it.
func (b *Broker) answered(c *conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := c.session
	if b.closing || s == nil || s.ended || s.answered {
		return
	}
	s.answered = true
	b.store.Record.Session(s.Slot).SetAnswered()
	if c.cred.PID != 0 { // only for diagnostics; the first lookup of a process is slow
		s.pidNS = sys.PIDNamespace(s.PID)
		b.store.Record.Session(s.Slot).SetPIDNamespace(s.pidNS)
	}
}

// heard notes that the client of a session said something: it has the session's files.
func (b *Broker) heard(s *session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closing && !s.ended && !s.heard {
		s.heard = true
		b.store.Record.Session(s.Slot).SetHeard()
		b.custody.Resume(s.custody) // from here on its client heeds events
		b.assignSoon()
	}
}

func (b *Broker) setState(s *session, state uint32) {
	s.state = state
	b.store.Record.Session(s.Slot).SetState(state)
}

// watch makes what waits for the end of the session's process and then ends the session; the
// caller runs it in a goroutine. It takes ownership of the pidfd.
func (b *Broker) watch(s *session, pidfd *sys.FD) func() {
	process := sys.WatchProcess(pidfd, s.PID, s.start)
	s.process = process
	return func() {
		if !process.Wait() {
			return
		}
		b.mu.Lock()
		c := s.conn
		b.mu.Unlock()
		if c != nil {
			c.drain()
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if !s.ended && !b.closing {
			b.log.Info("process ended", events.Of(events.Session), "slot", s.Slot, "serial", s.Serial, "name", s.Name, "pid", s.PID)
			b.processEnded(s)
		}
	}
}

// disconnected is called when a connection has ended. Its session stays as it
// is: only the end of the process, or bye, ends it. It also ends when its client never
// got an answer to hello, and so cannot resume it, or has broken the protocol.
func (b *Broker) disconnected(c *conn) {
	s := c.session
	if s == nil || s.conn != c || s.ended {
		return
	}
	s.conn = nil
	b.custody.Away(s.custody)
	if b.closing {
		b.clientEnded(s)
		return
	}
	if s.evicted && !s.left {
		b.evictedEnds(s, c)
		return
	}
	if !s.answered && !s.absent {
		b.log.Info("session ended: its client got no answer to hello", events.Of(events.Session), "slot", s.Slot, "serial", s.Serial, "pid", s.PID)
		b.endSession(s)
		return
	}
	if c.violated {
		b.log.Info("session closed: its client broke the protocol", events.Of(events.Session), "slot", s.Slot, "serial", s.Serial, "name", s.Name, "pid", s.PID)
		s.counting = false
		b.leave(s)
		if b.endIfEmpty(s); s.ended {
			return
		}
	}
	if s.state != protocol.SessionClosed {
		b.setState(s, protocol.SessionDisconnected)
		b.log.Info("session disconnected", events.Of(events.Session), "slot", s.Slot, "serial", s.Serial, "name", s.Name, "pid", s.PID)
	}
	if !b.endReplaced(s) && s.alive != nil {
		b.away[s] = struct{}{}
		b.reapSoon()
	}
}

// event notifies a session. One that is disconnected is notified of everything
// when it is back.
func (s *session) event(change func(*pending)) {
	if s.ended {
		return
	}
	if s.conn != nil {
		s.conn.event(change)
	}
}
