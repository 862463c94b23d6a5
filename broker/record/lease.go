package record

import (
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// What only brokers read of a LeaseRecord: flags, and when the handle of a pickle was handed over.
const (
	leaseOnce   = 1
	leasePickle = 2  // the next word is set; it is not where the record was of another use
	leaseHanded = 56 // u64, ns, CLOCK_MONOTONIC
)

// Lease is a copy of a LeaseRecord: one storage of a lease. Those of one lease
// share the id.
type Lease struct {
	ID      uint64
	Expires uint64 // ns, CLOCK_MONOTONIC; 0: with its session
	Session uint64 // serial of the session that made it
	Ref     protocol.Ref
	Once    bool
	Handed  uint64 // ns, CLOCK_MONOTONIC: when the handle of a pickle was handed over; 0: it is no pickle's
}

// LeaseView stands for one LeaseRecord.
type LeaseView struct {
	f File
	i uint32
	r shm.Region
}

// Lease views a record of the table of leases.
func (f File) Lease(i uint32) LeaseView {
	p := LeasePlace(i)
	return LeaseView{f, i, f.r.Sub(p.At, p.Bytes)}
}

// Load copies the record.
func (v LeaseView) Load() Lease {
	l := Lease{
		ID: v.r.Load64(protocol.LeaseID), Expires: v.r.Load64(protocol.LeaseExpires), Session: v.r.Load64(protocol.LeaseSession),
		Ref: protocol.Ref{Serial: v.r.Load64(protocol.LeaseSerial), Generation: v.r.Load64(protocol.LeaseGeneration),
			Index: v.r.Load32(protocol.LeaseIndex)},
		Once: v.r.Load32(protocol.LeaseFlags)&leaseOnce != 0,
	}
	if v.r.Load32(protocol.LeaseFlags)&leasePickle != 0 {
		l.Handed = v.r.Load64(leaseHanded)
	}
	return l
}

// Store writes the record, the id last. A used record may be stored again with
// another time.
func (v LeaseView) Store(l Lease) {
	v.f.markUsed(headLeases, v.i)
	v.r.Store64(protocol.LeaseExpires, l.Expires)
	v.r.Store64(protocol.LeaseSession, l.Session)
	v.r.Store64(protocol.LeaseSerial, l.Ref.Serial)
	v.r.Store64(protocol.LeaseGeneration, l.Ref.Generation)
	v.r.Store32(protocol.LeaseIndex, l.Ref.Index)
	flags := uint32(0)
	if l.Once {
		flags = leaseOnce
	}
	if l.Handed != 0 {
		v.r.Store64(leaseHanded, l.Handed)
		flags |= leasePickle
	}
	v.r.Store32(protocol.LeaseFlags, flags)
	v.r.Store64(protocol.LeaseBundle, l.ID)
	v.r.Store64(protocol.LeaseID, l.ID)
}

// SetExpires changes the lease's end alone.
func (v LeaseView) SetExpires(ns uint64) { v.r.Store64(protocol.LeaseExpires, ns) }

// Free makes the record free.
func (v LeaseView) Free() { v.r.Store64(protocol.LeaseID, 0) }
