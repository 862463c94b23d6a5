package leases

import (
	"time"

	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/internal/sys"
)

// The handle in a pickle is there to be read once, and nothing tells that no process will: a
// pickle that was lost looks as one that waits in a pipe. So time alone ends none of these leases while the
// session lives. Where memory would be refused, those that are older than a limit are given up.

// DefaultUnreadLimit is for how long a pickle's lease is kept in any case.
const DefaultUnreadLimit = time.Minute

// unreadPause is for how long a look through many old pickles that has found none worth giving up
// is not repeated: a program may ask for memory all the time.
const (
	unreadPause = 100 * time.Millisecond
	unreadMany  = 1024
	// youngMost bounds how many young pickles a refusal looks at.
	youngMost = 256
)

// LimitUnread sets how old a pickle that was not read has to be before it may be given up; 0 is
// the default.
func (ls *Leases) LimitUnread(age time.Duration) {
	if age != 0 {
		ls.unread.setLimit(age)
	}
}

// Unread says how many pickles' handles were not read, and what became of others.
type Unread struct {
	Waiting int     `json:"waiting"`        // handed over in pickles, and not read
	Oldest  float64 `json:"oldest_seconds"` // since the first of them was handed over
	MayGo   int     `json:"may_go"`         // of them, those that are old enough to be given up where memory is refused
	GivenUp uint64  `json:"given_up"`       // in this broker's life
}

// Unread counts. It looks at no lease that it has found old before.
func (ls *Leases) Unread() Unread {
	now := sys.Monotonic()
	return Unread{Waiting: ls.unread.count(), Oldest: ls.unread.age(now).Seconds(), MayGo: ls.unread.countOld(now), GivenUp: ls.givenUp}
}

// age is how long ago a pickle was handed over.
func (l *lease) age(now uint64) time.Duration { return time.Duration(now - min(now, l.handed)) }

// GiveUp ends leases of old pickles, oldest first, until bytes of memory are free by that. free tells
// how many bytes of a storage are, if the broker's refcounts count it so often less, and 0 where
// something else has it: a pickle whose end would free nothing stays. It returns how many it gave
// up, and the storages that are free.
func (ls *Leases) GiveUp(bytes uint64, free func(index uint32, less uint64) uint64) (n int, freed []uint32) {
	now := sys.Monotonic()
	if ls.fruitless != 0 && now-min(now, ls.fruitless) < uint64(unreadPause) {
		return 0, nil
	}
	ls.fruitless = 0
	w := newWorth(free)
	var looked []*lease
	for l := range ls.unread.old(now) {
		if looked = append(looked, l); w.add(l) >= bytes {
			break
		}
	}
	for _, l := range looked {
		if w.has(l) {
			ls.end(l)
			n++
		}
	}
	if n == 0 && len(looked) >= unreadMany {
		ls.fruitless = now
	}
	ls.gaveUp(n, "memory is short")
	return n, w.freed
}

// Young tells how many bytes would be free without the pickles that are too young to be given up, as far as it looks; how
// old the oldest of them is; and how old it has to be.
func (ls *Leases) Young(free func(index uint32, less uint64) uint64) (bytes uint64, age, limit time.Duration) {
	now, looked := sys.Monotonic(), 0
	w := newWorth(free)
	for l := range ls.unread.young(now) {
		if looked++; looked > youngMost {
			break
		}
		if before := w.bytes; w.add(l) > before && before == 0 {
			age = l.age(now)
		}
	}
	return w.bytes, age, ls.unread.limit
}

// worth sums up what is free once some leases end.
type worth struct {
	free  func(index uint32, less uint64) uint64
	named map[uint32]uint64 // how often they name each storage
	got   map[uint32]bool   // the storages that are free
	freed []uint32          // the same, in order
	bytes uint64
}

func newWorth(free func(index uint32, less uint64) uint64) *worth {
	return &worth{free: free, named: map[uint32]uint64{}, got: map[uint32]bool{}}
}

// add takes one more lease, and returns the sum.
func (w *worth) add(l *lease) uint64 {
	for _, r := range l.refs {
		w.named[r.Index]++
		if w.got[r.Index] {
			continue
		}
		if b := w.free(r.Index, w.named[r.Index]); b > 0 {
			w.got[r.Index], w.freed, w.bytes = true, append(w.freed, r.Index), w.bytes+b
		}
	}
	return w.bytes
}

// has tells whether a storage that is free is one of a lease.
func (w *worth) has(l *lease) bool {
	for _, r := range l.refs {
		if w.got[r.Index] {
			return true
		}
	}
	return false
}

// gaveUp counts pickles that were given up, and notes them.
func (ls *Leases) gaveUp(n int, why string) {
	if n == 0 {
		return
	}
	ls.givenUp += uint64(n)
	ls.log.Warn("gave up handles in pickles that were not read: "+why, events.Of(events.Memory), "pickles", n, "older_than", ls.unread.limit)
}
