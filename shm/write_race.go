//go:build race

package shm

// writeWords, under the race detector, stores atomically: a late reader may
// still be copying the slot's former message, which it will then throw away.
// That race is the protocol's, and the detector must not report it.
func (r Region) writeWords(off uint64, src []uint64) {
	for i, w := range src {
		r.Store64(off+uint64(i)*8, w)
	}
}

func (r Region) writeWord(off, v uint64) { r.Store64(off, v) }

// StoreRelease64, under the race detector, is an atomic that the detector knows.
func (r Region) StoreRelease64(off, v uint64) { r.Store64(off, v) }
