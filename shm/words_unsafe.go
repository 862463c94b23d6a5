package shm

import "unsafe"

// WordsOf views a byte slice as 64-bit words; b must be 8-aligned and a whole
// number of words long. Used to copy shared bytes a word at a time.
func WordsOf(b []byte) []uint64 {
	if len(b) == 0 {
		return nil
	}
	p := unsafe.Pointer(unsafe.SliceData(b))
	if uintptr(p)&7 != 0 || len(b)&7 != 0 {
		panic("baton: not a run of 64-bit words")
	}
	// Sound: aligned and inside b.
	return unsafe.Slice((*uint64)(p), len(b)/8)
}

// BytesOf views words as bytes.
func BytesOf(w []uint64) []byte {
	if len(w) == 0 {
		return nil
	}
	// Sound: the same memory, with a weaker alignment.
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(w))), len(w)*8)
}
