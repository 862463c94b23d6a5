package lanes

import (
	"context"
	"runtime"
	"slices"
	"sync"

	"github.com/baton-ipc/baton/client/internal/memory"
	"github.com/baton-ipc/baton/client/internal/waits"
	"github.com/baton-ipc/baton/protocol"
)

// Reading a name takes the revision that the broker's lane names at that moment: that
// needs no reader, and no broker. So a name that was read stays open for the next time,
// as long as few others are read meanwhile. One that is not set is left: its numbers begin
// anew where no session has it open. So is one that another session has deleted: it is
// looked for when the mappings are compared.

// gotKept is how many names stay open: an open name has a place in the broker's tables,
// also once it is deleted.
const gotKept = 16

// got has the names that a client has read last, the latest at the end.
type got struct {
	mu    sync.Mutex
	names []*gotName
}

type gotName struct {
	name  string
	t     *Topic
	using int // calls that read it just now
	over  bool
}

// Newest takes the newest revision of a name into a fresh one; false where none is set.
func (s *Topics) Newest(ctx context.Context, name string, into *memory.Taken) (from Received, ok bool, err error) {
	if err := s.life.Ended(); err != nil {
		return from, false, err
	}
	n := s.got.use(name)
	if n == nil {
		t, err := s.OpenName(ctx, name)
		if err != nil {
			return from, false, err
		}
		n = s.got.add(name, t)
	}
	from, ok, err = n.t.newest(ctx, into)
	if t := s.got.done(n, !ok && err == nil); t != nil {
		go t.Close() // it asks the broker, for which a reader need not wait
	}
	return from, ok, err
}

// OpenName opens a name, to be read.
func (s *Topics) OpenName(ctx context.Context, name string) (*Topic, error) {
	return s.Join(ctx, protocol.OpNameOpen, func(opening uint64) any {
		return protocol.NameOpen{Name: name, Opening: opening, Seconds: waits.SecondsForHosts(ctx)}
	})
}

// LeaveName ends the openings of a name that was read.
func (s *Topics) LeaveName(name string) {
	for _, t := range s.got.forget(name) {
		t.Close() // an error only delays that
	}
}

// use finds a name that is open; nil if it is not.
func (g *got) use(name string) *gotName {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.IndexFunc(g.names, func(n *gotName) bool { return n.name == name && !n.over && !n.t.isClosed() })
	if i < 0 {
		return nil
	}
	n := g.names[i]
	g.names = append(slices.Delete(g.names, i, i+1), n)
	n.using++
	return n
}

func (g *got) add(name string, t *Topic) *gotName {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := &gotName{name: name, t: t, using: 1}
	g.names = append(g.names, n)
	return n
}

// done ends a use, the last one where the name is over. It returns what is to be left now:
// this name, or the oldest where too many are open.
func (g *got) done(n *gotName, over bool) *Topic {
	g.mu.Lock()
	defer g.mu.Unlock()
	n.using--
	n.over = n.over || over
	if n.over || len(g.names) <= gotKept {
		return g.drop(n)
	}
	for _, oldest := range g.names {
		if oldest.using == 0 {
			oldest.over = true
			return g.drop(oldest)
		}
	}
	return nil
}

// forget ends a name. It returns what is to be left now; a call that reads it leaves it then.
func (g *got) forget(name string) (left []*Topic) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, n := range slices.Clone(g.names) { // two calls may have opened it side by side
		if n.name == name {
			n.over = true
			if t := g.drop(n); t != nil {
				left = append(left, t)
			}
		}
	}
	return left
}

// forgetDeleted ends the names that are not set any more. It returns what is to be left now.
func (g *got) forgetDeleted() (left []*Topic) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, n := range slices.Clone(g.names) {
		if n.t.isClosed() || n.t.isDeleted() {
			n.over = true
			if t := g.drop(n); t != nil {
				left = append(left, t)
			}
		}
	}
	return left
}

// drop takes a name out that is over and not used. Callers hold g.mu.
func (g *got) drop(n *gotName) *Topic {
	if !n.over || n.using > 0 {
		return nil
	}
	g.names = slices.DeleteFunc(g.names, func(other *gotName) bool { return other == n })
	return n.t
}

// newest takes what the one lane of a name names now.
func (t *Topic) newest(ctx context.Context, into *memory.Taken) (from Received, ok bool, err error) {
	m := t.set.memory
	for {
		v, err := t.lanesNow(ctx)
		if err != nil || len(v.lanes) == 0 {
			return from, false, err
		}
		l := v.lanes[0]
		i := l.Ring.Head()
		into.Renew(m)
		ok, err := m.Take(ctx, l, i, into)
		same := l.Ring.Head() == i
		runtime.KeepAlive(v) // it has the lane mapped
		switch {
		case err == nil && ok:
			return Received{Sender: l.Peer.Name, Number: i, Stale: t.IsStale()}, true, nil
		case err != nil && !refuted(err):
			return from, false, err
		case ok || same: // it cannot be taken, or there is no revision
			return from, false, nil
		} // a newer one since, whatever was wrong with this one
		if err := t.set.life.Ended(); err != nil {
			return from, false, err
		}
	}
}
