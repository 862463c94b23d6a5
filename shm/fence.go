package shm

// Pause tells the processor that this is a spin loop.
func Pause()

func fence()

// Fence orders every access before it with every access after it. Go has no
// fence of its own; it is needed where a store must be seen before a later
// load is made and neither is a read-modify-write.
func Fence() { fence() }

// storeRelease stores v after every access before it. An atomic store of Go's is
// a full fence on amd64, which waits until the lines of all earlier stores have
// come; this is a plain store there. No processor of that kind lets it overtake
// an earlier access, and no compiler moves anything across the call.
//
//go:noescape
func storeRelease(p *uint64, v uint64)

//go:noescape
func prefetch(p *uint64)

//go:noescape
func prefetchWrite(p *uint64)
