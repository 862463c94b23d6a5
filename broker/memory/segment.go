package memory

import (
	"fmt"
	"time"

	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// segment is memory granted to a session, with the chunks of indices over it.
// It outlives its session while a storage of it is held.
type segment struct {
	index  uint32
	serial uint64
	bytes  uint64
	inode  uint64
	kind   uint32
	device *device // nil: memory of the machine
	owner  *sessionfiles.SessionFile
	holder *Account     // whose quota pays; nil: the owner is gone
	view   *shm.Segment // nil: not handed over to this broker yet
	chunks []*chunk
	given  map[*Account]struct{} // the sessions that have its descriptor, besides the owner
	// punched are bytes of an orphan whose pages were given back.
	punched uint64
	shrunk  bool // it was looked through since the broker began
	made    time.Time
}

// usable tells whether the broker has what it needs to free the segment. Of memory
// on a device it needs nothing.
func (g *segment) usable() bool { return g.view != nil || g.device != nil }

// Grant gives a session a segment to allocate in. The client reserves its
// pages, so that its container pays. The error is a [Later] where there may be memory after a round; last: there was one.
func (m *Memory) Grant(s *Account, r *protocol.Grant, last bool) (reply protocol.GrantReply, fds []*sys.FD, err error) {
	if r.Bytes == 0 || r.Bytes > 1<<52 || r.Chunks < 1 || r.Chunks > protocol.MaxChunks {
		return reply, nil, protocol.Errorf(protocol.CodeInvalid, "ask for at least one byte and one chunk",
			"grant of %d bytes with %d chunks", r.Bytes, r.Chunks)
	}
	if err := m.checkPageBytes(r); err != nil {
		return reply, nil, err
	}
	page := max(protocol.PageBytes, r.PageBytes)
	bytes := (r.Bytes + page - 1) &^ (page - 1)
	if r.Device != "" {
		reply, err = m.grantDevice(s, r, bytes, last)
		return reply, nil, err
	}
	if err := m.checkRoom(s, lacking{r.Fallback, last}, m.unreadForGrant(s, r, bytes), func() error { return m.checkLimits(s, r, bytes) }); err != nil {
		return reply, nil, err
	}
	index, err := m.segmentTable.Take(s.Holder)
	if err != nil {
		return reply, nil, err
	}
	var g *segment
	if err = m.store.Reserve(record.SegmentPlace(index)); err == nil {
		g, err = m.makeSegment(s, index, bytes, r.PageBytes)
	}
	if err != nil {
		m.segmentTable.Give(index, s.Holder)
		return reply, nil, err
	}
	crashpoint.At("broker-grant-made")
	granted, err := m.addChunks(g, r.Chunks)
	if err != nil {
		m.freeSegmentNow(g)
		return reply, nil, err
	}
	fds, err = sessionfiles.Descriptors(g.view.FD().Dup)
	if err != nil {
		m.freeSegmentNow(g)
		return reply, nil, err
	}
	return protocol.GrantReply{Segment: index, SegmentSerial: g.serial, Bytes: bytes, Chunks: granted}, fds, nil
}

// makeSegment makes the file of a segment, in huge pages if their size is given.
func (m *Memory) makeSegment(s *Account, index uint32, bytes, pageBytes uint64) (*segment, error) {
	if err := m.store.Allow(s.Holder, 0, 1); err != nil {
		return nil, err
	}
	serial, files := m.store.Record.NextSerial(), m.store.Files
	if pageBytes != 0 {
		files = sessionfiles.HugePages{PageBytes: pageBytes}
	}
	fd, err := files.Create(protocol.RestoreSegment, serial, bytes)
	if err != nil {
		return nil, sessionfiles.NoMemory(err, "a segment")
	}
	_, id, err := fd.Stat()
	if err != nil {
		fd.Close()
		return nil, err
	}
	view, err := shm.NewSegment(index, serial, bytes, fd, true)
	if err != nil {
		m.store.Files.Remove(protocol.RestoreSegment, serial)
		return nil, err
	}
	g := &segment{index: index, serial: serial, bytes: bytes, inode: id.Ino, kind: files.Kind(), owner: s.SessionFile,
		view: view, given: map[*Account]struct{}{}, made: time.Now()}
	m.segments[index], m.bySerial[g.serial] = g, g
	m.putSegment(g)
	m.charge(g, s)
	if g.kind != protocol.KindHugePages {
		m.unreserved[g] = struct{}{}
	}
	return g, nil
}

func (m *Memory) putSegment(g *segment) {
	v := record.Segment{Serial: g.serial, Bytes: g.bytes, Kind: g.kind, Owner: g.owner.Slot, OwnerSerial: g.owner.Serial,
		State: protocol.SegmentGranted, DeviceType: deviceCPU, MadeAt: uint64(g.made.UnixNano()), File: g.inode}
	if g.device != nil {
		v.DeviceType, v.DeviceID = deviceCUDA, g.device.id
	}
	m.store.Record.Segment(g.index).Store(v)
}

// DLPack's kDLCPU and kDLCUDA.
const (
	deviceCPU  = 1
	deviceCUDA = 2
)

// key names the segment's file.
func (g *segment) key() sessionfiles.Key {
	return sessionfiles.Key{Role: protocol.RestoreSegment, Serial: g.serial}
}

// findSegment finds what a request names.
func (m *Memory) findSegment(index uint32, serial uint64) (*segment, error) {
	if index >= protocol.MaxSegments || m.segments[index] == nil || m.segments[index].serial != serial {
		return nil, protocol.Errorf(protocol.CodeExpired, "receive the message or get the name again",
			"segment %d with serial %d is gone", index, serial)
	}
	return m.segments[index], nil
}

// ownSegment finds a segment that the session itself was granted.
func (m *Memory) ownSegment(s *Account, index uint32) (*segment, error) {
	if index >= protocol.MaxSegments || m.segments[index] == nil || m.segments[index].holder != s {
		return nil, protocol.Errorf(protocol.CodeNotFound, "name a segment that was granted to this session",
			"segment %d is not this session's", index)
	}
	return m.segments[index], nil
}

// Segment hands out a segment's descriptor: reopened for reading, unless the
// client asks to write.
func (m *Memory) Segment(s *Account, r *protocol.Segment) (reply protocol.SegmentReply, fds []*sys.FD, err error) {
	g, err := m.findSegment(r.Segment, r.Serial)
	if err != nil {
		return reply, nil, err
	}
	if g.view == nil {
		return reply, nil, m.store.Awaited(g.key(), "segment of "+g.owner.Name)
	}
	reply.Bytes = g.bytes
	if g.device != nil {
		if !s.CUDA {
			return reply, nil, protocol.Errorf(protocol.CodeUnsupported, "use a client with CUDA",
				"segment %d lies on the GPU %s", g.index, g.device.name).With("device", g.device.name)
		}
		reply.Device, reply.DeviceID, reply.Borrowed = g.device.name, g.device.id, g.isBorrowed()
	}
	fds, err = sessionfiles.Descriptors(func() (*sys.FD, error) {
		if g.device != nil || r.Write {
			return g.view.FD().Dup()
		}
		return m.store.LendForReading(g.key(), g.view.FD())
	})
	if err != nil {
		return reply, nil, err
	}
	if g.holder != s {
		g.given[s] = struct{}{}
	}
	return reply, fds, nil
}

// Return takes an empty segment back. Its owner has recycled every storage, so
// none can be opened any more; that none is held any more is verified here.
func (m *Memory) Return(s *Account, r *protocol.Return) error {
	g, err := m.ownSegment(s, r.Segment)
	if err != nil {
		return err
	}
	if g.serial != r.Serial {
		return protocol.Errorf(protocol.CodeNotFound, "give a segment back once",
			"the segment %d that was granted as %d has been given back", r.Segment, r.Serial)
	}
	if index, holder, held := m.freeUnheld(g); held {
		return protocol.Errorf(protocol.CodeBusy, "return it when no session holds it",
			"storage %d of segment %d is held by %s", index, g.index, holder)
	}
	return nil
}

// freeUnheld frees a segment if no holder counts anything of it, by a double collect
// over the whole segment: every attached word is zero, the chunks' serials are marked,
// and after a fence every word is still zero. Refcounts that cannot be read count
// everything that its session is attached to. It needs neither the segment's file
// nor its owner's.
//
// SYNC refcount: openers look at the serial after they counted up: one that came while
// the refcounts were read is seen by the second look, or sees another serial. If the
// broker dies here, its successor takes the mark off.
func (m *Memory) freeUnheld(g *segment) (index uint32, holder string, held bool) {
	if index, holder, held = m.heldIn(g); held {
		return index, holder, held
	}
	for _, c := range g.chunks {
		m.store.Record.SetChunkSerial(c.index, c.serial|record.ChunkRetiring)
	}
	shm.Fence()
	if index, holder, held = m.heldIn(g); held {
		for _, c := range g.chunks {
			m.store.Record.SetChunkSerial(c.index, c.serial)
		}
		return index, holder, held
	}
	m.freeSegmentNow(g)
	return 0, "", false
}

// heldIn looks for a storage of the segment that an attached holder counts.
func (m *Memory) heldIn(g *segment) (index uint32, holder string, held bool) {
	return m.heldBeside(g, protocol.MaxSessions)
}

// heldBeside is heldIn without the refcounts of one slot.
func (m *Memory) heldBeside(g *segment, but uint32) (index uint32, holder string, held bool) {
	for _, c := range g.chunks {
		m.chunks.EachAttached(c.index, func(slot uint32) bool {
			if slot == but {
				return true
			}
			refcounts, ok := m.refcountsOf(slot)
			for i := range uint32(protocol.ChunkIndices) {
				index = c.index*protocol.ChunkIndices + i
				if !ok || refcounts.Count(index) != 0 {
					holder, held = m.slotName(slot), true
					return false
				}
			}
			return true
		})
		if held {
			return index, holder, true
		}
	}
	return 0, "", false
}

func (m *Memory) slotName(slot uint32) string {
	if slot == protocol.BrokerSlot {
		return "the broker (a name, a lease or a message of an ended session)"
	}
	if s := m.accounts[slot]; s != nil {
		return fmt.Sprintf("%s (pid %d)", s.Name, s.PID)
	}
	return fmt.Sprintf("session slot %d", slot)
}

// freeSegmentNow forgets a segment that is not held: its chunks, its record, its bytes,
// also where other processes have them mapped. The caller knows that no holder counts
// anything of it, from a double collect or because nothing of it was ever given away.
func (m *Memory) freeSegmentNow(g *segment) {
	for _, c := range g.chunks {
		m.freeChunk(c)
	}
	crashpoint.At("broker-free-chunks")
	m.store.Record.Segment(g.index).Free()
	crashpoint.At("broker-free-record")
	m.segments[g.index] = nil
	delete(m.bySerial, g.serial)
	m.segmentTable.Give(g.index, g.owner.Holder)
	m.uncharge(g)
	delete(m.unreserved, g)
	delete(m.orphans, g)
	if s := g.holder; s != nil {
		delete(s.segments, g)
	}
	for s := range g.given {
		s.client.Trim()
	}
	if g.view != nil {
		// Pages of a file, and huge pages, go with their last mapping: a program that still
		// reads a slice that it kept would end with SIGBUS at a hole that cannot be filled.
		if g.kind == protocol.KindMemfd {
			if err := g.view.Discard(); err != nil {
				m.log.Warn("cannot give a segment's pages back before all have unmapped it", "segment", g.index, "error", err)
			}
		}
		g.view.Close()
	}
	m.store.Over(g.key())
	m.store.DropRemains(g.owner)
	m.notifyRefused()
}
