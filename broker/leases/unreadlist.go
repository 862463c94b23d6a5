package leases

import (
	"cmp"
	"container/list"
	"iter"
	"slices"
	"time"
)

// unread are the leases of pickles, in the order in which these were handed over. The first of them, up to a place that
// only moves on, are known to be old: counting them looks at each once.
type unread struct {
	leases list.List     // of *lease
	limit  time.Duration // how old is old
	unaged *list.Element // the first that was not found old yet; nil: none
	aged   int           // how many are before it
}

// add adds a lease at the end, unless it is no pickle's.
func (u *unread) add(l *lease) {
	if l.handed == 0 {
		return
	}
	l.unread = u.leases.PushBack(l)
	if u.unaged == nil {
		u.unaged = l.unread
	}
}

// fill adds those of the previous broker, when there are no others.
func (u *unread) fill(all map[uint64]*lease) {
	pickles := []*lease{}
	for _, l := range all {
		if l.handed != 0 {
			pickles = append(pickles, l)
		}
	}
	slices.SortFunc(pickles, func(a, b *lease) int {
		return cmp.Or(cmp.Compare(a.handed, b.handed), cmp.Compare(a.id, b.id))
	})
	for _, l := range pickles {
		u.add(l)
	}
}

// remove takes a lease out that is over.
func (u *unread) remove(l *lease) {
	if l.unread == nil {
		return
	}
	if l.unread == u.unaged {
		u.unaged = l.unread.Next()
	}
	if l.aged {
		u.aged--
	}
	u.leases.Remove(l.unread)
	l.unread = nil
}

// setLimit sets how old is old.
func (u *unread) setLimit(age time.Duration) {
	u.limit, u.aged, u.unaged = age, 0, u.leases.Front()
	for e := u.unaged; e != nil; e = e.Next() {
		of(e).aged = false
	}
}

func of(e *list.Element) *lease { return e.Value.(*lease) }

// isOld tells whether a lease is of a pickle that is old.
func (u *unread) isOld(l *lease, now uint64) bool {
	return l.handed != 0 && l.age(now) >= u.limit
}

func (u *unread) count() int { return u.leases.Len() }

// age is that of the oldest, 0 if there is none.
func (u *unread) age(now uint64) time.Duration {
	if first := u.leases.Front(); first != nil {
		return of(first).age(now)
	}
	return 0
}

// countOld counts the old ones.
func (u *unread) countOld(now uint64) int {
	for u.unaged != nil && u.isOld(of(u.unaged), now) {
		of(u.unaged).aged = true
		u.unaged, u.aged = u.unaged.Next(), u.aged+1
	}
	return u.aged
}

// old gives the old ones, the oldest first. The caller may end the one that it was given.
func (u *unread) old(now uint64) iter.Seq[*lease] {
	return func(yield func(*lease) bool) {
		for e := u.leases.Front(); e != nil && u.isOld(of(e), now); {
			l := of(e)
			e = e.Next()
			if !yield(l) {
				return
			}
		}
	}
}

// young gives the others, the oldest first.
func (u *unread) young(now uint64) iter.Seq[*lease] {
	return func(yield func(*lease) bool) {
		u.countOld(now)
		for e := u.unaged; e != nil && yield(of(e)); e = e.Next() {
		}
	}
}
