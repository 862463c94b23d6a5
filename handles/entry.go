package handles

import (
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Entries are the storage entries in an owner's session file. The owner writes
// them; to all others they are statements to be checked against the broker's chunk
// record.
type Entries struct{ r shm.Region }

// NewEntries views the entries of a session file.
func NewEntries(session shm.Region) Entries {
	return Entries{session.Sub(protocol.SessionEntries, protocol.MaxStorages*protocol.EntrySize)}
}

// Entry is a copy of one storage entry.
type Entry struct {
	Offset, Bytes uint64
	Generation    uint64 // without marks
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

// Place copies where a storage lies, and its generation without marks.
func (e Entries) Place(index uint32) (offset, bytes, generation uint64) {
	at := uint64(index) * protocol.EntrySize
	generation = e.r.Load64(at+protocol.EntryGeneration) & protocol.GenerationMask
	return e.r.Load64(at + protocol.EntryOffset), e.r.Load64(at + protocol.EntryBytes), generation
}

// Word returns the generation word: generation, PRIVATE and RETIRING. A bare handle
// opens the storage only if the word is the handle's generation and nothing else.
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
// SYNC generation: followed by a full fence; pairs with an opener's refcount up and look.
func (e Entries) mark(index uint32) {
	e.r.Or64(uint64(index)*protocol.EntrySize+protocol.EntryGeneration, protocol.Retiring)
}

func (e Entries) unmark(index uint32) {
	e.r.And64(uint64(index)*protocol.EntrySize+protocol.EntryGeneration, ^protocol.Retiring)
}

// Share says that there is a way to the storage from now on; the owner's, which holds
// it, before it first names the storage anywhere, or lets a child inherit it. It costs a
// load where that was done before.
//
// SYNC generation: before the place, or the handle, that names it.
func (e Entries) Share(index uint32) {
	at := uint64(index)*protocol.EntrySize + protocol.EntryGeneration
	if e.r.Load64(at)&protocol.Private != 0 {
		e.r.And64(at, ^protocol.Private)
	}
}

// next ends a generation: old handles are Expired from here on, and to the storage of
// the new one there is no way yet.
//
// SYNC generation: release.
func (e Entries) next(index uint32) uint64 {
	at := uint64(index)*protocol.EntrySize + protocol.EntryGeneration
	g := (e.r.Load64(at) + 1) & protocol.GenerationMask
	if g == 0 {
		g = 1
	}
	e.r.StoreRelease64(at, g|protocol.Private)
	return g
}

// SetGeneration starts a storage's generations, with one that is private; the owner's,
// at a fresh grant.
func (e Entries) SetGeneration(index uint32, g uint64) {
	e.r.Store64(uint64(index)*protocol.EntrySize+protocol.EntryGeneration, g&protocol.GenerationMask|protocol.Private)
}
