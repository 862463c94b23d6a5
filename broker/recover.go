package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/broker/memory"
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// A broker that finds what the previous broker left takes its instance over. With --memory-dir it
// uses the files. Without, or where the files were removed, the clients hand over the
// descriptors of all that they have mapped. The broker file has everything else, so that
// slots, serials, topics and names stay as they are.
//
//	New: findPrevious → startTakeover (gather) → complete: rebuild, finishRecovery
//
// Nothing is changed before complete. If this broker dies as well, the next one may do every
// step of it again.

// previous is the previous broker's instance that can be taken over.
type previous struct {
	instance string
	state    *state                  // nil where the state file is of another instance
	dir      *sessionfiles.Directory // with files
	file     *sys.FD                 // of the broker, with files: locked
}

// gathering gets the previous broker's files from its clients.
type gathering struct {
	state  *state
	over   chan struct{} // closed when the broker serves
	err    error
	files  map[sessionfiles.Key]*sys.FD
	claims []claim         // of clients that say that they are back, until the broker file tells
	back   map[uint64]bool // sessions that handed over all they have
	gone   map[uint64]bool // sessions whose programs are no more
	read   map[int]bool    // processes of which all files were looked at
	denied map[int]uint32  // processes that were refused, and their users: nothing of them comes back
	until  time.Time
	// awaited are those that are neither back nor gone, and whose processes lived when they
	// were last looked at.
	awaited []stateSession
	// room is how many open files connections may have beside those of the sessions that come back.
	room    int
	crowded [comers + 1]int  // how many connections are of each crowd
	asked   map[uint64]*conn // which connection is asked for the files of a session, by serial
	// admitting counts the connections that have handed over all and are not admitted yet. No session goes on before
	// all of them are: it would be refused what only waits for the turn of another.
	admitting sync.WaitGroup
}

const takeoverTick = 50 * time.Millisecond

// startTakeover takes over at once where files have names, else it begins to
// wait for clients; await returns at the end.
func (b *Broker) startTakeover(p *previous) error {
	if err := b.setInstance(p.instance); err != nil {
		return err
	}
	if err := b.lookAtFiles(); err != nil {
		return err
	}
	if p.dir == nil {
		// The number of files is in the broker file, which is not here yet. To get it, there
		// must be descriptors for the files of the sessions.
		sessions := len(p.state.Sessions)
		if err := b.files.check(sessions, sessions, p.state.Files); err != nil {
			return err
		}
		b.store.Files = b.placeOfFiles()
		b.gather(p.state)
		b.takeKept()
		return nil
	}
	b.store.Files = *p.dir
	m, err := sessionfiles.MapFile(p.file, protocol.BrokerBytes)
	if err != nil {
		return err
	}
	if err := b.store.CheckHead(m, protocol.RoleBroker, 0); err != nil {
		m.Close()
		return err
	}
	b.useBrokerFile(m)
	if err := b.store.ReserveHead(); err != nil {
		return err
	}
	b.inodes = m.Device
	b.store.Missing = b.wanted()
	if err := b.checkRecorded(); err != nil {
		return err
	}
	if !b.hasNeeded(*p.dir) && p.state != nil && len(p.state.Survivors()) > 0 {
		b.gather(p.state)
		b.clock.After(goneSoon, b.lookForGone)
		b.acceptFromDirectory()
		return nil
	}
	sameBoot := b.store.Record.Boot() == sys.BootID()
	err = b.rebuild(sameBoot, func(k sessionfiles.Key) *sys.FD {
		fd, err := p.dir.Open(k.Role, k.Serial)
		if err != nil {
			b.log.Warn("a file of the previous broker is gone", events.Of(events.Takeover), "role", k.Role, "serial", k.Serial, "error", err)
			return nil
		}
		return fd
	})
	if err == nil {
		p.dir.Sweep(b.wanted())
	}
	return err
}

// gather begins to wait for the clients of a previous broker.
func (b *Broker) gather(st *state) {
	b.taking = &gathering{state: st, over: make(chan struct{}), files: map[sessionfiles.Key]*sys.FD{},
		back: map[uint64]bool{}, gone: map[uint64]bool{}, read: map[int]bool{}, denied: map[int]uint32{}, asked: map[uint64]*conn{}, until: time.Now().Add(b.cfg.RecoverWait), awaited: st.Survivors(),
		room: b.files.beyond(len(st.Sessions), st.Files)}
	b.log.Info("waiting for the clients of the previous broker", events.Of(events.Takeover), "instance", st.Instance, "sessions", len(b.taking.awaited))
}

// hasNeeded tells whether the files without which nothing can be taken over are in the
// memory directory.
func (b *Broker) hasNeeded(d sessionfiles.Directory) bool {
	return !slices.ContainsFunc(b.needed(), func(k sessionfiles.Key) bool {
		return !d.Has(k.Role, k.Serial, sys.FileID{Dev: b.store.Broker.Device, Ino: b.store.Missing[k]})
	})
}

// await blocks until the takeover is over or ctx ends. It is called while
// connections are accepted, without the mutex.
func (b *Broker) await(ctx context.Context) error {
	b.mu.Lock()
	t := b.taking
	if t == nil {
		b.mu.Unlock()
		return nil
	}
	b.tryComplete()
	b.mu.Unlock()
	ticker := time.NewTicker(takeoverTick)
	defer ticker.Stop()
	for {
		select {
		case <-t.over:
			return t.err
		case <-ctx.Done():
			return b.giveUp(t, fmt.Errorf("wait for the clients of the previous broker: %w", context.Cause(ctx)))
		case <-ticker.C:
			b.mu.Lock()
			if t := b.taking; t != nil {
				t.awaited = t.state.Living(t.awaited)
			}
			b.tryComplete()
			b.mu.Unlock()
		}
	}
}

// giveUp leaves everything as the previous broker did, unless the takeover has ended.
func (b *Broker) giveUp(t *gathering, why error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.taking == t {
		t.err = why
		b.endTakeover(t)
	}
	return t.err
}

// endTakeover lets the callers that wait for the takeover go on, or reports its failure to them.
func (b *Broker) endTakeover(t *gathering) {
	b.taking, b.closing = nil, t.err != nil
	if b.closing {
		b.clock.Stop()
	}
	for _, fd := range t.files {
		fd.Close()
	}
	close(t.over)
	b.denyRefused(t)
}

// tryComplete ends the gathering when every survivor is back, or when its time
// is over: then with what there is. Without the broker file or the broker's own
// refcounts nothing can be taken over, and a new instance begins.
func (b *Broker) tryComplete() {
	t := b.taking
	if t == nil {
		return
	}
	b.judge(t)
	t.awaited = slices.DeleteFunc(t.awaited, func(s stateSession) bool {
		return t.back[s.Serial] || t.gone[s.Serial] || b.isUnacknowledged(s) || b.isReturnless(s)
	})
	if b.anyComes(t) && time.Now().Before(t.until) {
		return
	}
	if len(t.awaited) > 0 || !b.gathered(t) || len(b.returnless(t)) > 0 {
		if b.fetch(t); b.taking != t {
			return // what was fetched shows that nothing can be taken over
		}
	}
	t.err = b.completeTakeover(t, len(t.awaited))
	b.endTakeover(t)
}

// claim is what a client has said that it handed over.
type claim struct {
	resume protocol.Resume
	cred   sys.Credentials
}

// judge counts a session as back if the client can resume it. A mere claim is not believed,
// since it would make the broker give up the sessions that are suspended.
func (b *Broker) judge(t *gathering) {
	if !b.store.Record.Valid() {
		return
	}
	for _, c := range t.claims {
		if b.believed(c.resume, c.cred) {
			t.back[c.resume.Serial] = true
		}
	}
	t.claims = nil
}

// believed tells whether a client can resume a session, by the broker file. Until that file is
// here every claim is believed.
func (b *Broker) believed(resume protocol.Resume, cred sys.Credentials) bool {
	if !b.store.Record.Valid() {
		return true
	}
	foreign := b.store.Record.PIDNamespace() != sys.PIDNamespace(processID)
	for _, s := range b.taking.state.Sessions {
		if s.Serial != resume.Serial || s.Slot >= b.store.Record.UsedSessions() {
			continue
		}
		r := b.store.Record.Session(s.Slot).Load()
		return r.Serial == resume.Serial && r.UID == cred.UID && isSecret(resume.Secret, r.SecretHash) &&
			(cred.PID == 0 || foreign || uint32(cred.PID) == r.PID)
	}
	return false
}

// believes is believed for a client that was asked for its files, also after the takeover.
func (b *Broker) believes(c *conn) bool {
	h := &c.returning.hello
	if b.taking != nil {
		return b.believed(*h.Resume, c.cred)
	}
	return b.resumable(c, h) != nil
}

// isUnacknowledged reports whether a session's client may not know of the session. That is in
// the broker file, once a client has handed it over.
func (b *Broker) isUnacknowledged(s stateSession) bool {
	if !b.store.Record.Valid() || s.Slot >= b.store.Record.UsedSessions() {
		return false
	}
	v := b.store.Record.Session(s.Slot)
	return v.Serial() == s.Serial && !v.Answered()
}

// isReturnless tells whether a session was evicted and no client comes back for it, by the broker
// file.
func (b *Broker) isReturnless(s stateSession) bool {
	if !b.store.Record.Valid() || s.Slot >= b.store.Record.UsedSessions() {
		return false
	}
	v := b.store.Record.Session(s.Slot)
	return v.Serial() == s.Serial && v.Evicted() == record.EvictionRead
}

// gathered tells whether the files are here without which nothing can be taken over.
func (b *Broker) gathered(t *gathering) bool {
	return b.store.Record.Valid() && !slices.ContainsFunc(b.needed(), func(k sessionfiles.Key) bool { return t.files[k] == nil })
}

func (b *Broker) completeTakeover(t *gathering, awaited int) error {
	if !b.gathered(t) {
		b.log.Warn("no client of the previous broker handed over its memory, and none could be taken from one that is suspended: starting anew", events.Of(events.Takeover), "sessions_lost", awaited)
		b.store.CloseBrokerFile()
		b.store.Missing = nil
		return b.begin()
	}
	err := b.rebuild(true, func(k sessionfiles.Key) *sys.FD {
		fd := t.files[k]
		delete(t.files, k)
		return fd
	})
	if errors.Is(err, protocol.ErrProtocol) {
		// The refcounts are damaged: the next start must not meet them again. Any other error may not
		// occur at the next broker.
		b.removeState()
	}
	return err
}

// setInstance gives this broker the instance of the previous one.
func (b *Broker) setInstance(text string) error {
	n, err := parseInstance(text)
	if err != nil {
		return err
	}
	b.store.Instance, b.id = n, text
	return nil
}

// acceptRestored takes a descriptor that a client hands over, if its file is wanted and
// the inode is the one that the previous broker noted; else it is closed.
func (b *Broker) acceptRestored(k sessionfiles.Key, fd *sys.FD) error {
	_, id, err := fd.Stat()
	if err != nil {
		fd.Close()
		return nil
	}
	if k.Role == protocol.RestoreBroker {
		return b.acceptBrokerFile(fd, id)
	}
	if !b.store.Record.Valid() {
		fd.Close()
		return protocol.Errorf(protocol.CodeProtocol, "hand over the broker file first", "a %s file came before the broker's", k.Role)
	}
	inode, wanted := b.store.Missing[k]
	// Memory of a device's driver has no inode of its own and cannot be opened anew.
	driver := wanted && inode == 0 && k.Role == protocol.RestoreSegment
	if !wanted || !driver && (inode != id.Ino || id.Dev != b.inodes && !(k.Role == protocol.RestoreSegment && memory.InHugePages(id))) {
		fd.Close()
		return nil
	}
	open := fd.ReopenWritable
	if driver {
		open = fd.Dup
	}
	own, err := open()
	fd.Close()
	if err != nil {
		return fmt.Errorf("reopen a %s file: %w", k.Role, err)
	}
	if b.taking == nil {
		b.install(k, own)
		return nil
	}
	if b.taking.files[k] != nil {
		own.Close()
		return nil
	}
	b.taking.files[k] = own
	return nil
}

func (b *Broker) acceptBrokerFile(fd *sys.FD, id sys.FileID) error {
	defer fd.Close()
	if b.store.Record.Valid() || b.taking == nil {
		return nil
	}
	if st := b.taking.state; id.Ino != st.BrokerInode || id.Dev != st.Device {
		return protocol.Errorf(protocol.CodeProtocol, "hand over what the previous broker gave", "this is not the broker file of instance %s", b.id)
	}
	own, err := fd.ReopenWritable()
	if err != nil {
		return fmt.Errorf("reopen the broker file: %w", err)
	}
	m, err := sessionfiles.MapFile(own, protocol.BrokerBytes)
	if err != nil {
		return err
	}
	if err := b.store.CheckHead(m, protocol.RoleBroker, 0); err != nil {
		m.Close()
		return err
	}
	b.inodes = id.Dev
	b.useBrokerFile(m)
	b.store.Missing = b.wanted()
	b.clock.After(goneSoon, b.lookForGone)
	b.acceptFromDirectory()
	if err := b.checkRecorded(); err != nil {
		b.taking.err = err
		b.endTakeover(b.taking)
		return err
	}
	return nil
}

// acceptFromDirectory takes the files that are still in the memory directory; some may be gone.
func (b *Broker) acceptFromDirectory() {
	d, ok := b.store.Files.(sessionfiles.Directory)
	if !ok {
		return
	}
	for k := range b.store.Missing {
		if fd, err := d.Open(k.Role, k.Serial); err == nil {
			if err := b.acceptRestored(k, fd); err != nil {
				b.log.Warn("a file of the memory directory cannot be used", "role", k.Role, "serial", k.Serial, "error", err)
			}
		}
	}
}

// wantedOrKnown tells whether a file is one of this instance's.
func (b *Broker) wantedOrKnown(k sessionfiles.Key) bool {
	if !b.store.Record.Valid() {
		return false
	}
	if _, wanted := b.store.Missing[k]; wanted {
		return true
	}
	switch k.Role {
	case protocol.RestoreSession:
		return b.store.BySerial(k.Serial) != nil
	case protocol.RestoreSegment:
		return b.memory.HasSegment(k.Serial)
	case protocol.RestoreGroup:
		return b.topics.HasGroup(k.Serial)
	}
	return false
}

// wanted lists every file that the broker file names, with its inode.
func (b *Broker) wanted() map[sessionfiles.Key]uint64 {
	w := map[sessionfiles.Key]uint64{}
	w[sessionfiles.Key{Role: protocol.RestoreBell}] = b.store.Record.BellsFile()
	add := func(role string, serial, inode uint64) {
		if serial != 0 {
			w[sessionfiles.Key{Role: role, Serial: serial}] = inode
		}
	}
	for slot := range b.store.Record.UsedSessions() {
		if v := b.store.Record.Session(slot); v.Serial() != 0 {
			s := v.Load()
			add(protocol.RestoreSession, s.Serial, s.File)
		}
	}
	for i := range b.store.Record.UsedRemains() {
		m := b.store.Record.Remains(i).Load()
		add(protocol.RestoreSession, m.Serial, m.File)
	}
	for i := range b.store.Record.UsedSegments() {
		if v := b.store.Record.Segment(i); v.Serial() != 0 {
			add(protocol.RestoreSegment, v.Serial(), v.Load().File)
		}
	}
	for i := range b.store.Record.UsedTopics() {
		for g := uint32(0); g < protocol.MaxGroups && b.store.Record.Topic(i).ID() != 0; g++ {
			r := b.store.Record.Topic(i).Group(g).Load()
			add(protocol.RestoreGroup, r.ID, r.File)
		}
	}
	return w
}
