package dlpack

import "unsafe"

// A block is one tensor that C may hold: the structure, what its deleter needs,
// and room for shape and strides, in this order and in memory that the garbage
// collector does not know. Addresses in it are plain numbers, so that no write
// barrier ever looks at what a recycled block contained before.
type block struct {
	// tensor is a ManagedTensorVersioned or, in its first 64 bytes, a
	// ManagedTensor.
	tensor ManagedTensorVersioned
	ctx    blockCtx
}

// blockCtx is what manager_ctx points to. deleter_*.s uses its field offsets.
type blockCtx struct {
	word   uintptr // refcount word, 0 for a tensor that no holder counts
	delta  uint64  // what the deleter adds to it
	cookie uint64  // the caller's, handed to Reap
	next   uintptr // the block below on the released stack, or on a free list
	stack  uintptr // head of the pool's released stack
	live   uint32  // 1 from export to the first call of the deleter
	class  uint32  // size class, set once
}

// A size class is the room for dimensions that a block has. Nearly all tensors
// fit into the first one.
type sizeClass struct {
	dims int
	size uintptr
}

const (
	headerSize = unsafe.Sizeof(block{})
	dimSize    = 16 // an extent and a stride
	lineSize   = 64 // blocks start on a cache line of their own
)

var classes = [...]sizeClass{
	{dims: 8, size: headerSize + 8*dimSize},
	{dims: MaxDims, size: headerSize + MaxDims*dimSize},
}

// The header must be whole cache lines, or blocks would share one.
const _ = -(headerSize ^ 2*lineSize)

func classFor(ndim int) uint32 {
	if ndim <= classes[0].dims {
		return 0
	}
	return 1
}

// addrPointer turns an address into a pointer. Sound only for memory outside
// the Go heap, which the garbage collector neither moves nor frees: pool memory
// and what C handed over. An addition to nil, because vet reports the direct
// conversion (it would be wrong for Go memory). Not inlined, because the
// compiler of Go 1.26 crashes when it finds the number itself as the source of
// a copy of constant length.
//
//go:noinline
func addrPointer(addr uintptr) unsafe.Pointer {
	return unsafe.Add(unsafe.Pointer(nil), addr)
}

// blockAt gives the block at an address that a pool has written itself. Sound:
// pool memory is never unmapped and each block lies inside one mapping.
func blockAt(addr uintptr) *block { return (*block)(addrPointer(addr)) }

// addr is the block's own address; it does not move, it is not Go memory.
func (b *block) addr() uintptr { return uintptr(unsafe.Pointer(b)) }

// ctxAddr is what goes into manager_ctx.
func (b *block) ctxAddr() uintptr { return uintptr(unsafe.Pointer(&b.ctx)) }

// legacy views the block as the legacy structure. Sound: it is shorter and has
// the same alignment, and a block is one or the other from export to release.
func (b *block) legacy() *ManagedTensor { return (*ManagedTensor)(unsafe.Pointer(b)) }

// dims gives the room for n extents and n strides behind the header. Sound for
// n up to the dims of the block's class, which classFor chose.
func (b *block) dims(n int) (shape, strides []int64) {
	p := (*int64)(unsafe.Add(unsafe.Pointer(b), headerSize))
	both := unsafe.Slice(p, 2*n)
	return both[:n:n], both[n:]
}

// ctxBlock gives the block whose ctx lies at addr, as pushed by the deleter.
func ctxBlock(addr uintptr) *block {
	return blockAt(addr - unsafe.Offsetof(block{}.ctx))
}

// carve cuts memory into blocks of one class and links them. Sound: chunk is
// pool memory, aligned to a line, and every block lies inside it.
func carve(chunk []byte, class uint32, stack uintptr) (first uintptr, n int) {
	size := int(classes[class].size)
	for off := (len(chunk)/size - 1) * size; off >= 0; off -= size {
		b := (*block)(unsafe.Pointer(&chunk[off]))
		b.ctx = blockCtx{class: class, stack: stack, next: first}
		first = b.addr()
		n++
	}
	return first, n
}
