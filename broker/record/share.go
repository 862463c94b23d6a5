package record

import (
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Holder is the unit to which shares of a table apply: the sessions of a process and of its
// forks, and the user whose processes they are. The broker itself is the zero Holder, to which
// no share applies.
type Holder struct {
	Family uint64
	User   uint64 // 0: only one user may connect
}

func loadHolder(r shm.Region, at uint64) Holder {
	return Holder{Family: r.Load64(at), User: r.Load64(at + 8)}
}

func (h Holder) store(r shm.Region, at uint64) {
	r.Store64(at, h.Family)
	r.Store64(at+8, h.User)
}

// Shares count how much of a table each holder has. A holder may take all of it except
// a reserve of an eighth, which is kept for holders with less than a sixteenth. If several users
// may connect, half of the reserve is kept for users with less than that. If a holder needs more
// than these parts to be of use, both are what it needs at least.
type Shares struct {
	what, remedy string
	size, taken  int
	least        int
	families     map[uint64]int
	users        map[uint64]int
}

// NewShares makes the shares of a table of a size. what names its things in errors, and remedy
// says what a refused caller can do.
func NewShares(what, remedy string, size int) Shares {
	return Shares{what: what, remedy: remedy, size: size, families: map[uint64]int{}, users: map[uint64]int{}}
}

// ForUse makes shares of a table of which a holder needs some at least.
func (s Shares) ForUse(least int) Shares {
	s.least = least
	return s
}

// Reserve is how many of a table of a size are kept for holders that have few, if a holder needs
// some at least.
func Reserve(size, least int) int { return max(size/8, least) }

// Check tells whether a holder may take n more: ErrTooMany if not.
func (s *Shares) Check(h Holder, n int) error {
	if n > s.size-s.taken {
		return protocol.Errorf(protocol.CodeTooMany, s.remedy, "all %d %s of this broker are taken", s.size, s.what)
	}
	left := s.size - s.taken - n
	reserve := Reserve(s.size, s.least)
	if few := max(s.size/16, s.least); h.Family != 0 && left < reserve && s.families[h.Family]+n > few {
		return protocol.Errorf(protocol.CodeTooMany, s.remedy,
			"this process and its forks have %d of the broker's %d %s, and the %d that are left are kept for others",
			s.families[h.Family], s.size, s.what, s.size-s.taken)
	} else if h.User != 0 && left < reserve/2 && s.users[h.User]+n > few {
		return protocol.Errorf(protocol.CodeTooMany, s.remedy,
			"this user has %d of the broker's %d %s, and the %d that are left are kept for other users",
			s.users[h.User], s.size, s.what, s.size-s.taken)
	}
	return nil
}

// Add counts n more, or with a negative n less.
func (s *Shares) Add(h Holder, n int) {
	s.taken += n
	add(s.families, h.Family, n)
	add(s.users, h.User, n)
}

// Taken tells how many are taken.
func (s *Shares) Taken() int { return s.taken }

func add(to map[uint64]int, key uint64, n int) {
	if key == 0 {
		return
	}
	if to[key] += n; to[key] == 0 {
		delete(to, key)
	}
}
