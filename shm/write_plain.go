//go:build !race

package shm

// writeWords stores words that nobody may read yet: a slot whose seq is 0. The
// release store of seq publishes them, so plain stores will do.
func (r Region) writeWords(off uint64, src []uint64) {
	dst := WordsOf(r.Bytes(off, uint64(len(src))*8))
	copy(dst, src)
}
