//go:build !race

package shm

// writeWords stores words that no reader may read yet: a slot whose seq is 0. The
// release store of seq publishes them, so plain stores will do.
func (r Region) writeWords(off uint64, src []uint64) {
	dst := WordsOf(r.Bytes(off, uint64(len(src))*8))
	copy(dst, src)
}

// writeWord stores one such word.
func (r Region) writeWord(off, v uint64) { *r.Word(off) = v }

// StoreRelease64 stores after everything before it. Unlike Store64 it is no fence
// and does not wait until others see it.
func (r Region) StoreRelease64(off, v uint64) { storeRelease(r.Word(off), v) }
