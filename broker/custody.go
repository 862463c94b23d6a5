package broker

import (
	"time"

	"github.com/baton-ipc/baton/broker/custody"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// Package custody decides which sessions keep the descriptors of other sessions' files. Here
// the broker notifies it of what happens, and the sessions of what it decides.

// assignPause is how long files may lack custodians before others are asked, so that those
// of many sessions are given with one answer.
const assignPause = 100 * time.Millisecond

// lend tells whether a session that is given the descriptor of a file has custody of it. The
// owner is the session that made it. The mutex is held.
func (b *Broker) lend(s *session, k sessionfiles.Key, owner *sessionfiles.SessionFile) bool {
	return owner == b.store.Own || owner == s.SessionFile || b.custody.Lend(s.custody, k, owner.PID)
}

// lendSegment is lend for memory of the machine.
func (b *Broker) lendSegment(s *session, serial uint64) bool {
	return b.lend(s, sessionfiles.Key{Role: protocol.RestoreSegment, Serial: serial}, b.memory.OwnerOf(serial))
}

// assignSoon asks other sessions to keep files that lack custodians. The mutex is held.
func (b *Broker) assignSoon() {
	if b.assigning == nil && b.custody.Lacking() && !b.closing {
		b.assignAgain.Cancel()
		b.assigning = b.clock.After(assignPause, b.assign)
	}
}

func (b *Broker) assign() {
	b.assigning = nil
	again, more := b.custody.Assign(time.Now(), reapTime)
	if more {
		b.assigning = b.clock.After(assignPause/10, b.assign)
	} else if again {
		b.assignAgain.Cancel()
		b.assignAgain = b.clock.After(custody.AnswerTime, b.assign)
	}
}

// opCustody gives a session the descriptors that it is to keep, and lists those to close.
func (b *Broker) opCustody(s *session, r *protocol.Custody) (any, []*sys.FD, error) {
	b.custody.Done(s.custody, keysOf(r.Kept), keysOf(r.Closed))
	given, ended := s.custody.Take()
	reply := protocol.CustodyReply{Given: []protocol.RestoreItem{}, Ended: []protocol.RestoreItem{}}
	var makers []func() (*sys.FD, error)
	for _, k := range given {
		if fd := b.fileOf(k); fd != nil {
			reply.Given = append(reply.Given, itemOf(k))
			makers = append(makers, func() (*sys.FD, error) { return b.store.LendForReading(k, fd) })
		}
	}
	for _, k := range ended {
		reply.Ended = append(reply.Ended, itemOf(k))
	}
	fds, err := sessionfiles.Descriptors(makers...)
	return reply, fds, err
}

func itemOf(k sessionfiles.Key) protocol.RestoreItem {
	return protocol.RestoreItem{Role: k.Role, Serial: k.Serial}
}

func keysOf(items []protocol.RestoreItem) (keys []sessionfiles.Key) {
	for _, f := range items {
		keys = append(keys, sessionfiles.Key{Role: f.Role, Serial: f.Serial})
	}
	return keys
}

// fileOf finds the file of a session or of a segment; nil where it is not here.
func (b *Broker) fileOf(k sessionfiles.Key) *sys.FD {
	if k.Role == protocol.RestoreSegment {
		return b.memory.FileOf(k.Serial)
	}
	if p := b.store.BySerial(k.Serial); p != nil {
		return p.File.FD
	}
	return nil
}

// ownerOf finds the session that made a file; nil where it is the broker's, of a device, or
// not of this instance.
func (b *Broker) ownerOf(k sessionfiles.Key) (owner *sessionfiles.SessionFile) {
	switch k.Role {
	case protocol.RestoreSession:
		owner = b.store.BySerial(k.Serial)
	case protocol.RestoreSegment:
		owner = b.memory.OwnerOf(k.Serial)
	}
	if owner == b.store.Own {
		return nil
	}
	return owner
}

// handed notes that a session has handed a file over; known says whether it is one of this
// instance.
func (b *Broker) handed(s *session, k sessionfiles.Key, known bool) {
	switch owner := b.ownerOf(k); {
	case owner != nil && owner != s.SessionFile:
		b.custody.Handed(s.custody, k, owner.PID)
	case !known && (k.Role == protocol.RestoreSession || k.Role == protocol.RestoreSegment):
		b.custody.Unknown(s.custody, k)
	}
}

// takeCustody notes what a session that is back handed over, and what else it has mapped.
func (b *Broker) takeCustody(s *session, r *returning) {
	for k, known := range r.handed {
		b.handed(s, k, known)
	}
	mapped := func(role string, serials []uint64) {
		for _, serial := range serials {
			k := sessionfiles.Key{Role: role, Serial: serial}
			if owner := b.ownerOf(k); owner != nil && owner != s.SessionFile {
				b.custody.Mapped(s.custody, k, owner.PID)
			}
		}
	}
	mapped(protocol.RestoreSession, r.sessions)
	mapped(protocol.RestoreSegment, r.segments)
	b.assignSoon()
}
