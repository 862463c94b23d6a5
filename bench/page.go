package bench

import (
	"time"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/shm"
)

// page is memory that the processes of a measurement and their parent share: words,
// each on a line of its own, and series of time stamps that one process writes
// and the parent reads when both have ended.
type page struct {
	b []byte
	r shm.Region
	n int // length of a series
}

// Lines of the page. Two processors' caches fetch lines in pairs of 64 bytes.
const (
	lineBytes = 128
	lineSide  = 0 // and 1: how often each side came to the barrier
	linePing  = 2 // left writes
	linePong  = 3 // right writes
	lineAsks  = 4 // right writes: it is about to sleep for this number
	lineCount = 5 // a counter of one process for another
	lineStop  = 6
	lineDone  = 7  // left writes: it is ready for the slice of this number, from 1 on
	lineTurn  = 8  // the parent writes: the pair may do this slice
	lineMore  = 16 // and on: how often each further reader came to the barrier
	pageHead  = 4096

	maxReaders = right + pageHead/lineBytes - lineMore // that have a line
)

// Series of the page.
const (
	seriesDepart  = iota // left, just before it sends
	seriesArrive         // right, once it has received
	seriesBack           // left, once it has the answer
	seriesPublish        // right, the stamp that the message carries
	seriesCount
)

func pageBytes(n int) int { return pageHead + seriesCount*n*8 }

// newPage makes the memory of a pair. The caller closes the descriptor.
func newPage(n int) (*sys.FD, *page, error) {
	fd, err := sys.CreateMemfd("baton-bench", int64(pageBytes(n)))
	if err != nil {
		return nil, nil, err
	}
	if err = fd.Reserve(0, int64(pageBytes(n))); err == nil {
		var p *page
		if p, err = openPage(fd, n); err == nil {
			return fd, p, nil
		}
	}
	fd.Close()
	return nil, nil, err
}

// openPage maps it with every page touched: a fault in a timed loop would count.
func openPage(fd *sys.FD, n int) (*page, error) {
	b, err := sys.Map(fd, pageBytes(n), true)
	if err != nil {
		return nil, err
	}
	if err := sys.Populate(b); err != nil {
		sys.Unmap(b)
		return nil, err
	}
	return &page{b, shm.NewRegion(b), n}, nil
}

// close unmaps it. It must not be used any more.
func (p *page) close() { sys.Unmap(p.b) }

func (p *page) load(line int) uint64     { return p.r.Load64(uint64(line) * lineBytes) }
func (p *page) store(line int, v uint64) { p.r.Store64(uint64(line)*lineBytes, v) }
func (p *page) word32(line int) *uint32  { return p.r.Word32(uint64(line) * lineBytes) }

func (p *page) series(k int) []uint64 {
	return shm.WordsOf(p.r.Bytes(uint64(pageHead+k*p.n*8), uint64(p.n)*8))
}

// meet waits until the other side has come here as often as this one. The parent
// ends a process whose other side has died.
func (p *page) meet(side int) {
	own := p.load(lineSide+side) + 1
	p.store(lineSide+side, own)
	sys.FutexWake(p.word32(lineSide + side))
	for {
		other := p.load(lineSide + 1 - side)
		if other >= own {
			return
		}
		sys.FutexWait(p.word32(lineSide+1-side), uint32(other), time.Second)
	}
}

// awaitSpin looks until a line reaches v. It does not pause: the fastest that
// two processors can do is what is wanted.
func (p *page) awaitSpin(line int, v uint64) {
	w := p.r.Word(uint64(line) * lineBytes)
	for load(w) < v {
	}
}

// linger spins for a while, so that a process which is about to sleep sleeps.
func linger(d time.Duration) {
	for until := sys.Monotonic() + uint64(d); sys.Monotonic() < until; {
		shm.Pause()
	}
}
