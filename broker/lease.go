package broker

import (
	"crypto/rand"
	"encoding/binary"
	"time"

	"github.com/baton-ipc/baton/broker/alarm"
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// lease keeps storages for a handle on its way. The broker's row counts them.
type lease struct {
	id      uint64 // random, so that nobody claims what was not handed to him
	session *session
	maker   string
	once    bool
	expires uint64 // ns, CLOCK_MONOTONIC; 0: with its session
	refs    []protocol.Ref
	records []uint32
	alarm   *alarm.Alarm
}

const (
	// afterSession is how long a pickled handle outlives its session.
	afterSession = 30 * time.Second
	maxLease     = 10 * 365 * 24 * time.Hour
)

// opLease holds storages for a time.
func (b *Broker) opLease(s *session, r *protocol.LeaseRequest) (any, []*sys.FD, error) {
	if len(r.Refs) == 0 {
		return nil, nil, protocol.Errorf(protocol.CodeInvalid, "name at least one storage", "a lease of nothing")
	}
	var d time.Duration
	if r.Seconds != nil {
		if !(*r.Seconds > 0) {
			return nil, nil, protocol.Errorf(protocol.CodeInvalid, "give seconds above 0, or none for the session's life", "lease of %v seconds", *r.Seconds)
		}
		d = time.Duration(min(*r.Seconds, maxLease.Seconds()) * float64(time.Second))
	}
	if !b.leaseTable.Room(len(r.Refs)) {
		return nil, nil, protocol.Errorf(protocol.CodeTooMany, "release leases, or give them less time", "all %d leases are taken", protocol.MaxLeases)
	}
	l := &lease{id: b.leaseID(), session: s, maker: s.Name, once: r.Once}
	for _, sr := range r.Refs {
		ref := protocol.Ref{Serial: sr.Serial, Generation: sr.Generation, Index: sr.Index}
		if err := b.memory.Hold(ref); err != nil {
			b.dropRefs(l.refs)
			return nil, nil, err
		}
		l.refs = append(l.refs, ref)
	}
	crashpoint.At("broker-lease-held")
	if err := b.takeLeaseRecords(l); err != nil {
		b.dropRefs(l.refs)
		return nil, nil, err
	}
	b.leases[l.id] = l
	s.leases[l] = struct{}{}
	reply := protocol.LeaseReply{Lease: l.id}
	if d > 0 {
		b.setExpiry(l, d)
		reply.ExpiresIn = d.Seconds()
	} else {
		b.putLease(l)
	}
	b.checkIdle()
	return reply, nil, nil
}

// takeLeaseRecords gives a lease a record for each storage, or none. There is
// room for them.
func (b *Broker) takeLeaseRecords(l *lease) error {
	for range l.refs {
		n, _ := b.leaseTable.Take()
		l.records = append(l.records, n)
		if err := b.store.Reserve(record.LeasePlace(n)); err != nil {
			for _, n := range l.records {
				b.leaseTable.Give(n)
			}
			return err
		}
	}
	return nil
}

// leaseID returns a number below 2^53 that cannot be guessed.
func (b *Broker) leaseID() uint64 {
	for {
		var random [8]byte
		rand.Read(random[:])
		id := binary.LittleEndian.Uint64(random[:]) >> 11
		if id != 0 && b.leases[id] == nil {
			return id
		}
	}
}

func (b *Broker) setExpiry(l *lease, d time.Duration) {
	l.expires = sys.Monotonic() + uint64(d)
	b.putLease(l)
	l.alarm.Cancel()
	l.alarm = b.clock.After(d, func() { b.endLease(l) })
}

// putLease writes a record for each storage, its id last.
func (b *Broker) putLease(l *lease) {
	for i, n := range l.records {
		b.store.Record.Lease(n).Store(record.Lease{ID: l.id, Expires: l.expires, Session: l.session.Serial, Ref: l.refs[i], Once: l.once})
	}
}

// endLease un-names what a lease names, then counts it down.
func (b *Broker) endLease(l *lease) {
	l.alarm.Cancel()
	for _, n := range l.records {
		b.store.Record.Lease(n).Free()
		b.leaseTable.Give(n)
	}
	crashpoint.At("broker-lease-ended")
	b.dropRefs(l.refs)
	delete(b.leases, l.id)
	delete(l.session.leases, l)
	b.checkIdle()
}

func (b *Broker) dropRefs(refs []protocol.Ref) {
	for _, r := range refs {
		b.memory.Drop(r.Index)
	}
}

func (b *Broker) findLease(id uint64) (*lease, error) {
	if l := b.leases[id]; l != nil {
		return l, nil
	}
	return nil, protocol.Errorf(protocol.CodeExpired, "ask for the handle anew, with a longer lease",
		"lease %d has expired, or was claimed or released before", id)
}

// opLeaseClaim tells that whoever got the handle holds it now: a lease that is
// claimed once has done its work.
func (b *Broker) opLeaseClaim(s *session, r *protocol.LeaseRef) (any, []*sys.FD, error) {
	l, err := b.findLease(r.Lease)
	if err != nil {
		return nil, nil, err
	}
	if l.once {
		b.endLease(l)
	}
	return done{}, nil, nil
}

// opLeaseRelease ends a lease early; its maker may.
func (b *Broker) opLeaseRelease(s *session, r *protocol.LeaseRef) (any, []*sys.FD, error) {
	l, err := b.findLease(r.Lease)
	if err != nil {
		return nil, nil, err
	}
	if l.session != s {
		return nil, nil, protocol.Errorf(protocol.CodePermission, "claim it, or wait until it expires", "lease %d was made by %s", r.Lease, l.maker)
	}
	b.endLease(l)
	return done{}, nil, nil
}

// endLeasesOf ends what was to end with a session; pickled handles get a while
// to arrive.
func (b *Broker) endLeasesOf(s *session) {
	for l := range s.leases {
		switch {
		case l.expires != 0: // for its time, whoever is there
		case l.once:
			b.setExpiry(l, afterSession)
		default:
			b.endLease(l)
		}
	}
}
