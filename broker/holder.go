package broker

import (
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/internal/sys"
)

// holderOf gives the holder that a session counts with: the sessions of its process
// and of its parent, of which it may be a fork. A parent that has no session any more
// is not known, and no process of another namespace is (pid 0).
func (b *Broker) holderOf(serial uint64, pid int, uid uint32) record.Holder {
	h := record.Holder{Family: serial, User: b.userOf(uid)}
	if pid == 0 {
		return h
	}
	if s := b.sessionOf(pid); s != nil {
		h.Family = s.Holder.Family
	} else if parent, err := sys.ParentPID(pid); err == nil {
		if s := b.sessionOf(parent); s != nil {
			h.Family = s.Holder.Family
		}
	}
	return h
}

// userOf names a user in a holder; 0 when only one user may connect.
func (b *Broker) userOf(uid uint32) uint64 {
	if !b.access.Load().several() {
		return 0
	}
	return uint64(uid) + 1
}

// sessionOf finds a session of a process.
func (b *Broker) sessionOf(pid int) *session {
	for _, s := range b.used() {
		if s != nil && s.PID == pid {
			return s
		}
	}
	return nil
}
