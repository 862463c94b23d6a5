package memory

import (
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// End ends what a session counts and owns: its row is emptied, and its segments are
// the collector's. What it sent and named is counted in the broker's row by now.
func (m *Memory) End(s *Account) {
	m.dropRow(s)
	m.orphan(s)
}

// dropRow empties the session's row, so that nothing that it counted is held any
// more, and then takes the bits away, so that nobody looks at it.
func (m *Memory) dropRow(s *Account) {
	s.eachAttached(func(chunk uint32) {
		for i := range uint32(protocol.ChunkIndices) {
			if s.There() {
				s.Row.Clear(chunk*protocol.ChunkIndices + i) // MODEL lanes:adopt-droprow
			}
		}
		crashpoint.At("broker-bury-cleared")
		m.chunks.Detach(chunk, s.Slot) // MODEL attach:bit-clear
	})
	clear(s.attached[:])
	crashpoint.At("broker-bury-detached")
}

// orphan gives the session's segments to the broker's collector.
func (m *Memory) orphan(s *Account) {
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
	for _, g := range m.segments {
		if g != nil {
			delete(g.given, s)
		}
	}
}
