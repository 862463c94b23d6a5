package lanes

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/baton-ipc/baton/client/internal/sessionfiles"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Function is what the broker says of a topic that is a function.
func (t *Topic) Function() sessionfiles.FunctionRecord {
	return t.set.files.FunctionRecord(t.Info.Topic, t.Info.ID)
}

// IsClosed tells whether nothing can be sent any more.
func (t *Topic) IsClosed() bool { return t.isClosed() }

// IsRead tells whether any session reads the topic.
func (t *Topic) IsRead() bool { return !t.isClosed() && t.record.Readers() > 0 }

// Drain has what is taken withdrawn, as in a queue: no reader that comes late wants it.
func (t *Topic) Drain() { t.drains.Store(true) }

// WithdrawDone gives back what was taken.
func (t *Topic) WithdrawDone() { t.withdrawDone() }

// Call is a call that was sent.
type Call struct {
	t      *Topic
	group  *group // it has the file of the claims
	claims shm.GroupLane
	number uint64

	unwanted unwanted // of its lane
}

// SentCall is the call that the message sent last is. The caller has the turn in which it was published.
func (t *Topic) SentCall() (k Call, err error) {
	v := t.groups.Load()
	if len(v.groups) != 1 {
		return k, protocol.Errorf(protocol.CodeProtocol, "stop the broker and start one of this client's version", "%s has %d groups", t.Title(), len(v.groups))
	}
	claims, err := shm.NewGroupLane(v.groups[0].file.Region, t.laneNo, t.Info.Slots)
	return Call{t, v.groups[0], claims, t.head, t.unwanted}, err
}

// Place is where the call stands: the number of its lane, and of the message in it.
func (k *Call) Place() (lane uint32, message uint64) { return k.t.laneNo, k.number }

// State tells how the call stands, and which session has it or had it at the end, by its slot.
func (k *Call) State() (uint16, shm.CallState) { return k.claims.Call(k.number) }

// Withdraw ends the call where no provider has it, and tells whether it did.
func (k *Call) Withdraw() bool {
	s := k.t.set
	s.claiming.RLock()
	defer s.claiming.RUnlock()
	return s.life.Ended() == nil && k.claims.Drop(k.number)
}

// BegunBefore tells how often the call, which waits, was begun by providers that have ended.
func (k *Call) BegunBefore() uint16 {
	defer runtime.KeepAlive(k.group)
	return k.claims.BegunBefore(k.number)
}

// GiveUp notes that nothing waits for the call any more, which a provider has. The provider is done with it in its time;
// but where its slot is needed before, the call is ended for it, so that one that is suspended holds up no other call.
func (k *Call) GiveUp() {
	k.unwanted.add(k.number)
	k.t.set.waits.WakeAll() // others of this session may wait for the slot
}

// unwanted are the calls of a lane that were given up while a provider had them: the number of the last one, by slot. Any
// goroutine.
type unwanted []atomic.Uint64

func (u unwanted) add(i uint64) {
	if len(u) > 0 {
		u[i&uint64(len(u)-1)].Store(i)
	}
}

func (u unwanted) has(i uint64) bool { return len(u) > 0 && u[i&uint64(len(u)-1)].Load() == i }

// forsake ends a call that was given up in the place of the provider that has it, whose own end of it fails then. Its
// storages are counted by the provider, and the caller has cancelled it: of the slot the provider needs nothing more.
// Callers have the turn.
//
// SYNC claim: as Acknowledge and End, by the caller.
func (t *Topic) forsake(v *groupsView, i uint64) bool {
	if !t.unwanted.has(i) || len(v.groups) != 1 {
		return false
	}
	g, err := shm.NewGroupLane(v.groups[0].file.Region, t.laneNo, t.Info.Slots)
	if err != nil {
		return false
	}
	defer runtime.KeepAlive(v)
	switch member, state := g.Call(i); state {
	case shm.CallClaimed:
		g.Acknowledge(i, member)
	case shm.CallBegun:
		g.End(i, member)
	}
	return g.Done(i)
}

// Cancel tells the provider that has the call that it is wanted no more. It does not wait: where another
// goroutine has the turn to send, that happens after it.
func (k *Call) Cancel() {
	if !k.t.mu.Try() {
		go func() {
			k.t.mu.Must()
			k.cancel()
		}()
		return
	}
	k.cancel()
}

// cancel ends the turn.
func (k *Call) cancel() {
	t := k.t
	has := t.writing && t.lane.Cancel(k.number)
	t.mu.End()
	crashpoint.At("call-cancelled")
	if !has {
		return
	}
	// SYNC parked: the word is visible before the provider's parked word is read.
	shm.Fence()
	if member, state := k.State(); member != 0 && state != shm.CallDone {
		t.set.files.Bells.Bell(uint32(member)).Ring()
	}
	runtime.KeepAlive(k.group)
}

// IsHopeless tells whether the process that has the call has ended, or, of a call that waits, those of
// all that read in the function: for where no broker is there to say so.
func (k *Call) IsHopeless() bool {
	slots := k.t.record.ReaderSlots()
	switch member, state := k.State(); state {
	case shm.CallDone:
		return false
	case shm.CallClaimed, shm.CallBegun:
		slots = []uint32{uint32(member)}
	}
	for _, slot := range slots {
		if !k.t.set.files.ProcessEnded(slot) {
			return false
		}
	}
	return true
}

// Claimed is a call that a provider has taken.
type Claimed struct {
	t      *Topic
	group  *group // it has the file of the claims
	claims shm.GroupLane
	lane   *sessionfiles.Lane // of its caller
	number uint64
	member uint16
	begun  bool
	counts *provided // nil: nothing is counted
	// BegunBefore is how often providers that have ended had begun it, at least.
	BegunBefore uint16
}

// Caller is the name of the session that calls.
func (k *Claimed) Caller() string { return k.lane.Peer.Name }

// CallerSlot is that of the session that calls.
func (k *Claimed) CallerSlot() uint32 { return k.lane.Slot }

// IsCancelled tells whether its caller wants it no more, or has gone.
func (k *Claimed) IsCancelled() bool {
	return k.lane.Ring.Cancelled(k.number) || k.IsDeserted()
}

// IsDeserted tells whether its caller has gone.
func (k *Claimed) IsDeserted() bool {
	return k.t.set.files.IsTakenOver(k.t.Info.Topic, k.lane.Number, k.lane.Incarnation)
}

// Begin notes that the function runs. False: the call is over, or another's.
func (k *Claimed) Begin() bool {
	s := k.t.set
	s.claiming.RLock()
	defer s.claiming.RUnlock()
	k.begun = s.life.Ended() == nil && k.claims.Begin(k.number, k.member)
	if k.begun {
		k.counts.begins(k.lane.Number, k.number)
	}
	crashpoint.At("call-begun")
	return k.begun
}

// Ran counts the call, whose function ran for ns.
func (k *Claimed) Ran(ns uint64) { k.count(func() { k.counts.ran(ns) }) }

// Failed counts that its caller gets an error.
func (k *Claimed) Failed() { k.count(k.counts.failed) }

// NoReply notes that it ends without a reply, for which there is no memory.
func (k *Claimed) NoReply() { k.count(func() { k.counts.noReply(k.lane.Number, k.number) }) }

// count notes something of the call while the session file is its session's.
func (k *Claimed) count(note func()) {
	if k.counts == nil {
		return
	}
	s := k.t.set
	s.claiming.RLock()
	defer s.claiming.RUnlock()
	if s.life.Ended() == nil {
		note()
	}
}

// End ends it, after its reply where there is one: then its caller was rung, unless it waits for the
// slot of this call.
func (k *Claimed) End(replied bool) {
	s := k.t.set
	s.claiming.RLock()
	if s.life.Ended() == nil { // else it was freed, and may be another's
		if k.begun {
			k.claims.End(k.number, k.member)
		} else {
			k.claims.Acknowledge(k.number, k.member)
		}
	}
	s.claiming.RUnlock()
	crashpoint.At("call-done")
	if !replied || k.lane.Ring.Head()+1 >= k.number+uint64(k.t.Info.Depth) {
		k.t.ringWriter(k.lane)
	}
	runtime.KeepAlive(k.group)
}

// provides is the registration by which a reader takes calls.
type provides struct {
	record       sessionfiles.FunctionRecord
	registration uint32
	counts       *provided
	canBegin     func(body []byte) bool
}

// Provide has the reader take calls as long as a registration holds. counted: the broker has made sure of
// the memory of its record. canBegin says by the body of a call whether it can begin without a broker: while there is none
// the others are left where they are.
func (r *Reader) Provide(registration uint32, counted bool, canBegin func(body []byte) bool) {
	r.provides = &provides{r.t.Function(), registration, r.t.set.providedBy(r.number, counted), canBegin}
}

// counts is where the reader counts its calls.
func (r *Reader) counts() *provided {
	if r.provides == nil {
		return nil
	}
	return r.provides.counts
}

// Provides tells whether it takes calls still.
func (r *Reader) Provides() bool {
	return r.provides != nil && r.provides.record.Registration() == r.provides.registration
}

// Quiet has the reader ring no writer that it has taken a message of: none waits for room.
func (r *Reader) Quiet() { r.quiet = true }

// Number is that by which the broker knows the reader.
func (r *Reader) Number() uint64 { return r.number }

// Claimed is the call that the last Poll has taken.
func (r *Reader) Claimed() Claimed { return r.claimed }

// AwaitBeside is Await with less to look at while it spins: whether there may be a message.
func (r *Reader) AwaitBeside(ctx context.Context, until func() bool) error {
	if r.soon == nil {
		r.soon = func() bool { return r.scan.Ready(r.pending) || uint32(r.t.version()) != r.view.at }
	}
	err := r.t.set.waits.WaitBeside(ctx, r.spin.Budget(), r.soon, until, r.waits)
	if err != nil {
		r.spin.GaveUp()
	}
	return err
}

// AwaitAny waits until look says so, beside no reader.
func (s *Topics) AwaitAny(ctx context.Context, look func() bool) error {
	return s.waits.Wait(ctx, 0, look)
}

// NoBrokerFor tells for how long no broker has been there.
func (s *Topics) NoBrokerFor() time.Duration { return s.broker.AwayFor() }

// NameOf finds the name of a topic by its number, "" of a private one; false where it is gone.
func (s *Topics) NameOf(id uint64) (string, bool) { return s.files.TopicNameOf(id) }
