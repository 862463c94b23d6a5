package sessionfiles

import (
	"sync"
	"sync/atomic"

	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/sys"
)

// Exports are the DLPack structures of one session. Their memory stays mapped as long
// as the process runs, since C code may call a deleter at any time: it is taken at the
// first export, and another session uses it when nothing is out any more.
type Exports struct {
	mu   sync.Mutex // guards making
	pool atomic.Pointer[dlpack.Pool]
}

// spareExports has the pools of sessions that are over.
var spareExports struct {
	mu    sync.Mutex
	pools []*dlpack.Pool
}

// Get returns the structures, which are taken at the first call.
func (x *Exports) Get() (*dlpack.Pool, error) {
	if p := x.pool.Load(); p != nil {
		return p, nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if p := x.pool.Load(); p != nil {
		return p, nil
	}
	spareExports.mu.Lock()
	var p *dlpack.Pool
	if n := len(spareExports.pools); n > 0 {
		p, spareExports.pools = spareExports.pools[n-1], spareExports.pools[:n-1]
	}
	spareExports.mu.Unlock()
	if p == nil {
		var err error
		if p, err = dlpack.NewPool(sys.MapAnonymous); err != nil {
			return nil, err
		}
	}
	x.pool.Store(p)
	return p, nil
}

// Reap calls fn with the cookies of structures that C code has deleted.
func (x *Exports) Reap(fn func(cookie uint64)) {
	if p := x.pool.Load(); p != nil {
		p.Reap(fn)
	}
}

// end tells whether nothing is out, at the end of all use by Go code; then the pool is
// given to others.
func (x *Exports) end() bool {
	p := x.pool.Load()
	if p == nil {
		return true
	}
	p.Reap(nil)
	if p.Stats().Live > 0 {
		return false
	}
	spareExports.mu.Lock()
	defer spareExports.mu.Unlock()
	spareExports.pools = append(spareExports.pools, p)
	return true
}
