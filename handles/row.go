package handles

import (
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Row is one session's ledger row: what it holds of each storage.
type Row struct{ r shm.Region }

// NewRow views the row of a session file.
func NewRow(session shm.Region) Row {
	return Row{session.Sub(protocol.SessionRow, protocol.MaxStorages*protocol.RowWordSize)}
}

// Valid tells whether the row has memory.
func (r Row) Valid() bool { return r.r.Valid() }

// Word returns the address of a storage's word, for a deleter in C.
func (r Row) Word(index uint32) *uint64 { return r.r.Word(uint64(index) * protocol.RowWordSize) }

// Load returns a storage's word: sequence and count.
//
// SYNC row: acquire; a count seen as zero was lowered after its place was
// un-named. Pairs with Take and Drop.
func (r Row) Load(index uint32) uint64 {
	w := r.r.Load64(uint64(index) * protocol.RowWordSize)
	raceAcquire(index)
	return w
}

// Count returns how many references this row counts.
func (r Row) Count(index uint32) uint64 { return r.Load(index) & protocol.CountMask }

// Counted notes which storages of a chunk this row counts: storage i in bit i%64 of word i/64.
// It is a look at each, in no order: what it finds may be over by the next one.
func (r Row) Counted(chunk uint32, held *[protocol.ChunkIndices / 64]uint64) {
	var words [protocol.ChunkIndices]uint64
	r.r.ReadWords(words[:], uint64(chunk)*protocol.ChunkIndices*protocol.RowWordSize)
	for i, w := range words {
		if w&protocol.CountMask != 0 {
			held[i/64] |= 1 << (i % 64)
		}
	}
}

// Prefetch starts to fetch a word that is about to be changed.
func (r Row) Prefetch(index uint32) { r.r.PrefetchWrite(uint64(index) * protocol.RowWordSize) }

// Take counts one reference up. It comes before the second look at the place
// that names the storage, and that order is the whole protection. A session
// that holds nearly 2^20 references to one storage is refused.
//
// SYNC row: sequentially consistent, so that either the taker's second look sees
// the place un-named or the owner's second collect sees this count.
func (r Row) Take(index uint32) error {
	now := r.r.Add64(uint64(index)*protocol.RowWordSize, protocol.Take) // MODEL lanes:take-up
	if (now-protocol.Take)&protocol.CountMask >= protocol.CountLimit {
		r.r.Add64(uint64(index)*protocol.RowWordSize, protocol.Drop)
		return protocol.Errorf(protocol.CodeTooMany, "drop some of them",
			"this process holds %d references to storage %d", protocol.CountLimit, index)
	}
	return nil
}

// Drop counts one reference down and tells whether it was this row's last.
//
// SYNC row: releases all that the holder did with the memory to the owner that
// reads the word in its free test.
func (r Row) Drop(index uint32) (last bool) {
	raceRelease(index)
	return r.r.Add64(uint64(index)*protocol.RowWordSize, protocol.Drop)&protocol.CountMask == 0 // MODEL lanes:drop, tso:release-drop
}

// Raise counts n references up that another row of this process counts already: they
// are about to be counted down there.
//
// SYNC row: sequentially consistent, as Take; at every instant one of the two rows
// counts them.
func (r Row) Raise(index uint32, n uint64) error {
	now := r.r.Add64(uint64(index)*protocol.RowWordSize, n*protocol.Take)
	if (now-n*protocol.Take)&protocol.CountMask+n > protocol.CountLimit {
		r.Lower(index, n)
		return protocol.Errorf(protocol.CodeTooMany, "drop some of them",
			"this process holds %d references to storage %d", protocol.CountLimit, index)
	}
	return nil
}

// Lower counts n references down that Raise counted and that are not held.
func (r Row) Lower(index uint32, n uint64) {
	r.r.Add64(uint64(index)*protocol.RowWordSize, n*protocol.Drop)
}

// Clear lowers a word's count to zero, with a new sequence. The broker's, in the
// row of the dead, and at the start of a session in a row that was used before.
func (r Row) Clear(index uint32) {
	at := uint64(index) * protocol.RowWordSize
	// A process that still writes here has ended its session, and its counts are void: it
	// cannot make this wait.
	if w := r.r.Load64(at); w&protocol.CountMask != 0 {
		r.r.Store64(at, (w|protocol.CountMask)+1) // MODEL lanes:adopt-droprow
	}
}
