package machines

import (
	"context"
	"sync"
)

const (
	// windowPieces is how many pieces of a transfer are under way at a time.
	windowPieces = 8
	// mostOfPeer and mostInFlight bound the bytes that were asked for and are not here, of one host and of all.
	mostOfPeer   = 16 << 20
	mostInFlight = 64 << 20
)

// gate bounds what is under way. Those that wait get their turns in the order in which they came, a piece at a time: a small
// transfer waits for a piece of a large one, and not for its end.
type gate struct {
	mu      sync.Mutex
	all     int64
	of      map[string]int64
	waiters []*waiter
}

type waiter struct {
	peer string
	n    int64
	in   chan struct{}
}

// try takes room for n bytes of a host if there is some and no other transfer waits for it.
func (g *gate) try(peer string, n int64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, w := range g.waiters {
		if w.peer == peer || g.all+w.n > mostInFlight {
			return false
		}
	}
	return g.takeLocked(peer, n)
}

func (g *gate) takeLocked(peer string, n int64) bool {
	if g.all+n > mostInFlight || g.of[peer]+n > mostOfPeer {
		return false
	}
	if g.of == nil {
		g.of = map[string]int64{}
	}
	g.all += n
	g.of[peer] += n
	return true
}

// take waits for room.
func (g *gate) take(ctx context.Context, peer string, n int64) error {
	if g.try(peer, n) {
		return nil
	}
	w := &waiter{peer, n, make(chan struct{})}
	g.mu.Lock()
	g.waiters = append(g.waiters, w)
	g.admitLocked() // it may have become free meanwhile
	g.mu.Unlock()
	select {
	case <-w.in:
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-w.in:
		g.giveLocked(peer, n)
	default:
		for i, other := range g.waiters {
			if other == w {
				g.waiters = append(g.waiters[:i], g.waiters[i+1:]...)
				break
			}
		}
		g.admitLocked()
	}
	return ctx.Err()
}

// give gives room back.
func (g *gate) give(peer string, n int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.giveLocked(peer, n)
}

func (g *gate) giveLocked(peer string, n int64) {
	g.all -= n
	if g.of[peer] -= n; g.of[peer] <= 0 {
		delete(g.of, peer)
	}
	g.admitLocked()
}

// admitLocked lets those in for which there is room. One that waits for its own host does not hold up others.
func (g *gate) admitLocked() {
	rest := g.waiters[:0]
	for _, w := range g.waiters {
		if g.takeLocked(w.peer, w.n) {
			close(w.in)
		} else {
			rest = append(rest, w)
		}
	}
	clear(g.waiters[len(rest):])
	g.waiters = rest
}

// underWay is how many bytes are under way.
func (g *gate) underWay() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.all
}
