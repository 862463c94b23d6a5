package handles

import (
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Refcounts are one session's refcounts: what it holds of each storage.
type Refcounts struct{ r shm.Region }

// NewRefcounts views the refcounts of a session file.
func NewRefcounts(session shm.Region) Refcounts {
	return Refcounts{session.Sub(protocol.SessionRefcounts, protocol.MaxStorages*protocol.RefcountWordSize)}
}

// Valid tells whether the refcounts have memory.
func (r Refcounts) Valid() bool { return r.r.Valid() }

// Word returns the address of a storage's word, for a deleter in C.
func (r Refcounts) Word(index uint32) *uint64 {
	return r.r.Word(uint64(index) * protocol.RefcountWordSize)
}

// Load returns a storage's word: sequence and count.
//
// SYNC refcount: acquire; a count seen as zero was lowered after its place was
// un-named. Pairs with Take and Drop.
func (r Refcounts) Load(index uint32) uint64 {
	w := r.r.Load64(uint64(index) * protocol.RefcountWordSize)
	raceAcquire(index)
	return w
}

// Count returns how many references these refcounts count.
func (r Refcounts) Count(index uint32) uint64 { return r.Load(index) & protocol.CountMask }

// Counted notes which storages of a chunk these refcounts count: storage i in bit i%64 of word i/64.
// It is a look at each, in no order: what it finds may be over by the next one.
func (r Refcounts) Counted(chunk uint32, held *[protocol.ChunkIndices / 64]uint64) {
	var words [protocol.ChunkIndices]uint64
	r.r.ReadWords(words[:], uint64(chunk)*protocol.ChunkIndices*protocol.RefcountWordSize)
	for i, w := range words {
		if w&protocol.CountMask != 0 {
			held[i/64] |= 1 << (i % 64)
		}
	}
}

// Prefetch starts to fetch a word that is about to be changed.
func (r Refcounts) Prefetch(index uint32) {
	r.r.PrefetchWrite(uint64(index) * protocol.RefcountWordSize)
}

// Take counts one reference up. It comes before the second look at the place
// that names the storage, and that order is the whole protection. A session
// that holds nearly 2^20 references to one storage is refused.
//
// SYNC refcount: sequentially consistent, so that either the taker's second look sees
// the place un-named or the owner's second collect sees this count.
func (r Refcounts) Take(index uint32) error {
	now := r.r.Add64(uint64(index)*protocol.RefcountWordSize, protocol.Take) // MODEL lanes:take-up
	if (now-protocol.Take)&protocol.CountMask >= protocol.CountLimit {
		r.r.Add64(uint64(index)*protocol.RefcountWordSize, protocol.Drop)
		return protocol.Errorf(protocol.CodeTooMany, "drop some of them",
			"this process holds %d references to storage %d", protocol.CountLimit, index)
	}
	return nil
}

// Drop counts one reference down and tells whether it was the last of the holder.
//
// SYNC refcount: releases all that the holder did with the memory to the owner that
// reads the word in its free test.
func (r Refcounts) Drop(index uint32) (last bool) {
	raceRelease(index)
	return r.r.Add64(uint64(index)*protocol.RefcountWordSize, protocol.Drop)&protocol.CountMask == 0 // MODEL lanes:drop, tso:release-drop
}

// Raise counts n references up that another holder of this process counts already: they
// are about to be counted down there.
//
// SYNC refcount: sequentially consistent, as Take; at every instant one of the two holders
// counts them.
func (r Refcounts) Raise(index uint32, n uint64) error {
	now := r.r.Add64(uint64(index)*protocol.RefcountWordSize, n*protocol.Take)
	if (now-n*protocol.Take)&protocol.CountMask+n > protocol.CountLimit {
		r.Lower(index, n)
		return protocol.Errorf(protocol.CodeTooMany, "drop some of them",
			"this process holds %d references to storage %d", protocol.CountLimit, index)
	}
	return nil
}

// Lower counts n references down that Raise counted and that are not held.
func (r Refcounts) Lower(index uint32, n uint64) {
	r.r.Add64(uint64(index)*protocol.RefcountWordSize, n*protocol.Drop)
}

// Clear lowers a word's count to zero, with a new sequence. The broker's, in the
// refcounts of the dead, and at the start of a session in refcounts that were used before.
func (r Refcounts) Clear(index uint32) {
	at := uint64(index) * protocol.RefcountWordSize
	// A process that still writes here has ended its session, and its counts are void: it
	// cannot make this wait.
	if w := r.r.Load64(at); w&protocol.CountMask != 0 {
		r.r.Store64(at, (w|protocol.CountMask)+1) // MODEL lanes:adopt-clear
	}
}
