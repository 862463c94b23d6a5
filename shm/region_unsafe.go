package shm

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Region is a mapped range of memory that other processes may share. The zero
// Region has no bytes.
type Region struct {
	base unsafe.Pointer
	size uint64
}

// NewRegion views b, which must outlive the Region and start 8-aligned: a
// mapping, or ordinary memory in tests.
func NewRegion(b []byte) Region {
	if len(b) == 0 {
		return Region{}
	}
	base := unsafe.Pointer(unsafe.SliceData(b))
	if uintptr(base)&7 != 0 {
		panic("baton: shared region is not 8-aligned")
	}
	return Region{base, uint64(len(b))}
}

// Len returns the bytes of the region.
func (r Region) Len() uint64 { return r.size }

// Valid tells whether the region has memory.
func (r Region) Valid() bool { return r.base != nil }

// Has tells whether n bytes at off lie inside, without overflow.
func (r Region) Has(off, n uint64) bool { return off <= r.size && n <= r.size-off }

// Sub views n bytes at off.
func (r Region) Sub(off, n uint64) Region {
	if !r.Has(off, n) || off&7 != 0 {
		outside(off, n, r.size)
	}
	// Sound: the range was just checked to lie inside the mapping.
	return Region{unsafe.Add(r.base, off), n}
}

//go:noinline
func outside(off, n, size uint64) {
	panic(fmt.Sprintf("baton: %d bytes at %d are outside or misaligned in a shared region of %d", n, off, size))
}

// outsideWord is thrown as it is: a call here would keep Word, and with it every
// atomic, from being inlined.
const outsideWord = "baton: a word outside of a shared region, or misaligned in it"

// Word returns the address of the 64-bit word at off, for a refcount word that C
// code counts down. Sound while the mapping lives.
func (r Region) Word(off uint64) *uint64 {
	if off&7 != 0 || off>>3 >= r.size>>3 { // so written that it is inlined and cannot overflow
		panic(outsideWord)
	}
	// Sound: inside the mapping and 8-aligned (misaligned 64-bit atomics pass
	// unnoticed on amd64 and fault on arm64).
	return (*uint64)(unsafe.Add(r.base, off))
}

// line returns the address of the eight words at off, a slot's first cache line.
func (r Region) line(off uint64) *[lineBytes / 8]uint64 {
	if off&7 != 0 || r.size < lineBytes || off > r.size-lineBytes {
		panic(outsideWord)
	}
	// Sound: all eight lie inside the mapping, 8-aligned.
	return (*[lineBytes / 8]uint64)(unsafe.Add(r.base, off))
}

// Word32 returns the address of the 32-bit word at off, for a futex.
func (r Region) Word32(off uint64) *uint32 {
	if off&3 != 0 || off>>2 >= r.size>>2 {
		panic(outsideWord)
	}
	// Sound: inside the mapping and 4-aligned.
	return (*uint32)(unsafe.Add(r.base, off))
}

// Load64 and its kin are sequentially consistent atomics, as sync/atomic's.
func (r Region) Load64(off uint64) uint64 { return atomic.LoadUint64(r.Word(off)) }

// Store64 stores with release, and is a full fence on amd64.
func (r Region) Store64(off, v uint64) { atomic.StoreUint64(r.Word(off), v) }

// Add64 adds and returns the new value.
func (r Region) Add64(off, delta uint64) uint64 { return atomic.AddUint64(r.Word(off), delta) }

// CAS64 swaps old for new and tells whether it did.
func (r Region) CAS64(off, old, new uint64) bool {
	return atomic.CompareAndSwapUint64(r.Word(off), old, new)
}

// Or64 sets bits, And64 keeps bits.
func (r Region) Or64(off, bits uint64) { atomic.OrUint64(r.Word(off), bits) }

// And64 keeps only the bits given.
func (r Region) And64(off, bits uint64) (old uint64) { return atomic.AndUint64(r.Word(off), bits) }

// Prefetch starts to fetch the line of the word at off, so that the fetch runs
// beside those that follow. It changes nothing that a reader can see.
func (r Region) Prefetch(off uint64) { prefetch(r.Word(off)) }

// PrefetchWrite does the same for a line that is about to be written.
func (r Region) PrefetchWrite(off uint64) { prefetchWrite(r.Word(off)) }

// Load32 loads a 32-bit word.
func (r Region) Load32(off uint64) uint32 { return atomic.LoadUint32(r.Word32(off)) }

// Store32 stores a 32-bit word.
func (r Region) Store32(off uint64, v uint32) { atomic.StoreUint32(r.Word32(off), v) }

// Add32 adds and returns the new value.
func (r Region) Add32(off uint64, delta uint32) uint32 {
	return atomic.AddUint32(r.Word32(off), delta)
}

// Bytes views n bytes at off. Others may write them at any time: copy before
// looking twice.
func (r Region) Bytes(off, n uint64) []byte {
	if !r.Has(off, n) {
		outside(off, n, r.size)
	}
	if n == 0 {
		return nil
	}
	// Sound: inside the mapping.
	return unsafe.Slice((*byte)(unsafe.Add(r.base, off)), int(n))
}

// Address returns where the byte at off is, for a view handed to C or to a Go
// slice; off may equal Len.
func (r Region) Address(off uint64) unsafe.Pointer {
	if off > r.size {
		outside(off, 0, r.size)
	}
	// Sound: inside the mapping or just behind it, as C allows.
	return unsafe.Add(r.base, off)
}

// ReadWords copies into dst the bytes at off, a word at a time; off and
// len(dst) are multiples of 8. Each word is read once, atomically, so that
// ring tests on ordinary memory are free of races.
func (r Region) ReadWords(dst []uint64, off uint64) {
	n := uint64(len(dst)) * 8
	if !r.Has(off, n) || off&7 != 0 {
		outside(off, n, r.size)
	}
	p := unsafe.Add(r.base, off)
	for i := range dst {
		// Sound: i words from off were checked to lie inside.
		dst[i] = atomic.LoadUint64((*uint64)(unsafe.Add(p, i*8)))
	}
}
