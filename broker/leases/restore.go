package leases

import (
	"slices"
	"time"

	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// Restore finds out from the record what leases a previous broker had given, and which were claimed.
// The files of its sessions are known, and its memory is. After a restart of the machine none is
// left.
func (ls *Leases) Restore(sameBoot bool) {
	ls.claimed.restore(sameBoot)
	for i := range ls.store.Record.UsedLeases() {
		r := ls.store.Record.Lease(i).Load()
		if r.ID == 0 {
			continue
		}
		if !sameBoot || !ls.memory.Known(r.Ref) {
			ls.store.Record.Lease(i).Free()
			continue
		}
		l := ls.byID[r.ID]
		if l == nil {
			l = ls.read(i, r)
			ls.byID[r.ID] = l
		}
		ls.table.Claim(i, l.maker.Holder)
		l.refs = append(l.refs, r.Ref)
		l.records = append(l.records, i)
	}
	ls.unread.fill(ls.byID)
	for _, l := range ls.byID {
		if l.expires != 0 {
			left := time.Duration(l.expires - min(l.expires, sys.Monotonic()))
			l.alarm = ls.clock.After(left, func() { ls.end(l) })
		}
	}
}

func (ls *Leases) read(i uint32, r record.Lease) *lease {
	l := &lease{id: r.ID, expires: r.Expires, name: "an ended session", once: r.Once, handed: r.Handed}
	if s := ls.store.BySerial(r.Session); s != nil && !s.Dead {
		l.maker, l.name = s, s.Name
		ls.list(l)
		return l
	}
	// Of a session that is over only what has a time is left.
	l.maker = &sessionfiles.SessionFile{Serial: r.Session}
	if l.expires == 0 {
		l.expires = sys.Monotonic() + uint64(afterSession)
		ls.store.Record.Lease(i).SetExpires(l.expires)
	}
	return l
}

// Recount adds to target what leases make the broker's refcounts count.
func (ls *Leases) Recount(target map[uint32]uint64) {
	for _, l := range ls.byID {
		for _, r := range l.refs {
			target[r.Index]++
		}
	}
}

// LetGo ends the leases of storages that are lost.
func (ls *Leases) LetGo(lost func(index uint32) bool) {
	for _, l := range ls.byID {
		if slices.ContainsFunc(l.refs, func(r protocol.Ref) bool { return lost(r.Index) }) {
			ls.end(l)
		}
	}
}
