package leases

import (
	"cmp"
	"slices"

	"github.com/baton-ipc/baton/internal/sys"
)

// Row is a row of the listing `leases`.
type Row struct {
	Lease     uint64   `json:"lease"`
	Maker     string   `json:"maker"`
	Session   uint64   `json:"session"`       // serial of the session that made it
	PID       int      `json:"pid,omitempty"` // of its process; 0: its session was over before this broker began
	Storages  []uint32 `json:"storages"`
	Once      bool     `json:"once"`
	ExpiresIn *float64 `json:"expires_in"` // null: with its session
	// Unread is, of a handle in a pickle that was not read, how many seconds ago it was handed over.
	Unread *float64 `json:"unread_seconds,omitempty"`
	// MayGo: it is old enough to be given up where memory is refused.
	MayGo bool `json:"may_go,omitempty"`
}

func (ls *Leases) row(l *lease) Row {
	r := Row{Lease: l.id, Maker: l.name, Session: l.maker.Serial, PID: l.maker.PID, Once: l.once, Storages: []uint32{}}
	for _, ref := range l.refs {
		r.Storages = append(r.Storages, ref.Index)
	}
	now := sys.Monotonic()
	if l.handed != 0 {
		age := l.age(now).Seconds()
		r.Unread, r.MayGo = &age, ls.unread.isOld(l, now)
	}
	if l.expires != 0 {
		left := float64(l.expires-min(l.expires, now)) / 1e9
		r.ExpiresIn = &left
	}
	return r
}

// Rows lists at most limit leases above a number that match, by number, which is
// random: next is where to go on, 0 at the end.
func (ls *Leases) Rows(after uint64, limit int, match func(maker string) bool) (rows []any, next uint64) {
	ids := make([]uint64, 0, len(ls.byID))
	for id := range ls.byID {
		if id > after {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, cmp.Compare[uint64])
	rows = []any{}
	for _, id := range ids {
		if len(rows) == limit {
			return rows, after
		}
		after = id
		if l := ls.byID[id]; match(l.name) {
			rows = append(rows, ls.row(l))
		}
	}
	return rows, 0
}
