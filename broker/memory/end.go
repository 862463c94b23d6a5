package memory

import (
	"math/bits"

	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Ended is what a session counted when it ended.
type Ended struct {
	Storages int
	Bytes    uint64
}

// End ends what a session counts: its refcounts are emptied. What it sent and named is
// counted in the broker's refcounts by now, and what it owned is the reaper's.
func (m *Memory) End(s *Account) Ended {
	m.Orphan(s)
	ended := m.dropRefcounts(s)
	for _, g := range m.usedSegments() {
		if g != nil {
			delete(g.given, s)
		}
	}
	return ended
}

// Holds tells whether the session's refcounts count anything.
//
// SYNC refcount: a count seen as zero was lowered after the last use of the memory.
func (m *Memory) Holds(s *Account) (held bool) {
	if !s.There() {
		return true // as far as is known
	}
	s.eachAttached(func(chunk uint32) {
		var counted [protocol.ChunkIndices / 64]uint64
		s.Refcounts.Counted(chunk, &counted)
		held = held || counted != [protocol.ChunkIndices / 64]uint64{}
	})
	return held
}

// dropRefcounts empties the session's refcounts, so that nothing that it counted is held any
// more, and then clears the attached bits, so that the refcounts are no longer read.
func (m *Memory) dropRefcounts(s *Account) (ended Ended) {
	s.eachAttached(func(chunk uint32) {
		var counted [protocol.ChunkIndices / 64]uint64
		if s.There() {
			s.Refcounts.Counted(chunk, &counted)
		}
		for w, held := range counted {
			for ; held != 0; held &= held - 1 {
				index := chunk*protocol.ChunkIndices + uint32(64*w+bits.TrailingZeros64(held))
				ended.add(m.chunkOf[chunk], index)
				s.NoteCleared()
				s.Refcounts.Clear(index) // MODEL lanes:adopt-clear
			}
		}
		crashpoint.At("broker-end-cleared")
		m.chunks.Detach(chunk, s.Slot) // MODEL attach:bit-clear
	})
	s.attached = nil
	crashpoint.At("broker-end-detached")
	return ended
}

// add counts a storage, whose bytes its owner says.
func (e *Ended) add(c *chunk, index uint32) {
	e.Storages++
	if c != nil && c.segment.owner.There() {
		_, bytes, _ := c.segment.owner.Entries.Place(index)
		e.Bytes += min(bytes, c.segment.bytes)
	}
}

// Orphan gives the session's segments to the broker's reaper.
func (m *Memory) Orphan(s *Account) {
	s.Closed = true
	delete(m.refused, s)
	defer m.noMoreAsked(s) // what it leaves is an orphan by then
	for g := range s.segments {
		g.holder = nil
		m.orphans[g] = struct{}{}
		m.store.Record.Segment(g.index).SetOrphan()
		if g.isBorrowed() {
			m.expire(g)
			shm.Fence()
			for to := range g.given { // may wait for the news: its driver has refused the memory
				to.Wake()
			}
		}
	}
	clear(s.segments)
	clear(s.onDevice)
	s.granted = 0
}
