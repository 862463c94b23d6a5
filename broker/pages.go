package broker

import (
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
	chunks        map[*chunk]struct{} // granted to this session
	lanes         map[*lane]struct{}  // in this file, of live and adopted alike
}

func (p *pages) view() {
	p.row = handles.NewRow(p.session.region)
	p.entries = handles.NewEntries(p.session.region)
	p.ringer = shm.NewBell(p.session.region, p.bell.region)
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
	p.view()
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
	at := sessionAt(protocol.BrokerSlot)
	b.file.Store32(at+protocol.SessionPID, uint32(p.pid))
	b.file.Store64(at+protocol.SessionStartTime, sys.StartTime(p.pid))
	b.file.Store32(at+protocol.SessionLanguage, protocol.LanguageGo)
	b.file.Store64(at+protocol.SessionConnected, uint64(b.started.UnixNano()))
	b.putText(at+protocol.SessionName, protocol.SessionNameBytes, p.name)
	b.file.Store32(at+protocol.SessionState, protocol.SessionLive)
	b.file.Store64(at+protocol.SessionSerial, p.serial)
	return nil
}

// dropRemains frees the pages of a dead session of which nothing is left.
func (b *Broker) dropRemains(p *pages) {
	if !p.dead || len(p.chunks) > 0 || len(p.lanes) > 0 {
		return
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
	if s := b.slots[slot]; s != nil {
		return s.row, true
	}
	// No session: its bit was cleared before it left the slot, so this can be
	// seen in the file of a predecessor only, and then nothing is free.
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
