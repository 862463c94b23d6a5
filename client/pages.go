package client

import (
	"sync"
	"sync/atomic"

	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// pages are the shared files that a session maps: the broker's, its own, and
// its peers'. All stay mapped as long as anything refers to them.
type pages struct {
	instance string
	slot     uint32
	serial   uint64
	secret   string

	brokerFD, sessionFD, bellFD *sys.FD

	broker  shm.Region // the broker file, read only
	session shm.Region // own, writable
	bell    shm.Region // own, writable

	row     handles.Row
	entries handles.Entries
	chunks  handles.Chunks
	parking shm.Parking
	lanes   laneSpace

	peers  [protocol.MaxSessions]atomic.Pointer[peer] // by slot: the session now there
	peerMu sync.Mutex
	old    map[uint64]*peer // by serial: sessions that have left their slot
}

// peer is another session's pages.
type peer struct {
	slot    uint32
	serial  uint64
	file    shm.Region // session file, read only
	bell    shm.Region // writable
	row     handles.Row
	entries handles.Entries
	fileFD  *sys.FD
	bellFD  *sys.FD
}

// mapFile maps a shared file after checking that it has the size of the layout:
// a mapping longer than its file ends in SIGBUS.
func mapFile(fd *sys.FD, bytes uint64, write bool) (shm.Region, error) {
	size, _, err := fd.Stat()
	if err != nil {
		return shm.Region{}, err
	}
	if uint64(size) < bytes {
		return shm.Region{}, protocol.Errorf(protocol.CodeProtocol, "use a broker of this version",
			"a shared file has %d bytes, not %d", size, bytes)
	}
	b, err := sys.Map(fd, int(bytes), write)
	if err != nil {
		return shm.Region{}, err
	}
	if write {
		if err := sys.DontFork(b); err != nil {
			sys.Unmap(b)
			return shm.Region{}, err
		}
	}
	return shm.NewRegion(b), nil
}

// mapOwn maps a file that came with hello and checks that its head is that of
// the role. Heads of other sessions' files are not looked at: they are written by
// those sessions, bells and claims even by all, so they prove nothing, and a liar
// must not make his neighbours' files look broken.
func mapOwn(fd *sys.FD, bytes uint64, write bool, role uint32) (shm.Region, error) {
	r, err := mapFile(fd, bytes, write)
	if err != nil {
		return r, err
	}
	if m, l, got := r.Load64(protocol.HeadMagic), r.Load32(protocol.HeadLayout), r.Load32(protocol.HeadRole); m != protocol.Magic || l != protocol.Layout || got != role {
		sys.Unmap(r.Bytes(0, r.Len()))
		return shm.Region{}, protocol.Errorf(protocol.CodeVersion, "use broker and client of one version",
			"shared file has magic %#x, layout %d, role %d; expected layout %d, role %d", m, l, got, protocol.Layout, role)
	}
	return r, nil
}

// openPages maps what came with the hello. It takes ownership of the descriptors.
func openPages(h *protocol.HelloReply, fds []*sys.FD) (p *pages, err error) {
	defer func() {
		if err != nil {
			wire.CloseAll(fds)
		}
	}()
	if len(fds) != 5 {
		return nil, protocol.Errorf(protocol.CodeProtocol, "use a broker of this version", "hello came with %d descriptors, not 5", len(fds))
	}
	if h.Slot == protocol.BrokerSlot || h.Slot >= protocol.MaxSessions {
		return nil, protocol.Errorf(protocol.CodeProtocol, "use a broker of this version", "hello gave the slot %d", h.Slot)
	}
	p = &pages{instance: h.Instance, slot: h.Slot, serial: h.Serial, secret: h.Secret, old: map[uint64]*peer{},
		brokerFD: fds[0], sessionFD: fds[1], bellFD: fds[2]}
	if p.broker, err = mapOwn(fds[0], protocol.BrokerBytes, false, protocol.RoleBroker); err != nil {
		return nil, err
	}
	if p.session, err = mapOwn(fds[1], protocol.SessionBytes, true, protocol.RoleSession); err != nil {
		return nil, err
	}
	if p.bell, err = mapOwn(fds[2], protocol.BellBytes, true, protocol.RoleBell); err != nil {
		return nil, err
	}
	p.row = handles.NewRow(p.session)
	p.entries = handles.NewEntries(p.session)
	p.chunks = handles.NewChunks(p.broker)
	p.parking = shm.NewParking(p.session, p.bell)
	p.lanes = newLaneSpace(p.sessionFD)
	own := &peer{slot: p.slot, serial: p.serial, file: p.session, bell: p.bell, row: p.row, entries: p.entries}
	p.peers[p.slot].Store(own)
	b, err := newPeer(protocol.BrokerSlot, 0, fds[3], fds[4])
	if err != nil {
		return nil, err
	}
	b.serial = p.sessionSerial(protocol.BrokerSlot)
	p.peers[protocol.BrokerSlot].Store(b)
	return p, nil
}

func newPeer(slot uint32, serial uint64, file, bell *sys.FD) (*peer, error) {
	q := &peer{slot: slot, serial: serial, fileFD: file, bellFD: bell}
	var err error
	if q.file, err = mapFile(file, protocol.SessionBytes, false); err != nil {
		return nil, err
	}
	if q.bell, err = mapFile(bell, protocol.BellBytes, true); err != nil {
		sys.Unmap(q.file.Bytes(0, q.file.Len()))
		return nil, err
	}
	q.row, q.entries = handles.NewRow(q.file), handles.NewEntries(q.file)
	return q, nil
}

// sessionSerial returns the serial of the session now in a slot.
func (p *pages) sessionSerial(slot uint32) uint64 {
	return p.broker.Load64(protocol.BrokerSessions + uint64(slot)*protocol.SessionRecordSize + protocol.SessionSerial)
}

// closeFiles closes every descriptor; mappings stay.
func (c *Client) closeFiles() {
	p := c.pages
	for _, fd := range []*sys.FD{p.brokerFD, p.sessionFD, p.bellFD} {
		fd.Close()
	}
	p.peerMu.Lock()
	for _, q := range p.old {
		q.closeFiles()
	}
	p.peerMu.Unlock()
	for i := range p.peers {
		if q := p.peers[i].Load(); q != nil {
			q.closeFiles()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.segments {
		s.CloseFiles()
	}
	for _, t := range c.topics {
		t.groupFiles(func(_ uint64, fd *sys.FD) { fd.Close() })
	}
}

func (q *peer) closeFiles() {
	q.fileFD.Close()
	q.bellFD.Close()
}

// known returns a session's pages if they are mapped here.
func (p *pages) known(slot uint32, serial uint64) *peer {
	if slot >= protocol.MaxSessions {
		return nil
	}
	if q := p.peers[slot].Load(); q != nil && q.serial == serial {
		return q
	}
	p.peerMu.Lock()
	defer p.peerMu.Unlock()
	return p.old[serial]
}

// add keeps a session's pages: in its slot if it is the one there now. It returns
// those that are kept, which are others when two goroutines asked at once, and how
// many have left their slot.
func (p *pages) add(q *peer) (kept *peer, old int) {
	p.peerMu.Lock()
	defer p.peerMu.Unlock()
	before := p.peers[q.slot].Load()
	kept = p.old[q.serial]
	if before != nil && before.serial == q.serial {
		kept = before
	}
	switch {
	case kept != nil:
		q.close()
		return kept, len(p.old)
	case p.sessionSerial(q.slot) != q.serial:
		p.old[q.serial] = q
	default:
		p.peers[q.slot].Store(q)
		if before != nil {
			p.old[before.serial] = before
		}
	}
	return q, len(p.old)
}

// close unmaps and closes pages that nobody has seen.
func (q *peer) close() {
	q.closeFiles()
	sys.Unmap(q.file.Bytes(0, q.file.Len()))
	sys.Unmap(q.bell.Bytes(0, q.bell.Len()))
}
