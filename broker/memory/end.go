package memory

import (
	"math/bits"

	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// End ends what a session counts: its row is emptied. What it sent and named is
// counted in the broker's row by now, and what it owned is the collector's.
func (m *Memory) End(s *Account) {
	m.Orphan(s)
	m.dropRow(s)
	for _, g := range m.usedSegments() {
		if g != nil {
			delete(g.given, s)
		}
	}
}

// Holds tells whether the session's row counts anything.
//
// SYNC row: a count seen as zero was lowered after the last use of the memory.
func (m *Memory) Holds(s *Account) (held bool) {
	if !s.There() {
		return true // for all that can be told
	}
	s.eachAttached(func(chunk uint32) {
		var counted [protocol.ChunkIndices / 64]uint64
		s.Row.Counted(chunk, &counted)
		held = held || counted != [protocol.ChunkIndices / 64]uint64{}
	})
	return held
}

// dropRow empties the session's row, so that nothing that it counted is held any
// more, and then clears the attached bits, so that the row is no longer read.
func (m *Memory) dropRow(s *Account) {
	s.eachAttached(func(chunk uint32) {
		var counted [protocol.ChunkIndices / 64]uint64
		if s.There() {
			s.Row.Counted(chunk, &counted)
		}
		for w, held := range counted {
			for ; held != 0; held &= held - 1 {
				s.NoteCleared()
				s.Row.Clear(chunk*protocol.ChunkIndices + uint32(64*w+bits.TrailingZeros64(held))) // MODEL lanes:adopt-droprow
			}
		}
		crashpoint.At("broker-bury-cleared")
		m.chunks.Detach(chunk, s.Slot) // MODEL attach:bit-clear
	})
	s.attached = nil
	crashpoint.At("broker-bury-detached")
}

// Orphan gives the session's segments to the broker's collector.
func (m *Memory) Orphan(s *Account) {
	s.Closed = true
	delete(m.refused, s)
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
