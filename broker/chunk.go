package broker

import (
	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// chunk is 128 storage indices over one segment.
type chunk struct {
	index   uint32
	serial  uint64
	segment *segment
	free    [protocol.ChunkIndices / 64]uint64 // of an orphan: found free
}

// opChunks gives a session more indices over a segment that it has.
func (b *Broker) opChunks(s *session, r *protocol.Chunks) (any, []*sys.FD, error) {
	g, err := b.ownSegment(s, r.Segment)
	if err != nil {
		return nil, nil, err
	}
	if r.Count < 1 || r.Count > protocol.MaxChunks {
		return nil, nil, protocol.Errorf(protocol.CodeInvalid, "ask for at least one", "%d chunks cannot be granted", r.Count)
	}
	granted, err := b.addChunks(g, r.Count)
	if err != nil {
		return nil, nil, err
	}
	return protocol.ChunksReply{Chunks: granted}, nil, nil
}

// addChunks grants n chunks over a segment, or none.
func (b *Broker) addChunks(g *segment, n int) ([]protocol.ChunkGrant, error) {
	var got []*chunk
	var err error
	for len(got) < n && err == nil {
		var c *chunk
		if c, err = b.addChunk(g); err == nil {
			got = append(got, c)
		}
	}
	if err != nil {
		for _, c := range got {
			b.freeChunk(c)
		}
		g.chunks = g.chunks[:len(g.chunks)-len(got)]
		return nil, err
	}
	granted := make([]protocol.ChunkGrant, n)
	for i, c := range got {
		granted[i] = protocol.ChunkGrant{Chunk: c.index, Serial: c.serial}
	}
	return granted, nil
}

// addChunk makes a chunk that its owner and the broker are attached to.
func (b *Broker) addChunk(g *segment) (*chunk, error) {
	index, ok := b.chunkTable.take()
	if !ok {
		return nil, protocol.Errorf(protocol.CodeTooMany, "release tensors, or put small ones together into one storage",
			"all %d storages of this broker are given out", protocol.MaxStorages)
	}
	for _, p := range []*pages{g.owner, b.own} {
		if err := p.reserveRow(index); err != nil {
			b.chunkTable.give(index)
			return nil, err
		}
	}
	c := &chunk{index: index, serial: b.serial(), segment: g}
	b.chunkOf[index] = c
	g.chunks = append(g.chunks, c)
	g.owner.chunks[c] = struct{}{}
	if g.holder != nil {
		g.holder.setAttached(index, true)
	}
	b.chunks.Attach(index, g.owner.slot)
	b.chunks.Attach(index, protocol.BrokerSlot)
	crashpoint.At("broker-chunk-attached")
	b.chunks.Store(index, handles.Chunk{
		Serial: c.serial, Owner: g.owner.slot, OwnerSerial: g.owner.serial,
		Segment: g.index, SegmentSerial: g.serial, Offset: 0, Bytes: g.bytes,
	})
	return c, nil
}

// reserveRow makes sure that a reader of the row meets no hole.
func (p *pages) reserveRow(chunk uint32) error {
	at, n := rowPart(chunk)
	if err := p.session.fd.Reserve(at, n); err != nil {
		return noMemory(err, "a row")
	}
	return nil
}

// freeChunk takes a chunk back: its serial goes first, then who is attached.
func (b *Broker) freeChunk(c *chunk) {
	b.file.SetChunkSerial(c.index, 0)
	b.chunks.EachAttached(c.index, func(slot uint32) bool {
		if s := b.slots[slot]; s != nil {
			s.setAttached(c.index, false)
		}
		b.chunks.Detach(c.index, slot)
		return true
	})
	b.chunkOf[c.index] = nil
	b.chunkTable.give(c.index)
	delete(c.segment.owner.chunks, c)
}

// findChunkOf finds the chunk that a storage index and a serial name.
func (b *Broker) findChunkOf(index uint32, serial uint64) *chunk {
	if index >= protocol.MaxStorages || serial == 0 {
		return nil
	}
	if c := b.chunkOf[index/protocol.ChunkIndices]; c != nil && c.serial == serial {
		return c
	}
	return nil
}

func (s *session) setAttached(chunk uint32, on bool) {
	if on {
		s.attached[chunk/64] |= 1 << (chunk % 64)
	} else {
		s.attached[chunk/64] &^= 1 << (chunk % 64)
	}
}

// opAttach makes owners look at the session's row for a chunk. The part of the
// row is reserved first; the bit and the epoch are set before the reply, after
// which the session may count.
func (b *Broker) opAttach(s *session, r *protocol.Attach) (any, []*sys.FD, error) {
	if r.Chunk >= protocol.MaxChunks || b.chunkOf[r.Chunk] == nil || b.chunkOf[r.Chunk].serial != r.Serial {
		return nil, nil, protocol.Errorf(protocol.CodeExpired, "take the message or name anew",
			"chunk %d with serial %d is gone", r.Chunk, r.Serial)
	}
	c := b.chunkOf[r.Chunk]
	if !b.chunks.IsAttached(c.index, s.slot) {
		if err := s.reserveRow(c.index); err != nil {
			return nil, nil, err
		}
		b.chunks.Attach(c.index, s.slot)
		crashpoint.At("broker-attach-set")
		s.setAttached(c.index, true)
	}
	owner := c.segment.owner
	return protocol.AttachReply{Owner: owner.slot, OwnerSerial: owner.serial,
		Segment: c.segment.index, SegmentSerial: c.segment.serial}, nil, nil
}
