package memory

import (
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/protocol"
)

// testsPerRound bounds how long the collector keeps the mutex.
const testsPerRound = 1 << 14

// Orphans tells how many segments of ended sessions there are.
func (m *Memory) Orphans() int { return len(m.orphans) }

// Collect frees the segments of dead owners of which nothing is held, and the pages of
// others on which nothing held lies. It tells whether it found anything free.
func (m *Memory) Collect() (progress bool) {
	budget := testsPerRound
	for g := range m.orphans {
		if budget <= 0 {
			return true
		}
		if !g.owner.There() || !g.usable() {
			budget -= len(g.chunks)
			progress = m.collectWhole(g) || progress
			continue
		}
		free, news := true, !g.shrunk
		for _, c := range g.chunks {
			tested, found, all := m.collectChunk(c)
			budget -= tested
			news = news || found
			progress = progress || found
			free = free && all
		}
		if free {
			crashpoint.At("broker-free-found")
			m.log.Debug("freed a segment of an ended session", "segment", g.index, "bytes", g.bytes, "session", g.owner.Serial)
			m.freeSegmentNow(g)
			progress = true
		} else if news {
			m.shrink(g)
			g.shrunk = true
		}
	}
	return progress
}

// collectWhole frees an orphan whose file, or whose owner's file, was handed over by
// no client, when no row counts anything of it: its storages cannot be tested one by
// one. While a session is absent the files may still come.
func (m *Memory) collectWhole(g *segment) bool {
	if !m.store.Settled {
		return false
	}
	if !g.usable() {
		if _, _, held := m.heldBeside(g, protocol.BrokerSlot); held {
			return false
		}
		// No process has it mapped, and none can map it any more: what the broker
		// names in it is lost.
		m.log.Warn("a segment was handed over by no client: its tensors are gone", "segment", g.index, "owner", g.owner.Name)
		m.letGo(func(index uint32) bool {
			c := m.chunkOf[index/protocol.ChunkIndices]
			return c != nil && c.segment == g
		})
	}
	_, _, held := m.freeUnheld(g)
	return !held
}

// collectChunk tests the storages of a dead owner's chunk that were not found
// free before. A dead owner describes none of them anew, so a free storage stays
// free.
func (m *Memory) collectChunk(c *chunk) (tested int, found, all bool) {
	p := c.segment.owner
	test := m.free
	test.Entries = p.Entries
	all = true
	for i := range uint32(protocol.ChunkIndices) {
		if c.free[i/64]>>(i%64)&1 != 0 {
			continue
		}
		if tested == 0 {
			// The test writes here: where the owner died before it reserved its
			// entries, this must not be what runs out of memory.
			if p.ReserveEntries(c.index) != nil {
				return 1, false, false
			}
		}
		tested++
		if _, free := test.Recycle(c.index*protocol.ChunkIndices + i); free {
			c.free[i/64] |= 1 << (i % 64)
			found = true
		} else {
			all = false
		}
	}
	return tested, found, all
}
