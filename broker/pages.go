package broker

import (
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// pages are the files of one session: row, entries and lanes, and the bell. They
// outlive the session while a lane of it is adopted or a chunk of it is held:
// then they are its remains, found by serial.
type pages struct {
	slot   uint32
	serial uint64
	name   string // of the session, for people
	pid    int
	dead   bool

	session, bell mapped
	row           handles.Row
	entries       handles.Entries
	ringer        *shm.Bell
	remains       uint32              // its record's number + 1 when it is over
	chunks        map[*chunk]struct{} // granted to this session
	lanes         map[*lane]struct{}  // in this file, of live and adopted alike
}

// there tells whether this broker has the session file. After a takeover that of
// a session which is not back yet may be missing.
func (p *pages) there() bool { return p.session.region.Valid() }

// wake makes the session look again.
func (p *pages) wake() {
	if p.ringer != nil {
		p.ringer.Wake()
	}
}

func (p *pages) close() {
	p.session.close()
	p.bell.close()
}

// makePages makes the files of a session.
func (b *Broker) makePages(slot uint32, serial uint64) (*pages, error) {
	p := &pages{slot: slot, serial: serial, chunks: map[*chunk]struct{}{}, lanes: map[*lane]struct{}{}}
	var err error
	p.session, err = b.newFile(protocol.RoleSession, protocol.RestoreSession, serial, slot, protocol.SessionBytes)
	if err != nil {
		return nil, err
	}
	p.bell, err = b.newFile(protocol.RoleBell, protocol.RestoreBell, serial, slot, protocol.BellBytes)
	if err != nil {
		p.session.close()
		b.files.remove(protocol.RestoreSession, serial)
		return nil, err
	}
	b.view(p)
	b.pages[serial] = p
	return p, nil
}

// makeOwnPages makes slot 0: the broker's row, and lanes for names.
func (b *Broker) makeOwnPages() error {
	p, err := b.makePages(protocol.BrokerSlot, b.serial())
	if err != nil {
		return err
	}
	p.name, p.pid = "broker", processID
	b.own = p
	b.putOwn()
	return nil
}

// putOwn writes the broker's own session record.
func (b *Broker) putOwn() {
	p := b.own
	b.file.Session(protocol.BrokerSlot).Store(record.Session{
		Serial: p.serial, State: protocol.SessionLive, PID: uint32(p.pid), StartTime: sys.StartTime(p.pid),
		Language: protocol.LanguageGo, Connected: uint64(b.started.UnixNano()), Name: p.name,
		File: p.session.inode, Bell: p.bell.inode})
}

// keepRemains notes what a successor must know of the pages of a dead session.
// In the rare case of a full table it will know nothing of these.
func (b *Broker) keepRemains(p *pages) {
	n, ok := b.remains.take()
	if !ok {
		b.log.Warn("too many ended sessions whose messages or memory are still held: a broker after this one would lose them", "session", p.serial)
		return
	}
	p.remains = n + 1
	b.file.Remains(n).Store(record.Remains{Serial: p.serial, File: p.session.inode, Bell: p.bell.inode,
		Slot: p.slot, PID: uint32(p.pid), Name: p.name})
}

// dropRemains frees the pages of a dead session of which nothing is left.
func (b *Broker) dropRemains(p *pages) {
	if !p.dead || len(p.chunks) > 0 || len(p.lanes) > 0 {
		return
	}
	if p.remains != 0 {
		b.file.Remains(p.remains - 1).Free()
		b.remains.give(p.remains - 1)
	}
	delete(b.pages, p.serial)
	p.close()
	b.files.remove(protocol.RestoreSession, p.serial)
	b.files.remove(protocol.RestoreBell, p.serial)
}

// rowOf gives the free test the row of whoever has a slot.
func (b *Broker) rowOf(slot uint32) (handles.Row, bool) {
	if slot == protocol.BrokerSlot {
		return b.own.row, true
	}
	if s := b.slots[slot]; s != nil && s.there() {
		return s.row, true
	}
	// A session that is not back after a takeover: whatever it is attached to
	// counts as held.
	return handles.Row{}, false
}

// findPages finds the pages that a client names.
func (b *Broker) findPages(slot uint32, serial uint64) (*pages, error) {
	p := b.pages[serial]
	if p == nil || p.slot != slot {
		return nil, protocol.Errorf(protocol.CodeExpired, "look at the topic's peers again",
			"session %d of slot %d is over and nothing of it is left", serial, slot)
	}
	return p, nil
}

// opPeer hands out another session's pages, the session file for reading only.
func (b *Broker) opPeer(s *session, r *protocol.Peer) (any, []*sys.FD, error) {
	p, err := b.findPages(r.Slot, r.Serial)
	if err != nil {
		return nil, nil, err
	}
	if !p.there() || p.ringer == nil {
		return nil, nil, awaited("pages of " + p.name)
	}
	fds, err := collect(p.session.fd.ReopenReadOnly, p.bell.fd.Dup)
	return done{}, fds, err
}

// collect gathers descriptors; if one cannot be had, none is.
func collect(makers ...func() (*sys.FD, error)) ([]*sys.FD, error) {
	var fds []*sys.FD
	for _, m := range makers {
		fd, err := m()
		if err != nil {
			for _, f := range fds {
				f.Close()
			}
			return nil, err
		}
		fds = append(fds, fd)
	}
	return fds, nil
}
