package shm

// Pause tells the processor that this is a spin loop.
func Pause()

func fence()

// Fence orders every access before it with every access after it. Go has no
// fence of its own; it is needed where a store must be seen before a later
// load is made and neither is a read-modify-write.
func Fence() { fence() }

//go:noescape
func prefetch(p *uint64)

//go:noescape
func prefetchWrite(p *uint64)
