package memory

import (
	"fmt"

	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/broker/sessionfiles"
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
	from    uint32                             // of an orphan: where the next look begins
}

// Chunks gives a session more indices over a segment that it has.
func (m *Memory) Chunks(s *Account, r *protocol.Chunks) (reply protocol.ChunksReply, err error) {
	g, err := m.ownSegment(s, r.Segment)
	if err != nil {
		return reply, err
	}
	if r.Count < 1 || r.Count > protocol.MaxChunks {
		return reply, protocol.Errorf(protocol.CodeInvalid, "ask for at least one", "%d chunks cannot be granted", r.Count)
	}
	granted, err := m.addChunks(g, r.Count)
	if err != nil {
		return reply, err
	}
	return protocol.ChunksReply{Chunks: granted}, nil
}

// addChunks grants n chunks over a segment, or none.
func (m *Memory) addChunks(g *segment, n int) ([]protocol.ChunkGrant, error) {
	var got []*chunk
	err := m.chunkTable.Check(g.owner.Holder, n)
	for len(got) < n && err == nil {
		var c *chunk
		if c, err = m.addChunk(g); err == nil {
			got = append(got, c)
		}
	}
	if err != nil {
		for _, c := range got {
			m.freeChunk(c)
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
func (m *Memory) addChunk(g *segment) (*chunk, error) {
	index, err := m.chunkTable.Take(g.owner.Holder)
	if err != nil {
		return nil, err
	}
	err = m.store.Reserve(record.ChunkPlace(index))
	for _, p := range []*sessionfiles.SessionFile{g.owner, m.store.Own} {
		if err == nil {
			err = p.ReserveRefcounts(index)
		}
	}
	if err != nil {
		m.chunkTable.Give(index, g.owner.Holder)
		return nil, err
	}
	m.store.Record.MarkChunk(index)
	c := &chunk{index: index, serial: m.store.Record.NextSerial(), segment: g}
	m.chunkOf[index] = c
	g.chunks = append(g.chunks, c)
	g.owner.Use()
	if g.holder != nil {
		g.holder.setAttached(index, true)
	}
	m.chunks.Attach(index, g.owner.Slot)
	m.chunks.Attach(index, protocol.BrokerSlot)
	crashpoint.At("broker-chunk-attached")
	m.chunks.Store(index, handles.Chunk{
		Serial: c.serial, Owner: g.owner.Slot, OwnerSerial: g.owner.Serial,
		Segment: g.index, SegmentSerial: g.serial, Offset: 0, Bytes: g.bytes,
	})
	return c, nil
}

// freeChunk takes a chunk back: its serial goes first, then its attached bits.
func (m *Memory) freeChunk(c *chunk) {
	m.store.Record.SetChunkSerial(c.index, 0)
	m.chunks.EachAttached(c.index, func(slot uint32) bool {
		if s := m.accounts[slot]; s != nil {
			s.setAttached(c.index, false)
		}
		m.chunks.Detach(c.index, slot)
		return true
	})
	m.chunkOf[c.index] = nil
	m.chunkTable.Give(c.index, c.segment.owner.Holder)
	c.segment.owner.Unuse()
}

// findChunkOf finds the chunk that a storage index and a serial name.
func (m *Memory) findChunkOf(index uint32, serial uint64) *chunk {
	if index >= protocol.MaxStorages || serial == 0 {
		return nil
	}
	if c := m.chunkOf[index/protocol.ChunkIndices]; c != nil && c.serial == serial {
		return c
	}
	return nil
}

func (s *Account) setAttached(chunk uint32, on bool) {
	if on {
		for uint32(len(s.attached)) <= chunk/64 {
			s.attached = append(s.attached, 0)
		}
		s.attached[chunk/64] |= 1 << (chunk % 64)
	} else if chunk/64 < uint32(len(s.attached)) {
		s.attached[chunk/64] &^= 1 << (chunk % 64)
	}
}

// Attach makes owners look at the session's refcounts for chunks, and lends the files of their
// segments where they are asked for. The part of the refcounts is reserved first; the bit and the
// epoch are set before the reply, after which the session may count. name says more of an
// error about a file that is awaited, and custody whether the session keeps the descriptor of
// a segment.
func (m *Memory) Attach(s *Account, r *protocol.Attach, name func(error) error, custody func(segment uint64) bool) (reply protocol.AttachReply, fds []*sys.FD, err error) {
	if n := len(r.Chunks); n == 0 || n > protocol.MaxPeers {
		return reply, nil, protocol.Errorf(protocol.CodeInvalid, fmt.Sprintf("name at least one, and %d at most", protocol.MaxPeers),
			"a session asks to be attached to %d chunks at once", n)
	}
	reply.Chunks = make([]protocol.AttachAnswer, len(r.Chunks))
	var lend []func() (*sys.FD, error)
	for i, asked := range r.Chunks {
		a := &reply.Chunks[i]
		c, err := m.attach(s, asked)
		if err != nil {
			a.Error = sessionfiles.AsError(name(err))
			continue
		}
		g := c.segment
		a.Owner, a.OwnerSerial, a.Segment, a.SegmentSerial = g.owner.Slot, g.owner.Serial, g.index, g.serial
		if !asked.File || g.device != nil {
			continue
		}
		lend = append(lend, func() (*sys.FD, error) { return m.store.LendForReading(g.key(), g.view.FD()) })
		a.Bytes, a.Custody = g.bytes, custody(g.serial)
		if g.holder != s {
			g.given[s] = struct{}{}
		}
	}
	fds, err = sessionfiles.Descriptors(lend...)
	return reply, fds, err
}

func (m *Memory) attach(s *Account, r protocol.AttachChunk) (*chunk, error) {
	if r.Chunk >= protocol.MaxChunks || m.chunkOf[r.Chunk] == nil || m.chunkOf[r.Chunk].serial != r.Serial {
		return nil, protocol.Errorf(protocol.CodeExpired, "receive the message or get the name again",
			"chunk %d with serial %d is gone", r.Chunk, r.Serial)
	}
	c := m.chunkOf[r.Chunk]
	if g := c.segment; r.File && g.view == nil && g.device == nil {
		return nil, m.store.Awaited(g.key(), "segment of "+g.owner.Name)
	}
	if !m.chunks.IsAttached(c.index, s.Slot) {
		if err := s.ReserveRefcounts(c.index); err != nil {
			return nil, err
		}
		m.chunks.Attach(c.index, s.Slot)
		crashpoint.At("broker-attach-set")
		s.setAttached(c.index, true)
	}
	return c, nil
}
