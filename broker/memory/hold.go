package memory

import (
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/protocol"
)

// Hold counts a storage up in the broker's refcounts as a client does that opens a
// handle: up, then look. It fails with ErrExpired when the storage is not what
// the ref names any more.
//
// SYNC refcount: up before the look at the generation.
// SYNC generation: a RETIRING mark or another number undoes it.
func (m *Memory) Hold(r protocol.Ref) error {
	c := m.findChunkOf(r.Index, r.Serial)
	if c == nil || r.Generation == 0 {
		return expired(r)
	}
	if !c.segment.owner.There() {
		owner := c.segment.owner
		return m.store.Awaited(sessionfiles.Key{Role: protocol.RestoreSession, Serial: owner.Serial}, "description of storages of "+owner.Name)
	}
	if err := m.store.Own.Refcounts.Take(r.Index); err != nil {
		return err
	}
	if c.segment.owner.Entries.Word(r.Index) != r.Generation {
		m.store.Own.Refcounts.Drop(r.Index)
		return expired(r)
	}
	return nil
}

func expired(r protocol.Ref) error {
	return protocol.Errorf(protocol.CodeExpired, "take the tensor anew from where it came",
		"storage %d of generation %d (grant %d) has been recycled", r.Index, r.Generation, r.Serial)
}

// DropAll ends a Hold of each.
func (m *Memory) DropAll(indices []uint32) {
	for _, index := range indices {
		m.store.Own.Refcounts.Drop(index)
	}
}

// Drop ends a Hold.
func (m *Memory) Drop(index uint32) { m.store.Own.Refcounts.Drop(index) }

// CountedBy tells whether the refcounts of any session that is meant count a storage; of that whose
// pages are own, beside the count that its slot has.
func (m *Memory) CountedBy(index uint32, meant func(*Account) bool, own *sessionfiles.SessionFile) (counted bool) {
	m.chunks.EachAttached(index/protocol.ChunkIndices, func(slot uint32) bool {
		s := m.accounts[slot]
		if s == nil || !meant(s) {
			return true
		}
		least := uint64(1)
		if s.SessionFile == own {
			least = 2
		}
		refcounts, ok := m.refcountsOf(slot)
		counted = ok && refcounts.Count(index) >= least
		return !counted
	})
	return counted
}

// BytesOf is the size of a storage; 0 where that is not known.
func (m *Memory) BytesOf(index uint32) uint64 {
	c := m.chunkOf[index/protocol.ChunkIndices]
	if c == nil || !c.segment.owner.There() {
		return 0
	}
	return min(c.segment.owner.Entries.Load(index).Bytes, protocol.MaxSafeInt)
}

// Known tells whether the chunk of a ref is still granted.
func (m *Memory) Known(r protocol.Ref) bool { return m.findChunkOf(r.Index, r.Serial) != nil }

// Stored finds where a storage lies, if it is still the one that a ref names.
func (m *Memory) Stored(r protocol.Ref) (protocol.Storage, bool) {
	c := m.findChunkOf(r.Index, r.Serial)
	if c == nil || !c.segment.owner.There() {
		return protocol.Storage{}, false
	}
	offset, bytes, generation := c.segment.owner.Entries.Place(r.Index)
	return protocol.Storage{Segment: c.segment.serial, Serial: r.Serial, Index: r.Index,
		Generation: generation, Offset: offset, Bytes: bytes}, generation == r.Generation
}

// MakerOf tells which session was granted the chunk of a storage.
func (m *Memory) MakerOf(index uint32, serial uint64) (slot uint32, session uint64, known bool) {
	c := m.findChunkOf(index, serial)
	if c == nil {
		return 0, 0, false
	}
	return c.segment.owner.Slot, c.segment.owner.Serial, true
}
