package broker

import (
	"fmt"
	"time"

	"github.com/baton-ipc/baton/broker/record"
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
	owner  *pages
	holder *session     // whose quota pays; nil: the owner is gone
	view   *shm.Segment // nil: not handed over to this broker yet
	chunks []*chunk
	given  map[*session]struct{} // who has its descriptor besides the owner
	made   time.Time
}

// usable tells whether the broker has what it needs to free the segment. Of memory
// on a device it needs nothing.
func (g *segment) usable() bool { return g.view != nil || g.device != nil }

// opGrant gives a session a segment to allocate in. The client reserves its
// pages, so that its container pays.
func (b *Broker) opGrant(s *session, r *protocol.Grant) (any, []*sys.FD, error) {
	if r.Bytes == 0 || r.Bytes > 1<<52 || r.Chunks < 1 || r.Chunks > protocol.MaxChunks {
		return nil, nil, protocol.Errorf(protocol.CodeInvalid, "ask for at least one byte and one chunk",
			"grant of %d bytes with %d chunks", r.Bytes, r.Chunks)
	}
	if err := b.checkPageBytes(r); err != nil {
		return nil, nil, err
	}
	page := max(protocol.PageBytes, r.PageBytes)
	bytes := (r.Bytes + page - 1) &^ (page - 1)
	if r.Device != "" {
		return b.grantDevice(s, r, bytes)
	}
	if err := b.checkRoom(s, func() error { return b.checkLimits(s, r, bytes) }); err != nil {
		return nil, nil, err
	}
	index, ok := b.segmentTable.take()
	if !ok {
		return nil, nil, protocol.Errorf(protocol.CodeTooMany, "allocate larger slabs, or release tensors", "all %d segments are taken", protocol.MaxSegments)
	}
	g, err := b.makeSegment(s, index, bytes, r.PageBytes)
	if err != nil {
		b.segmentTable.give(index)
		return nil, nil, err
	}
	crashpoint.At("broker-grant-made")
	granted, err := b.addChunks(g, r.Chunks)
	if err != nil {
		b.freeSegmentNow(g)
		return nil, nil, err
	}
	fds, err := collect(g.view.FD().Dup)
	if err != nil {
		b.freeSegmentNow(g)
		return nil, nil, err
	}
	return protocol.GrantReply{Segment: index, SegmentSerial: g.serial, Bytes: bytes, Chunks: granted}, fds, nil
}

// makeSegment makes the file of a segment, in huge pages if their size is given.
func (b *Broker) makeSegment(s *session, index uint32, bytes, pageBytes uint64) (*segment, error) {
	serial, files := b.serial(), b.files
	if pageBytes != 0 {
		files = hugePages{bytes: pageBytes}
	}
	fd, err := files.create(protocol.RestoreSegment, serial, bytes)
	if err != nil {
		return nil, noMemory(err, "a segment")
	}
	_, id, err := fd.Stat()
	if err != nil {
		fd.Close()
		return nil, err
	}
	view, err := shm.NewSegment(index, serial, bytes, fd, true)
	if err != nil {
		b.files.remove(protocol.RestoreSegment, serial)
		return nil, err
	}
	g := &segment{index: index, serial: serial, bytes: bytes, inode: id.Ino, kind: files.kind(), owner: s.pages,
		view: view, given: map[*session]struct{}{}, made: time.Now()}
	b.segments[index] = g
	b.putSegment(g)
	b.charge(g, s)
	if g.kind != protocol.KindHugePages {
		b.unreserved[g] = struct{}{}
	}
	return g, nil
}

func (b *Broker) putSegment(g *segment) {
	s := record.Segment{Serial: g.serial, Bytes: g.bytes, Kind: g.kind, Owner: g.owner.slot, OwnerSerial: g.owner.serial,
		State: protocol.SegmentGranted, DeviceType: deviceCPU, MadeAt: uint64(g.made.UnixNano()), File: g.inode}
	if g.device != nil {
		s.DeviceType, s.DeviceID = deviceCUDA, g.device.id
	}
	b.file.Segment(g.index).Store(s)
}

// DLPack's kDLCPU and kDLCUDA.
const (
	deviceCPU  = 1
	deviceCUDA = 2
)

// findSegment finds what a request names.
func (b *Broker) findSegment(index uint32, serial uint64) (*segment, error) {
	if index >= protocol.MaxSegments || b.segments[index] == nil || b.segments[index].serial != serial {
		return nil, protocol.Errorf(protocol.CodeExpired, "take the message or name anew",
			"segment %d with serial %d is gone", index, serial)
	}
	return b.segments[index], nil
}

// ownSegment finds a segment that the session itself was granted.
func (b *Broker) ownSegment(s *session, index uint32) (*segment, error) {
	if index >= protocol.MaxSegments || b.segments[index] == nil || b.segments[index].holder != s {
		return nil, protocol.Errorf(protocol.CodeNotFound, "name a segment that was granted to this session",
			"segment %d is not this session's", index)
	}
	return b.segments[index], nil
}

// opSegment hands out a segment's descriptor: reopened for reading, unless the
// client asks to write.
func (b *Broker) opSegment(s *session, r *protocol.Segment) (any, []*sys.FD, error) {
	g, err := b.findSegment(r.Segment, r.Serial)
	if err != nil {
		return nil, nil, err
	}
	if g.view == nil {
		return nil, nil, awaited("segment of " + g.owner.name)
	}
	reply := protocol.SegmentReply{Bytes: g.bytes}
	if g.device != nil {
		if !s.cuda {
			return nil, nil, protocol.Errorf(protocol.CodeUnsupported, "use a client with CUDA",
				"segment %d lies on the GPU %s", g.index, g.device.name).With("device", g.device.name)
		}
		reply.Device, reply.DeviceID, reply.Borrowed = g.device.name, g.device.id, g.isBorrowed()
	}
	fds, err := collect(func() (*sys.FD, error) { return g.view.Lend(r.Write) })
	if err != nil {
		return nil, nil, err
	}
	if g.holder != s {
		g.given[s] = struct{}{}
	}
	return reply, fds, nil
}

// opReturn takes an empty segment back. Its owner has recycled every storage, so
// nobody can begin to hold one; that nobody still does is verified here.
func (b *Broker) opReturn(s *session, r *protocol.Return) (any, []*sys.FD, error) {
	g, err := b.ownSegment(s, r.Segment)
	if err != nil {
		return nil, nil, err
	}
	if index, holder, held := b.heldIn(g); held {
		return nil, nil, busy(g, index, holder)
	}
	// Openers look at the serial after they counted up: whoever came while the
	// rows were read is seen by the second look, or sees the serial gone.
	for _, c := range g.chunks {
		b.file.SetChunkSerial(c.index, 0)
	}
	shm.Fence()
	if index, holder, held := b.heldIn(g); held {
		for _, c := range g.chunks {
			b.file.SetChunkSerial(c.index, c.serial)
		}
		return nil, nil, busy(g, index, holder)
	}
	b.freeSegmentNow(g)
	return done{}, nil, nil
}

func busy(g *segment, index uint32, holder string) error {
	return protocol.Errorf(protocol.CodeBusy, "return it when nobody holds it",
		"storage %d of segment %d is held by %s", index, g.index, holder)
}

// heldIn looks for a storage of the segment that an attached row counts.
func (b *Broker) heldIn(g *segment) (index uint32, holder string, held bool) {
	for _, c := range g.chunks {
		b.chunks.EachAttached(c.index, func(slot uint32) bool {
			row, ok := b.rowOf(slot)
			for i := range uint32(protocol.ChunkIndices) {
				index = c.index*protocol.ChunkIndices + i
				if !ok || row.Count(index) != 0 {
					holder, held = b.slotName(slot), true
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

// awaited is the answer about a file that this broker was not handed yet.
func awaited(what string) error {
	return protocol.Errorf(protocol.CodeBusy, "try again when the clients of the former broker are back",
		"the %s has not been handed to this broker yet", what)
}

func (b *Broker) slotName(slot uint32) string {
	if slot == protocol.BrokerSlot {
		return "the broker (a name, a lease or a message of an ended session)"
	}
	if s := b.slots[slot]; s != nil {
		return fmt.Sprintf("%s (process %d)", s.name, s.pid)
	}
	return fmt.Sprintf("session slot %d", slot)
}

// freeSegmentNow forgets a segment that nobody holds: its chunks, its record,
// its bytes, also where others have them mapped.
func (b *Broker) freeSegmentNow(g *segment) {
	for _, c := range g.chunks {
		b.freeChunk(c)
	}
	crashpoint.At("broker-free-chunks")
	b.file.Segment(g.index).Free()
	crashpoint.At("broker-free-record")
	b.segments[g.index] = nil
	b.segmentTable.give(g.index)
	b.uncharge(g)
	delete(b.unreserved, g)
	delete(b.orphans, g)
	if s := g.holder; s != nil {
		delete(s.segments, g)
	}
	ref := protocol.SegmentRef{Segment: g.index, Serial: g.serial}
	for s := range g.given {
		if !s.ended {
			s.event(func(p *pending) { p.trims = append(p.trims, ref) })
		}
	}
	if g.view != nil {
		// Pages of a file, and huge ones, go with their last mapping: a late reader, of a
		// slice that was kept, would end with SIGBUS at a hole for which there is nothing
		// left.
		if g.kind == protocol.KindMemfd {
			if err := g.view.Discard(); err != nil {
				b.log.Warn("cannot give a segment's pages back before all have unmapped it", "segment", g.index, "error", err)
			}
		}
		g.view.Close()
	}
	b.files.remove(protocol.RestoreSegment, g.serial)
	b.dropRemains(g.owner)
	b.tellOfRoom()
}
