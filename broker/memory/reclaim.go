package memory

import (
	"time"

	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/protocol"
)

// reclaimTime bounds how long a grant for which there is no free memory reclaims some. What
// it does not find in that time, its client is notified of later, by the event room.
const reclaimTime = 5 * time.Millisecond

// Orphans tells how many segments of ended sessions there are.
func (m *Memory) Orphans() int { return len(m.orphans) }

// ReclaimOrphans frees the segments of dead owners of which nothing is held. Of other segments of
// dead owners it frees the pages that no held storage covers. It tells whether it found anything
// free. When the time is over it stops after a segment. It begins anywhere, so the next call
// goes on with other segments.
func (m *Memory) ReclaimOrphans(most time.Duration) (progress bool) {
	began := time.Now()
	segments, bytes := 0, uint64(0)
	freed := func(n uint64) { segments, bytes = segments+1, bytes+n }
	defer func() {
		if segments > 0 {
			m.log.Info("freed memory of ended sessions", events.Of(events.Memory), "segments", segments, "bytes", bytes, "segments_left", len(m.orphans))
		}
	}()
	for g := range m.orphans {
		if time.Since(began) > most {
			return progress
		}
		bytes := g.bytes
		some, all := m.reclaimOrphan(g, began, most)
		progress = progress || some
		if all {
			freed(bytes)
		}
	}
	return progress
}

// reclaimOrphan frees what is free of an orphan, as far as the time allows. It tells whether it found anything free, and
// whether that is all of it.
func (m *Memory) reclaimOrphan(g *segment, began time.Time, most time.Duration) (some, all bool) {
	if !g.owner.There() || !g.usable() {
		return m.reclaimWhole(g), false
	}
	free, news := true, !g.shrunk
	for _, c := range g.chunks {
		found, all := m.reclaimChunk(c, began, most)
		news = news || found
		some = some || found
		free = free && all
	}
	if free {
		crashpoint.At("broker-free-found")
		m.freeSegmentNow(g)
		return true, true
	}
	if news {
		m.shrink(g)
		g.shrunk = true
	}
	return some, false
}

// reclaimWhole frees an orphan whose file, or whose owner's file, no client handed over, once no
// holder counts anything of it: its storages cannot be tested one by one. While a session is
// absent the files may still come.
func (m *Memory) reclaimWhole(g *segment) bool {
	if !m.store.AllBack {
		return false
	}
	if !g.usable() {
		if _, _, held := m.heldBeside(g, protocol.BrokerSlot); held {
			return false
		}
		// No process has it mapped, and none can map it any more: what the broker
		// names in it is lost. Most such segments are memory that their owner kept empty.
		if _, _, held := m.heldIn(g); held {
			m.log.Warn("a segment was handed over by no client: its tensors are gone", events.Of(events.Memory), "segment", g.index, "owner", g.owner.Name)
		}
		m.letGo(func(index uint32) bool {
			c := m.chunkOf[index/protocol.ChunkIndices]
			return c != nil && c.segment == g
		})
	}
	_, _, held := m.freeUnheld(g)
	return !held
}

// reclaimChunk tests the storages of a dead owner's chunk that were not found
// free before. A dead owner describes none of them anew, so a free storage stays
// free.
//
// Where the time is over it stops after a storage, and the next call begins there.
func (m *Memory) reclaimChunk(c *chunk, began time.Time, most time.Duration) (found, all bool) {
	p := c.segment.owner
	test := m.free
	test.Entries = p.Entries
	reserved := false
	all = true
	first := c.from
	for n := range uint32(protocol.ChunkIndices) {
		i := (first + n) % protocol.ChunkIndices
		if c.free[i/64]>>(i%64)&1 != 0 {
			continue
		}
		if n > 0 && time.Since(began) > most {
			c.from = i
			return found, false
		}
		if !reserved {
			// The test writes here. If the owner died before it reserved its entries, the write
			// must not be what runs out of memory.
			if p.ReserveEntries(c.index) != nil {
				return false, false
			}
			reserved = true
		}
		if _, free := test.Recycle(c.index*protocol.ChunkIndices + i); free {
			c.free[i/64] |= 1 << (i % 64)
			found = true
		} else {
			all = false
		}
	}
	return found, all
}
