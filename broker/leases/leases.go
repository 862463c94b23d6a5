package leases

import (
	"container/list"
	"log/slog"
	"time"

	"github.com/baton-ipc/baton/broker/alarm"
	"github.com/baton-ipc/baton/broker/memory"
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// lease keeps storages for a handle on its way. The broker's refcounts count them.
type lease struct {
	id      uint64                    // random, so that only a receiver of the handle can redeem it; mostly its maker's choice
	maker   *sessionfiles.SessionFile // the session
	name    string                    // of it, for listings
	once    bool
	expires uint64 // ns, CLOCK_MONOTONIC; 0: with its session
	handed  uint64 // the same, when the handle of a pickle was handed over; 0: it is no pickle's
	refs    []protocol.Ref
	records []uint32
	alarm   *alarm.Alarm
	unread  *list.Element // of a pickle's; nil: it is none
	aged    bool          // it was found to be old
}

const (
	// afterSession is how long a pickled handle outlives its session.
	afterSession = 30 * time.Second
	maxLease     = 10 * 365 * 24 * time.Hour
)

// Leases are the leases of a broker.
type Leases struct {
	log     *slog.Logger
	clock   *alarm.Clock
	store   *sessionfiles.Store
	memory  *memory.Memory
	changed func()

	byID    map[uint64]*lease
	claimed claimed
	of      map[*sessionfiles.SessionFile]map[*lease]struct{}
	table   record.Table

	unread    unread
	givenUp   uint64 // pickles
	fruitless uint64 // when a look for pickles to give up last found none among many; 0: not now
}

// New makes leases, none yet. changed is called when there is one more or less.
func New(store *sessionfiles.Store, m *memory.Memory, clock *alarm.Clock, log *slog.Logger, changed func()) *Leases {
	return &Leases{log: log, unread: unread{limit: DefaultUnreadLimit}, clock: clock, store: store, memory: m, changed: changed, byID: map[uint64]*lease{}, claimed: newClaimed(store),
		of: map[*sessionfiles.SessionFile]map[*lease]struct{}{}, table: record.NewTable(record.NewShares("leases", "release leases, or give them less time", protocol.MaxLeases), 16)}
}

// Count tells how many there are.
func (ls *Leases) Count() int { return len(ls.byID) }

// Make holds storages for a time.
func (ls *Leases) Make(s *sessionfiles.SessionFile, r *protocol.LeaseRequest) (reply protocol.LeaseReply, err error) {
	if len(r.Refs) == 0 {
		return reply, protocol.Errorf(protocol.CodeInvalid, "name at least one storage", "a lease of nothing")
	}
	if r.Lease > protocol.MaxSafeInt {
		return reply, protocol.Errorf(protocol.CodeInvalid, "number leases below 2^53", "a lease has the number %d", r.Lease)
	}
	if l := ls.byID[r.Lease]; l != nil {
		return ls.again(l, s)
	}
	var d time.Duration
	if r.Seconds != nil {
		if !(*r.Seconds > 0) {
			return reply, protocol.Errorf(protocol.CodeInvalid, "give seconds above 0, or none for the session's life", "lease of %v seconds", *r.Seconds)
		}
		d = time.Duration(min(*r.Seconds, maxLease.Seconds()) * float64(time.Second))
	}
	if err := ls.checkTable(s, len(r.Refs)); err != nil {
		return reply, err
	}
	if r.Once && ls.claimed.has(r.Lease) {
		return protocol.LeaseReply{Lease: r.Lease}, nil // the session that claimed it holds the storages
	}
	id := r.Lease
	if id == 0 {
		id = ls.newID()
	}
	l := &lease{id: id, maker: s, name: s.Name, once: r.Once}
	if r.Once && r.Seconds == nil {
		l.handed = sys.Monotonic()
	}
	for _, sr := range r.Refs {
		ref := protocol.Ref{Serial: sr.Serial, Generation: sr.Generation, Index: sr.Index}
		if err := ls.memory.Hold(ref); err != nil {
			ls.dropRefs(l.refs)
			return reply, err
		}
		l.refs = append(l.refs, ref)
	}
	crashpoint.At("broker-lease-held")
	if err := ls.takeRecords(l); err != nil {
		ls.dropRefs(l.refs)
		return reply, err
	}
	ls.byID[l.id] = l
	ls.unread.add(l)
	ls.list(l)
	reply.Lease = l.id
	if d > 0 {
		ls.setExpiry(l, d)
		reply.ExpiresIn = d.Seconds()
	} else {
		ls.put(l)
	}
	ls.changed()
	return reply, nil
}

// checkTable refuses what the table of leases has no room for. Old pickles of the same process, which
// were not read, make room.
func (ls *Leases) checkTable(s *sessionfiles.SessionFile, n int) error {
	err := ls.table.Check(s.Holder, n)
	if err == nil {
		return nil
	}
	gone := 0
	for l := range ls.unread.old(sys.Monotonic()) {
		if l.maker.Holder != s.Holder {
			continue
		}
		ls.end(l)
		gone++
		if err = ls.table.Check(s.Holder, n); err == nil {
			break
		}
	}
	ls.gaveUp(gone, "its process has as many leases as it may")
	return err
}

// again answers a request whose answer was lost.
func (ls *Leases) again(l *lease, s *sessionfiles.SessionFile) (reply protocol.LeaseReply, err error) {
	if l.maker != s {
		return reply, protocol.Errorf(protocol.CodeConflict, "choose another number", "lease %d is another session's", l.id)
	}
	reply.Lease = l.id
	if l.expires > 0 {
		reply.ExpiresIn = float64(l.expires-min(sys.Monotonic(), l.expires)) / 1e9
	}
	return reply, nil
}

// takeRecords gives a lease a record for each storage, or none. There is
// room for them.
func (ls *Leases) takeRecords(l *lease) error {
	for range l.refs {
		n, err := ls.table.Take(l.maker.Holder)
		if err != nil {
			ls.giveRecords(l)
			return err
		}
		l.records = append(l.records, n)
		if err := ls.store.Reserve(record.LeasePlace(n)); err != nil {
			ls.giveRecords(l)
			return err
		}
	}
	return nil
}

func (ls *Leases) giveRecords(l *lease) {
	for _, n := range l.records {
		ls.table.Give(n, l.maker.Holder)
	}
}

// newID returns a number below 2^53 that cannot be guessed.
func (ls *Leases) newID() uint64 {
	for {
		if id := protocol.RandomNumber(); ls.byID[id] == nil {
			return id
		}
	}
}

func (ls *Leases) setExpiry(l *lease, d time.Duration) {
	l.expires = sys.Monotonic() + uint64(d)
	ls.put(l)
	l.alarm.Cancel()
	l.alarm = ls.clock.After(d, func() { ls.end(l) })
}

// put writes a record for each storage, its id last.
func (ls *Leases) put(l *lease) {
	for i, n := range l.records {
		ls.store.Record.Lease(n).Store(record.Lease{ID: l.id, Expires: l.expires, Session: l.maker.Serial, Ref: l.refs[i], Once: l.once, Handed: l.handed})
	}
}

// list notes a lease with the session that made it.
func (ls *Leases) list(l *lease) {
	if ls.of[l.maker] == nil {
		ls.of[l.maker] = map[*lease]struct{}{}
	}
	ls.of[l.maker][l] = struct{}{}
}

// end un-names what a lease names, then counts it down.
func (ls *Leases) end(l *lease) {
	l.alarm.Cancel()
	for _, n := range l.records {
		ls.store.Record.Lease(n).Free()
		ls.table.Give(n, l.maker.Holder)
	}
	crashpoint.At("broker-lease-ended")
	ls.dropRefs(l.refs)
	delete(ls.byID, l.id)
	ls.unread.remove(l)
	delete(ls.of[l.maker], l)
	if len(ls.of[l.maker]) == 0 {
		delete(ls.of, l.maker)
	}
	ls.changed()
}

func (ls *Leases) dropRefs(refs []protocol.Ref) {
	for _, r := range refs {
		ls.memory.Drop(r.Index)
	}
}

func (ls *Leases) find(id uint64) (*lease, error) {
	if l := ls.byID[id]; l != nil {
		return l, nil
	}
	return nil, protocol.Errorf(protocol.CodeExpired, "ask for the handle anew, with a longer lease",
		"lease %d has expired, or was claimed or released before", id)
}

// Claim notes that the receiver of the handle holds its storages now: a lease that is
// claimed once ends.
func (ls *Leases) Claim(r *protocol.LeaseRef) error {
	l, err := ls.find(r.Lease)
	if err != nil {
		ls.claimed.add(r.Lease)
		return err
	}
	if l.once {
		ls.end(l)
		crashpoint.At("broker-lease-claimed")
		// Its maker may not know that it was made, as where a broker died, and ask for it again.
		ls.claimed.add(r.Lease)
	}
	return nil
}

// Release ends a lease early, for its maker.
func (ls *Leases) Release(s *sessionfiles.SessionFile, r *protocol.LeaseRef) error {
	l, err := ls.find(r.Lease)
	if err != nil {
		return err
	}
	if l.maker != s {
		return protocol.Errorf(protocol.CodePermission, "open its handle, or wait until it expires", "lease %d was made by %s", r.Lease, l.name)
	}
	ls.end(l)
	return nil
}

// EndOf ends the leases that were to end with a session. Those of pickled handles go on for
// afterSession.
func (ls *Leases) EndOf(s *sessionfiles.SessionFile) {
	for l := range ls.of[s] {
		switch {
		case l.expires != 0: // for its time, whether its maker lives or not
		case l.once:
			ls.setExpiry(l, afterSession)
		default:
			ls.end(l)
		}
	}
}

// EndAll ends every lease that a session made, also those for a time and those of pickled handles: an operator has
// ended it with all that it gave out.
func (ls *Leases) EndAll(s *sessionfiles.SessionFile) {
	for l := range ls.of[s] {
		ls.end(l)
	}
}

// Revoke ends a lease early, whichever session made it.
func (ls *Leases) Revoke(r *protocol.LeaseRef) (reply protocol.RevokeReply, err error) {
	l := ls.byID[r.Lease]
	if l == nil {
		return reply, protocol.Errorf(protocol.CodeNotFound, "baton ls leases lists them", "there is no lease %d", r.Lease)
	}
	reply = protocol.RevokeReply{Maker: l.name, Storages: len(l.refs)}
	ls.end(l)
	return reply, nil
}
