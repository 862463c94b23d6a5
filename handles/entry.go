package handles

import (
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Entries are the storage entries in an owner's session file. The owner writes
// them; to all others they are claims to be checked against the broker's chunk
// record.
type Entries struct{ r shm.Region }

// NewEntries views the entries of a session file.
func NewEntries(session shm.Region) Entries {
	return Entries{session.Sub(protocol.SessionEntries, protocol.MaxStorages*protocol.EntrySize)}
}

// Entry is a copy of one storage entry.
type Entry struct {
	Offset, Bytes uint64
	Generation    uint64 // without RETIRING
	Retiring      bool
	MadeAt        uint64 // ns, CLOCK_MONOTONIC
}

// Prefetch starts to fetch an entry that is about to be loaded.
func (e Entries) Prefetch(index uint32) { e.r.Prefetch(uint64(index) * protocol.EntrySize) }

// PrefetchWrite starts to fetch an entry that its owner is about to change.
func (e Entries) PrefetchWrite(index uint32) { e.r.PrefetchWrite(uint64(index) * protocol.EntrySize) }

// Load copies an entry.
func (e Entries) Load(index uint32) Entry {
	at := uint64(index) * protocol.EntrySize
	g := e.r.Load64(at + protocol.EntryGeneration)
	return Entry{
		Offset:     e.r.Load64(at + protocol.EntryOffset),
		Bytes:      e.r.Load64(at + protocol.EntryBytes),
		Generation: g & protocol.GenerationMask,
		Retiring:   g&protocol.Retiring != 0,
		MadeAt:     e.r.Load64(at + protocol.EntryMadeAt),
	}
}

// Place copies where a storage lies, and its generation without RETIRING.
func (e Entries) Place(index uint32) (offset, bytes, generation uint64) {
	at := uint64(index) * protocol.EntrySize
	generation = e.r.Load64(at+protocol.EntryGeneration) & protocol.GenerationMask
	return e.r.Load64(at + protocol.EntryOffset), e.r.Load64(at + protocol.EntryBytes), generation
}

// Word returns the generation word: generation and RETIRING.
//
// SYNC generation: acquire; pairs with the owner's mark and with Next.
func (e Entries) Word(index uint32) uint64 {
	return e.r.Load64(uint64(index)*protocol.EntrySize + protocol.EntryGeneration)
}

// Describe sets where a fresh storage lies; the owner's, before anyone can have
// its generation, which only a publish after this gives away.
func (e Entries) Describe(index uint32, offset, bytes, madeAt uint64) {
	at := uint64(index) * protocol.EntrySize
	e.r.StoreRelease64(at+protocol.EntryOffset, offset)
	e.r.StoreRelease64(at+protocol.EntryBytes, bytes)
	e.r.StoreRelease64(at+protocol.EntryMadeAt, madeAt)
}

// mark says that a free test is under way: an opener of a bare handle that sees
// it gives up, one that does not has counted up before the second collect.
//
// SYNC generation: followed by a full fence; pairs with an opener's row up and look.
func (e Entries) mark(index uint32) {
	e.r.Or64(uint64(index)*protocol.EntrySize+protocol.EntryGeneration, protocol.Retiring)
}

func (e Entries) unmark(index uint32) {
	e.r.And64(uint64(index)*protocol.EntrySize+protocol.EntryGeneration, ^protocol.Retiring)
}

// next ends a generation: old handles are Expired from here on.
//
// SYNC generation: release.
func (e Entries) next(index uint32) uint64 {
	at := uint64(index)*protocol.EntrySize + protocol.EntryGeneration
	g := (e.r.Load64(at) + 1) & protocol.GenerationMask
	if g == 0 {
		g = 1
	}
	e.r.StoreRelease64(at, g)
	return g
}

// SetGeneration starts a storage's generations; the owner's, at a fresh grant.
func (e Entries) SetGeneration(index uint32, g uint64) {
	e.r.Store64(uint64(index)*protocol.EntrySize+protocol.EntryGeneration, g&protocol.GenerationMask)
}
