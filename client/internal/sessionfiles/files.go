package sessionfiles

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

// Files are the shared files that a session maps: the broker's, its own, the bells, and
// those of its peers. All stay mapped as long as anything refers to them, its own
// also while C code may still count down in the refcounts.
type Files struct {
	Instance string
	Slot     uint32
	Serial   uint64
	Secret   string

	BrokerFD, SessionFD, BellFD *sys.FD

	broker   *Mapping // the broker file, read only
	Session  *Mapping // own, writable
	BellFile *Mapping // of the instance, writable

	Refcounts handles.Refcounts
	Entries   handles.Entries
	Chunks    handles.Chunks
	Bells     shm.Bells
	Parking   shm.Parking // the session's own
	Lanes     *LaneSpace

	Peers  sparse.Table[Peer] // by slot: the session now there
	peerMu sync.Mutex
	old    map[uint64]*Peer // by serial: sessions that have left their slot
	kept   map[protocol.RestoreItem]Kept
	over   bool // the client was closed: no more files are kept open
	given  bool // the file of this session is another client's to close

	// Exports is what C code may still count down in the session's own refcounts. It is no part of the files:
	// the cleanup of their mapping refers to it.
	Exports *Exports
}

// Peer is another session's file.
type Peer struct {
	Slot      uint32
	Serial    uint64
	Name      string   // what it calls itself
	File      *Mapping // session file, read only
	Refcounts handles.Refcounts
	Entries   handles.Entries
}

// Open maps what came with the hello. It takes ownership of the descriptors.
func Open(h *protocol.HelloReply, fds []*sys.FD) (p *Files, err error) {
	defer func() {
		if err != nil {
			wire.CloseAll(fds)
		}
	}()
	if len(fds) != 4 {
		return nil, protocol.Errorf(protocol.CodeProtocol, "stop the broker and start one of this client's version", "hello came with %d descriptors, not 4", len(fds))
	}
	if h.Slot == protocol.BrokerSlot || h.Slot >= protocol.MaxSessions {
		return nil, protocol.Errorf(protocol.CodeProtocol, "stop the broker and start one of this client's version", "hello gave the slot %d", h.Slot)
	}
	p = &Files{Instance: h.Instance, Slot: h.Slot, Serial: h.Serial, Secret: h.Secret, old: map[uint64]*Peer{}, kept: map[protocol.RestoreItem]Kept{},
		Exports: new(Exports), BrokerFD: fds[0], SessionFD: fds[1], BellFD: fds[2]}
	if p.broker, err = newOwnMapping(fds[0], protocol.BrokerBytes, false, protocol.RoleBroker, nil); err != nil {
		return nil, err
	}
	if p.Session, err = newOwnMapping(fds[1], protocol.SessionBytes, true, protocol.RoleSession, p.Exports); err != nil {
		return nil, err
	}
	if p.BellFile, err = NewMapping(fds[2], protocol.BellBytes, true, nil); err != nil {
		return nil, err
	}
	p.Refcounts = handles.NewRefcounts(p.Session.Region)
	p.Entries = handles.NewEntries(p.Session.Region)
	p.Chunks = handles.NewChunks(p.broker.Region)
	p.Bells = shm.NewBells(p.BellFile.Region)
	p.Parking = p.Bells.Parking(p.Slot)
	p.Lanes = newLaneSpace(p.SessionFD, p.Session.Region)
	p.Peers.Store(p.Slot, &Peer{Slot: p.Slot, Serial: p.Serial, Name: senderName(p.Session.Region), File: p.Session, Refcounts: p.Refcounts, Entries: p.Entries})
	b, err := NewPeer(protocol.BrokerSlot, p.SessionSerial(protocol.BrokerSlot), fds[3])
	if err != nil {
		return nil, err
	}
	p.Peers.Store(protocol.BrokerSlot, b)
	p.Keep(SessionFile(b.Serial), fds[3], false)
	return p, nil
}

// NewPeer maps the file of a session. The descriptor stays the caller's.
func NewPeer(slot uint32, serial uint64, fd *sys.FD) (*Peer, error) {
	file, err := NewMapping(fd, protocol.SessionBytes, false, nil)
	if err != nil {
		return nil, err
	}
	return &Peer{Slot: slot, Serial: serial, Name: senderName(file.Region), File: file,
		Refcounts: handles.NewRefcounts(file.Region), Entries: handles.NewEntries(file.Region)}, nil
}

// SessionSerial returns the serial of the session now in a slot.
func (p *Files) SessionSerial(slot uint32) uint64 {
	return p.broker.Load64(protocol.BrokerSessions + uint64(slot)*protocol.SessionRecordSize + protocol.SessionSerial)
}

// ChunksEnd tells from which number on no chunk was ever used. Their records have no pages.
func (p *Files) ChunksEnd() uint32 {
	return min(p.broker.Load32(protocol.BrokerChunksEnd), protocol.MaxChunks)
}

// segmentsEnd is as ChunksEnd.
func (p *Files) segmentsEnd() uint32 {
	return min(p.broker.Load32(protocol.BrokerSegmentsEnd), protocol.MaxSegments)
}

// RefcountsCleared tells whether a broker has emptied the session's own refcounts while it counted something, so
// that the refcounts do not tell what this process holds. A session may end in any other way,
// and with or without a word of the broker's: its refcounts go on telling.
//
// SYNC refcounts-cleared: read after the counts; the broker sets the flag before it clears any.
func (p *Files) RefcountsCleared() bool {
	return p.Session.Load32(protocol.HeadFlags)&protocol.HeadCleared != 0
}

// ownState returns the state in the record of the session's own slot.
func (p *Files) ownState() uint32 {
	return p.broker.Load32(protocol.BrokerSessions + uint64(p.Slot)*protocol.SessionRecordSize + protocol.SessionState)
}

// IsOver tells whether the instance ended for good, so that no broker takes this session
// back.
//
// SYNC instance-ended: read while there is no connection.
func (p *Files) IsOver() bool {
	return p.broker.Load32(protocol.HeadFlags)&protocol.HeadEnded != 0
}

// IsClosed tells whether a broker that was stopped has ended this session, which was not
// closed here.
//
// SYNC instance-ended: read while there is no connection.
func (p *Files) IsClosed() bool {
	return p.ownState() == protocol.SessionClosed && p.SessionSerial(p.Slot) == p.Serial
}

// IsEvicted tells whether the session, which is closed, is so because an operator ended it and
// this client has had no notice of that: no broker may have been there to send one. The mark is
// set before the state, and cleared once the client has acknowledged the notice.
//
// SYNC instance-ended: read after the state.
func (p *Files) IsEvicted() bool {
	return p.broker.Load32(protocol.BrokerSessions+uint64(p.Slot)*protocol.SessionRecordSize+protocol.SessionEvicted) == 1
}

// NoteLost tells the broker, of which no connection may be left, that this client allocates, recycles and counts up
// nothing in the session any more.
//
// SYNC session-lost: stored after the last of that.
func (p *Files) NoteLost() { p.Session.Store32(protocol.HeadLost, 1) }

// IsTakenOver tells whether a broker counts for what a lane of the session's own file names:
// it has adopted it, or lists it no more.
//
// SYNC lane-adopted: read before the lane's counts are dropped; the broker counts first.
func (p *Files) IsTakenOver(topic, number uint32, incarnation uint64) bool {
	record := laneRecordAt(topic, number)
	return p.broker.Load32(record+protocol.LaneRecordState) != protocol.LaneLive ||
		p.broker.Load64(record+protocol.LaneRecordIncarnation) != incarnation
}

// CloseFiles closes every descriptor; what is in use stays mapped.
func (p *Files) CloseFiles() {
	p.BrokerFD.Close()
	p.BellFD.Close()
	if !p.given {
		p.SessionFD.Close()
	}
	p.peerMu.Lock()
	p.over = true
	for _, f := range p.kept {
		f.FD.Close()
	}
	p.old, p.kept = map[uint64]*Peer{}, map[protocol.RestoreItem]Kept{}
	p.peerMu.Unlock()
	for slot, q := range p.Peers.All() {
		p.Peers.CompareAndSwap(slot, q, nil)
	}
}

// Known returns a session's file if it is mapped here.
func (p *Files) Known(slot uint32, serial uint64) *Peer {
	if slot >= protocol.MaxSessions {
		return nil
	}
	if q := p.Peers.Load(slot); q != nil && q.Serial == serial {
		return q
	}
	p.peerMu.Lock()
	defer p.peerMu.Unlock()
	return p.old[serial]
}

// Add keeps a session's file: in its slot if it is the one there now. It returns
// those that are kept, which are others when two goroutines asked at once.
func (p *Files) Add(q *Peer) (kept *Peer) {
	p.peerMu.Lock()
	defer p.peerMu.Unlock()
	before := p.Peers.Load(q.Slot)
	kept = p.old[q.Serial]
	if before != nil && before.Serial == q.Serial {
		kept = before
	}
	switch {
	case kept != nil:
		return kept
	case p.over:
	case p.SessionSerial(q.Slot) != q.Serial:
		p.old[q.Serial] = q
	default:
		p.Peers.Store(q.Slot, q)
		if before != nil {
			p.old[before.Serial] = before
		}
	}
	return q
}

// CountOld returns how many sessions are kept that have left their slot.
func (p *Files) CountOld() int {
	p.peerMu.Lock()
	defer p.peerMu.Unlock()
	return len(p.old)
}

// Forget lets go of sessions that have left their slot, but for those in use.
func (p *Files) Forget(used map[uint64]bool) {
	p.peerMu.Lock()
	defer p.peerMu.Unlock()
	for slot, q := range p.Peers.All() {
		if q.Serial != p.Serial && p.SessionSerial(slot) != q.Serial {
			p.Peers.Store(slot, nil)
			p.old[q.Serial] = q
		}
	}
	for serial := range p.old {
		if !used[serial] {
			delete(p.old, serial)
			if k := SessionFile(serial); p.kept[k].moved {
				p.kept[k].FD.Close()
				delete(p.kept, k)
			}
		}
	}
}

// Inventory lists the files in the custody of this session, and the sessions whose file is
// mapped here without a descriptor.
func (p *Files) Inventory() (custody map[protocol.RestoreItem]Kept, mapped []uint64) {
	p.peerMu.Lock()
	defer p.peerMu.Unlock()
	add := func(q *Peer) {
		if q.Serial != p.Serial && p.kept[SessionFile(q.Serial)].FD == nil {
			mapped = append(mapped, q.Serial)
		}
	}
	for _, q := range p.old {
		add(q)
	}
	for _, q := range p.Peers.All() {
		add(q)
	}
	return maps.Clone(p.kept), mapped
}

// CustodyOf gives the descriptor of a file in the custody of this session; nil: it has none.
func (p *Files) CustodyOf(k protocol.RestoreItem) *sys.FD {
	p.peerMu.Lock()
	defer p.peerMu.Unlock()
	return p.kept[k].FD
}

// Ended tells whether a session whose file is mapped here is over, or has left its slot.
func (p *Files) Ended() bool {
	for slot, q := range p.Peers.All() {
		if p.SessionSerial(slot) != q.Serial {
			return true
		}
	}
	return p.CountOld() > 0
}

// Release gives the file of a session away, with its descriptor if there is
// one.
func (p *Files) Release(q *Peer) (*Peer, *sys.FD) {
	if q.Serial == p.Serial {
		p.given = true
		own := *q
		return &own, p.SessionFD
	}
	p.Peers.CompareAndSwap(q.Slot, q, nil)
	p.peerMu.Lock()
	delete(p.old, q.Serial)
	p.peerMu.Unlock()
	return q, p.Hand(SessionFile(q.Serial))
}

// CountPeers returns how many sessions' files are mapped here, its own and the broker's too.
func (p *Files) CountPeers() int {
	n := p.CountOld()
	for range p.Peers.All() {
		n++
	}
	return n
}
