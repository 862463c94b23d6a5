package client

import (
	"maps"
	"sync"

	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/sparse"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// pages are the shared files that a session maps: the broker's, its own, the bells, and
// those of its peers. All stay mapped as long as anything refers to them, the own ones
// also while C code may still count down in the row.
type pages struct {
	instance string
	slot     uint32
	serial   uint64
	secret   string

	brokerFD, sessionFD, bellFD *sys.FD

	broker   *mapping // the broker file, read only
	session  *mapping // own, writable
	bellFile *mapping // of the instance, writable

	row     handles.Row
	entries handles.Entries
	chunks  handles.Chunks
	bells   shm.Bells
	parking shm.Parking // the own one
	lanes   *laneSpace

	peers  sparse.Table[peer] // by slot: the session now there
	peerMu sync.Mutex
	old    map[uint64]*peer // by serial: sessions that have left their slot
	kept   map[fileKey]kept
	over   bool // the client was closed: no more files are kept open
	given  bool // the file of this session is another client's to close

	dl exports // what C code may still count down in the own row
}

// peer is another session's pages.
type peer struct {
	slot    uint32
	serial  uint64
	name    string   // what it calls itself
	file    *mapping // session file, read only
	row     handles.Row
	entries handles.Entries
}

// openPages maps what came with the hello. It takes ownership of the descriptors.
func openPages(h *protocol.HelloReply, fds []*sys.FD) (p *pages, err error) {
	defer func() {
		if err != nil {
			wire.CloseAll(fds)
		}
	}()
	if len(fds) != 4 {
		return nil, protocol.Errorf(protocol.CodeProtocol, "use a broker of this version", "hello came with %d descriptors, not 4", len(fds))
	}
	if h.Slot == protocol.BrokerSlot || h.Slot >= protocol.MaxSessions {
		return nil, protocol.Errorf(protocol.CodeProtocol, "use a broker of this version", "hello gave the slot %d", h.Slot)
	}
	p = &pages{instance: h.Instance, slot: h.Slot, serial: h.Serial, secret: h.Secret, old: map[uint64]*peer{}, kept: map[fileKey]kept{},
		brokerFD: fds[0], sessionFD: fds[1], bellFD: fds[2]}
	if p.broker, err = newOwnMapping(fds[0], protocol.BrokerBytes, false, protocol.RoleBroker, nil); err != nil {
		return nil, err
	}
	if p.session, err = newOwnMapping(fds[1], protocol.SessionBytes, true, protocol.RoleSession, &p.dl); err != nil {
		return nil, err
	}
	if p.bellFile, err = newMapping(fds[2], protocol.BellBytes, true, nil); err != nil {
		return nil, err
	}
	p.row = handles.NewRow(p.session.Region)
	p.entries = handles.NewEntries(p.session.Region)
	p.chunks = handles.NewChunks(p.broker.Region)
	p.bells = shm.NewBells(p.bellFile.Region)
	p.parking = p.bells.Parking(p.slot)
	p.lanes = newLaneSpace(p.sessionFD, p.session.Region)
	p.peers.Store(p.slot, &peer{slot: p.slot, serial: p.serial, name: senderName(p.session.Region), file: p.session, row: p.row, entries: p.entries})
	b, err := newPeer(protocol.BrokerSlot, p.sessionSerial(protocol.BrokerSlot), fds[3])
	if err != nil {
		return nil, err
	}
	p.peers.Store(protocol.BrokerSlot, b)
	p.keep(fileKey{protocol.RestoreSession, b.serial}, fds[3], false)
	return p, nil
}

// newPeer maps the file of a session. The descriptor stays the caller's.
func newPeer(slot uint32, serial uint64, fd *sys.FD) (*peer, error) {
	file, err := newMapping(fd, protocol.SessionBytes, false, nil)
	if err != nil {
		return nil, err
	}
	return &peer{slot: slot, serial: serial, name: senderName(file.Region), file: file,
		row: handles.NewRow(file.Region), entries: handles.NewEntries(file.Region)}, nil
}

// sessionSerial returns the serial of the session now in a slot.
func (p *pages) sessionSerial(slot uint32) uint64 {
	return p.broker.Load64(protocol.BrokerSessions + uint64(slot)*protocol.SessionRecordSize + protocol.SessionSerial)
}

// chunksEnd tells from which number on no chunk was ever used. Their records have no pages.
func (p *pages) chunksEnd() uint32 {
	return min(p.broker.Load32(protocol.BrokerChunksEnd), protocol.MaxChunks)
}

// segmentsEnd is as chunksEnd.
func (p *pages) segmentsEnd() uint32 {
	return min(p.broker.Load32(protocol.BrokerSegmentsEnd), protocol.MaxSegments)
}

// rowCleared tells whether a broker has emptied the own row while it counted something, so
// that the row does not tell what this process holds. A session may end in any other way,
// and with or without a word of the broker's: its row goes on telling.
//
// SYNC row-cleared: read behind the counts; the broker sets the flag before it clears any.
func (p *pages) rowCleared() bool {
	return p.session.Load32(protocol.HeadFlags)&protocol.HeadCleared != 0
}

// ownState returns the state in the record of the own slot.
func (p *pages) ownState() uint32 {
	return p.broker.Load32(protocol.BrokerSessions + uint64(p.slot)*protocol.SessionRecordSize + protocol.SessionState)
}

// isOver tells whether the instance ended for good, so that no broker takes this session
// back.
//
// SYNC instance-ended: read while there is no connection.
func (p *pages) isOver() bool {
	return p.broker.Load32(protocol.HeadFlags)&protocol.HeadEnded != 0
}

// isClosed tells whether a broker that was stopped has ended this session, which was not
// closed here.
//
// SYNC instance-ended: read while there is no connection.
func (p *pages) isClosed() bool {
	return p.ownState() == protocol.SessionClosed && p.sessionSerial(p.slot) == p.serial
}

// isEvicted tells whether the session, which is closed, is so because an operator ended it and
// this client has heard nothing of that: no broker may have been there to say so. The mark is
// set before the state, and cleared where the client has heard.
//
// SYNC instance-ended: read behind the state.
func (p *pages) isEvicted() bool {
	return p.broker.Load32(protocol.BrokerSessions+uint64(p.slot)*protocol.SessionRecordSize+protocol.SessionEvicted) == 1
}

// isTakenOver tells whether a broker counts for what a lane of the own session file names:
// it has adopted it, or lists it no more.
//
// SYNC lane-adopted: read before the lane's counts are dropped; the broker counts first.
func (p *pages) isTakenOver(topic, number uint32, incarnation uint64) bool {
	record := laneRecordAt(topic, number)
	return p.broker.Load32(record+protocol.LaneRecordState) != protocol.LaneLive ||
		p.broker.Load64(record+protocol.LaneRecordIncarnation) != incarnation
}

// closeFiles closes every descriptor; what is in use stays mapped.
func (p *pages) closeFiles() {
	p.brokerFD.Close()
	p.bellFD.Close()
	if !p.given {
		p.sessionFD.Close()
	}
	p.peerMu.Lock()
	p.over = true
	for _, f := range p.kept {
		f.fd.Close()
	}
	p.old, p.kept = map[uint64]*peer{}, map[fileKey]kept{}
	p.peerMu.Unlock()
	for slot, q := range p.peers.All() {
		p.peers.CompareAndSwap(slot, q, nil)
	}
}

// known returns a session's pages if they are mapped here.
func (p *pages) known(slot uint32, serial uint64) *peer {
	if slot >= protocol.MaxSessions {
		return nil
	}
	if q := p.peers.Load(slot); q != nil && q.serial == serial {
		return q
	}
	p.peerMu.Lock()
	defer p.peerMu.Unlock()
	return p.old[serial]
}

// add keeps a session's pages: in its slot if it is the one there now. It returns
// those that are kept, which are others when two goroutines asked at once.
func (p *pages) add(q *peer) (kept *peer) {
	p.peerMu.Lock()
	defer p.peerMu.Unlock()
	before := p.peers.Load(q.slot)
	kept = p.old[q.serial]
	if before != nil && before.serial == q.serial {
		kept = before
	}
	switch {
	case kept != nil:
		return kept
	case p.over:
	case p.sessionSerial(q.slot) != q.serial:
		p.old[q.serial] = q
	default:
		p.peers.Store(q.slot, q)
		if before != nil {
			p.old[before.serial] = before
		}
	}
	return q
}

// countOld returns how many sessions are kept that have left their slot.
func (p *pages) countOld() int {
	p.peerMu.Lock()
	defer p.peerMu.Unlock()
	return len(p.old)
}

// forget lets go of sessions that have left their slot, but for those in use.
func (p *pages) forget(used map[uint64]bool) {
	p.peerMu.Lock()
	defer p.peerMu.Unlock()
	for slot, q := range p.peers.All() {
		if q.serial != p.serial && p.sessionSerial(slot) != q.serial {
			p.peers.Store(slot, nil)
			p.old[q.serial] = q
		}
	}
	for serial := range p.old {
		if !used[serial] {
			delete(p.old, serial)
			if k := (fileKey{protocol.RestoreSession, serial}); p.kept[k].moved {
				p.kept[k].fd.Close()
				delete(p.kept, k)
			}
		}
	}
}

// inventory lists the files in the custody of this session, and the sessions whose pages are
// mapped here without a descriptor.
func (p *pages) inventory() (custody map[fileKey]kept, mapped []uint64) {
	p.peerMu.Lock()
	defer p.peerMu.Unlock()
	add := func(q *peer) {
		if q.serial != p.serial && p.kept[fileKey{protocol.RestoreSession, q.serial}].fd == nil {
			mapped = append(mapped, q.serial)
		}
	}
	for _, q := range p.old {
		add(q)
	}
	for _, q := range p.peers.All() {
		add(q)
	}
	return maps.Clone(p.kept), mapped
}

// custodyOf gives the descriptor of a file in the custody of this session; nil: it has none.
func (p *pages) custodyOf(k fileKey) *sys.FD {
	p.peerMu.Lock()
	defer p.peerMu.Unlock()
	return p.kept[k].fd
}

// ended tells whether a session whose pages are mapped here is over, or has left its slot.
func (p *pages) ended() bool {
	for slot, q := range p.peers.All() {
		if p.sessionSerial(slot) != q.serial {
			return true
		}
	}
	return p.countOld() > 0
}

// release gives the pages of a session away, with the descriptor of their file if there is
// one.
func (p *pages) release(q *peer) (*peer, *sys.FD) {
	if q.serial == p.serial {
		p.given = true
		own := *q
		return &own, p.sessionFD
	}
	p.peers.CompareAndSwap(q.slot, q, nil)
	p.peerMu.Lock()
	delete(p.old, q.serial)
	p.peerMu.Unlock()
	return q, p.hand(fileKey{protocol.RestoreSession, q.serial})
}

// countPeers returns how many sessions' pages are mapped here, the own ones and the broker's too.
func (p *pages) countPeers() int {
	n := p.countOld()
	for range p.peers.All() {
		n++
	}
	return n
}
