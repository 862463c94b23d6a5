package handles

import (
	"math/bits"

	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// FreeTest decides whether a storage has no holder. It is the owner's, or the
// broker's in the place of a dead owner; one goroutine at a time.
type FreeTest struct {
	Chunks  Chunks
	Entries Entries // the owner's own, writable
	// Refcounts returns the refcounts of the session now in a slot. When it cannot (its
	// file is not mapped yet), the storage counts as held for now.
	Refcounts func(slot uint32) (Refcounts, bool)

	found    []Refcounts // attached, as the first collect found them
	words    []uint64    // what they said
	attached []word      // of the attached bits
}

// word is a word of the attached bits.
type word struct {
	number int
	bits   uint64
}

// Recycle runs the test on a storage and, if it has no holder, ends its
// generation and returns the next one.
//
// Two collects of every attached word, with the RETIRING mark and a fence
// between them, must be equal and all zero, and neither the attached bits nor
// the epoch may have changed: then at the moment of the fence no holder counted
// it, no place named it, and a session that looks later sees the mark.
func (t *FreeTest) Recycle(index uint32) (generation uint64, free bool) {
	chunk := index / protocol.ChunkIndices
	t.Entries.PrefetchWrite(index) // its reader has the line, as well as those of the refcounts
	epoch := t.Chunks.Epoch(chunk) // MODEL attach:epoch-read
	named := t.Chunks.AttachedWords(chunk)
	t.attached = t.attached[:0]
	for left := named; left != 0; left &= left - 1 {
		w := bits.TrailingZeros64(left)
		t.attached = append(t.attached, word{w, t.Chunks.Attached(chunk, w)})
	}
	t.found, t.words = t.found[:0], t.words[:0]
	for _, w := range t.attached { // MODEL lanes:collect-first
		for b := w.bits; b != 0; b &= b - 1 {
			refcounts, ok := t.Refcounts(uint32(w.number*64 + bits.TrailingZeros64(b)))
			if !ok {
				return 0, false
			}
			v := refcounts.Load(index)
			if v&protocol.CountMask != 0 {
				return 0, false
			}
			t.found, t.words = append(t.found, refcounts), append(t.words, v)
		}
	}
	crashpoint.At("recycle-collected")
	t.Entries.mark(index) // MODEL lanes:retiring
	crashpoint.At("recycle-retiring")
	// SYNC generation: the mark and this process's own un-namings and drops are
	// visible before the second collect reads anything.
	shm.Fence() // MODEL tso:fence-owner
	if !t.unchanged(index, chunk, epoch, named) {
		t.Entries.unmark(index)
		return 0, false
	}
	crashpoint.At("recycle-checked")
	generation = t.Entries.next(index) // MODEL lanes:next-generation
	crashpoint.At("recycle-next")
	return generation, true
}

// unchanged is the second collect. It reads the refcounts that the first one read: had
// a slot got another session meanwhile, the epoch would tell.
func (t *FreeTest) unchanged(index, chunk uint32, epoch, named uint64) bool {
	for k, refcounts := range t.found { // MODEL lanes:collect-second
		if refcounts.Load(index) != t.words[k] {
			return false
		}
	}
	if t.Chunks.AttachedWords(chunk) != named {
		return false
	}
	for _, w := range t.attached {
		if t.Chunks.Attached(chunk, w.number) != w.bits {
			return false
		}
	}
	return t.Chunks.Epoch(chunk) == epoch // MODEL attach:epoch-compare
}
