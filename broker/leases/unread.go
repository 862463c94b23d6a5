package leases

import (
	"cmp"
	"slices"
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
)

// LimitUnread sets how old a pickle that was not read has to be before it may be given up; 0 is
// the default.
func (ls *Leases) LimitUnread(age time.Duration) {
	if age != 0 {
		ls.unreadLimit = age
	}
}

// Unread says how many pickles' handles were not read, and what became of others.
type Unread struct {
	Waiting int     `json:"waiting"`        // handed over in pickles, and not read
	Oldest  float64 `json:"oldest_seconds"` // since the first of them was handed over
	MayGo   int     `json:"may_go"`         // of them, those that are old enough to be given up where memory is refused
	GivenUp uint64  `json:"given_up"`       // in this broker's life
}

// Unread counts.
func (ls *Leases) Unread() Unread {
	u := Unread{GivenUp: ls.givenUp}
	now := sys.Monotonic()
	for _, l := range ls.byID {
		if l.handed == 0 {
			continue
		}
		u.Waiting++
		u.Oldest = max(u.Oldest, l.age(now).Seconds())
		if ls.mayGo(l, now) {
			u.MayGo++
		}
	}
	return u
}

// age is how long ago a pickle was handed over.
func (l *lease) age(now uint64) time.Duration { return time.Duration(now - min(now, l.handed)) }

func (ls *Leases) mayGo(l *lease, now uint64) bool {
	return l.handed != 0 && l.age(now) >= ls.unreadLimit
}

// GiveUp ends leases of old pickles, oldest first, until bytes of memory are free by that. free tells
// how many bytes of a storage are, if the broker's row counts it so often less, and 0 where
// something else has it: a pickle whose end would free nothing stays. It returns how many it gave
// up, and the storages that are free.
func (ls *Leases) GiveUp(bytes uint64, free func(index uint32, less uint64) uint64) (n int, freed []uint32) {
	now := sys.Monotonic()
	if ls.fruitless != 0 && now-min(now, ls.fruitless) < uint64(unreadPause) {
		return 0, nil
	}
	ls.fruitless = 0
	old := ls.oldUnread(now, nil)
	named := map[uint32]uint64{} // how often old pickles name each storage
	for _, l := range old {
		for _, r := range l.refs {
			named[r.Index]++
		}
	}
	got, worth := uint64(0), map[uint32]uint64{} // what each storage frees with the last pickle that names it
	for index, less := range named {
		if b := free(index, less); b > 0 {
			worth[index] = b
		}
	}
	for _, l := range old {
		if got >= bytes || len(worth) == 0 {
			break
		}
		useful := false
		for _, r := range l.refs {
			useful = useful || worth[r.Index] > 0
		}
		if !useful {
			continue
		}
		for _, r := range l.refs {
			if named[r.Index]--; named[r.Index] == 0 {
				if b, is := worth[r.Index]; is {
					got, freed = got+b, append(freed, r.Index)
					delete(worth, r.Index)
				}
			}
		}
		ls.end(l)
		n++
	}
	if n == 0 && len(old) >= unreadMany {
		ls.fruitless = now
	}
	ls.gaveUp(n, "memory is short")
	return n, freed
}

// gaveUp counts pickles that were given up, and notes them.
func (ls *Leases) gaveUp(n int, why string) {
	if n == 0 {
		return
	}
	ls.givenUp += uint64(n)
	ls.log.Warn("gave up handles in pickles that were not read: "+why, events.Of(events.Memory), "pickles", n, "older_than", ls.unreadLimit)
}

// oldUnread lists the pickles that may be given up, of one maker or of all, oldest first.
func (ls *Leases) oldUnread(now uint64, of func(*lease) bool) (old []*lease) {
	for _, l := range ls.byID {
		if ls.mayGo(l, now) && (of == nil || of(l)) {
			old = append(old, l)
		}
	}
	slices.SortFunc(old, func(a, b *lease) int {
		return cmp.Or(cmp.Compare(a.handed, b.handed), cmp.Compare(a.id, b.id))
	})
	return old
}
