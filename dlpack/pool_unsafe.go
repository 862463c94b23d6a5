package dlpack

import (
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"
)

const (
	firstChunk   = 64 << 10
	largestChunk = 1 << 20
)

// Pool gives out DLPack structures that C code can hold and release. Its memory
// is never unmapped: a deleter may be called as long as the process runs. One
// pool per process is enough. All methods may be called from any goroutine.
type Pool struct {
	alloc func(bytes int) ([]byte, error)
	// stack is the head of the released blocks, the address of a blockCtx. It
	// lies in pool memory because C threads write it.
	stack *uintptr

	mu     sync.Mutex
	free   [len(classes)]uintptr
	chunk  [len(classes)]int // bytes that the next chunk has
	live   int
	unused int
	mapped int
}

// PoolStats counts blocks.
type PoolStats struct {
	Live        int // exported and not yet reaped
	Free        int
	MappedBytes int
}

// NewPool makes a pool. alloc gives zeroed private memory outside the Go heap,
// aligned to at least 64 bytes, that stays mapped until the process ends (an
// anonymous mapping). It is called now and when the pool must grow, with
// multiples of 64 KiB. Errors: alloc's, wrapped; ErrAllocator.
func NewPool(alloc func(bytes int) ([]byte, error)) (*Pool, error) {
	p := &Pool{alloc: alloc, chunk: [len(classes)]int{firstChunk, firstChunk}}
	chunk, err := p.take(firstChunk)
	if err != nil {
		return nil, err
	}
	// The first line is the stack's head alone. Sound: the chunk is aligned and
	// never unmapped.
	p.stack = (*uintptr)(unsafe.Pointer(&chunk[0]))
	*p.stack = 0
	p.add(0, chunk[lineSize:])
	return p, nil
}

func (p *Pool) take(n int) ([]byte, error) {
	chunk, err := p.alloc(n)
	if err != nil {
		return nil, fmt.Errorf("dlpack: memory for tensor structures (%d bytes): %w", n, err)
	}
	if len(chunk) < n {
		return nil, fmt.Errorf("%w: %d bytes of %d", ErrAllocator, len(chunk), n)
	}
	// Sound: only the address is looked at.
	if uintptr(unsafe.Pointer(&chunk[0]))%lineSize != 0 {
		return nil, fmt.Errorf("%w: not aligned to %d bytes", ErrAllocator, lineSize)
	}
	p.mapped += n
	return chunk[:n:n], nil
}

func (p *Pool) add(class uint32, chunk []byte) {
	first, n := carve(chunk, class, uintptr(unsafe.Pointer(p.stack)))
	p.free[class] = first
	p.unused += n
}

// get takes a block off the free list, or maps more of them.
func (p *Pool) get(ndim int) (*block, error) {
	class := classFor(ndim)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free[class] == 0 {
		n := p.chunk[class]
		chunk, err := p.take(n)
		if err != nil {
			return nil, err
		}
		p.chunk[class] = min(2*n, largestChunk)
		p.add(class, chunk)
	}
	b := blockAt(p.free[class])
	p.free[class] = b.ctx.next
	p.unused--
	p.live++
	return b, nil
}

// Reap takes all blocks that were released since the last time back into the
// pool and calls fn (unless nil) with the cookie of each, in no fixed order. It
// gives their number. fn runs without a lock and may use the pool. Costs one
// load when there is nothing to do. It must be called now and then: Export
// takes new memory rather than reaping, so that no cookie is ever lost.
func (p *Pool) Reap(fn func(cookie uint64)) int {
	if atomic.LoadUintptr(p.stack) == 0 {
		return 0
	}
	// SYNC dlpack-stack: what the deleter did before its push is visible here;
	// the other end is the compare-and-swap in deleter_*.s.
	addr := atomic.SwapUintptr(p.stack, 0)
	raceAcquire()
	var first, last [len(classes)]*block
	n := 0
	for addr != 0 {
		b := ctxBlock(addr)
		addr = b.ctx.next
		if fn != nil {
			fn(b.ctx.cookie)
		}
		class := b.ctx.class
		if first[class] == nil {
			last[class] = b
			b.ctx.next = 0
		} else {
			b.ctx.next = first[class].addr()
		}
		first[class] = b
		n++
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for class := range first {
		if first[class] != nil {
			last[class].ctx.next = p.free[class]
			p.free[class] = first[class].addr()
		}
	}
	p.live -= n
	p.unused += n
	return n
}

// Stats counts the blocks. A released block is live until it is reaped.
func (p *Pool) Stats() PoolStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return PoolStats{Live: p.live, Free: p.unused, MappedBytes: p.mapped}
}
