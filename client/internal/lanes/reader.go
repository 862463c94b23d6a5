package lanes

import (
	"context"
	"runtime"
	"slices"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/client/internal/memory"
	"github.com/baton-ipc/baton/client/internal/sessionfiles"
	"github.com/baton-ipc/baton/client/internal/waits"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Start says which of the messages kept a new reader begins with.
type Start int

const (
	StartNew  Start = iota // what is sent from now on
	StartLast              // the newest message kept, then what follows
	StartAll               // everything that is kept
)

// Reader takes a topic's messages, alone or with its group. One goroutine at a time.
type Reader struct {
	t       *Topic
	number  uint64
	tried   uint64 // version that was last asked for
	epoch   uint64 // of the connection that was asked
	group   *group // nil: none
	member  uint16 // of it
	waits   shm.WaitSet
	cursors []*cursor
	scan    shm.Scan // of cursors
	gone    gone
	view    *lanesView
	hidden  []uint64 // lanes that were there when it began, and could not be looked at
	spin    waits.Spinner
	passed  int   // messages that the last poll passed over
	aside   error // why a poll has put lanes aside
	start   Start
	counted counted
	closed  bool
	quiet   bool        // no writer waits for room
	soon    func() bool // a look at what a message changes, and no more

	provides *provides // nil: it takes no calls
	claimed  Claimed   // by the last poll
}

// Received is where a message came from.
type Received struct {
	Sender string // name of its session
	Number uint64 // in the lane of that
	Lost   uint64 // messages that went by unseen before it
	Stale  bool   // of a name: there may be a newer one on another host
}

// follow applies a new view: cursors of lanes that are still there stay, new
// lanes begin at their first message, or where start says at the first view. What
// was not yet read of lanes that are no more is lost.
func (r *Reader) follow(v *lanesView, first bool) error {
	if r.grouped() {
		if id := r.t.record.GroupID(r.group.Number); id != 0 && id != r.group.ID {
			return r.t.set.life.Refused(protocol.Errorf(protocol.CodeProtocol, "stop the broker and start one of this client's version", "the group of a reader of %s is gone", r.t.Title()))
		}
	}
	if first {
		r.hidden = v.hidden
	}
	known := map[uint64]*cursor{} // by incarnation
	for _, k := range r.cursors {
		known[k.Incarnation] = k
	}
	r.view = v
	r.cursors = r.cursors[:0]
	for _, l := range v.lanes {
		k := known[l.Incarnation]
		if k == nil {
			k = &cursor{Lane: l, next: 1}
			switch {
			case first:
				k.next = l.Ring.Head() + 1
			case slices.Contains(r.hidden, l.Incarnation):
				k.next = k.oldest() // where it was when the reader began, nothing tells
			}
		}
		k.Lane = l
		delete(known, l.Incarnation)
		if r.grouped() {
			var err error
			if k.group, err = shm.NewGroupLane(r.group.file.Region, l.Number, r.t.Info.Slots); err != nil {
				return err
			}
			k.there() // else the claims are of another lane
		}
		r.cursors = append(r.cursors, k)
	}
	r.scan.Begin(r.t.active, v.numbers())
	if r.grouped() {
		r.gone.keep(known)
		return nil
	}
	r.gone.follow(v.gone, known, first)
	if first {
		r.rewind()
	}
	return nil
}

// rewind moves the cursors of a new reader back to where it wants to start.
func (r *Reader) rewind() {
	r.t.rewound.Store(r.t.rewound.Load() || r.start != StartNew)
	switch r.start {
	case StartAll:
		for _, k := range r.cursors {
			k.next = k.oldest()
		}
	case StartLast:
		var best *cursor
		var stamp uint64
		for _, k := range r.cursors {
			head := k.Ring.Head()
			if s := k.Ring.Stamp(head); head > 0 && k.Ring.Has(head) && (best == nil || s > stamp) {
				best, stamp = k, s
			}
		}
		if best != nil {
			best.next = best.Ring.Head()
		}
	}
}

// Ready tells whether poll may find something, or has to look at the topic anew.
func (r *Reader) Ready() bool {
	if r.scan.Ready(r.pending) || r.scan.Due(sys.Monotonic) {
		return true
	}
	v := r.t.version()
	return uint32(v) != r.view.at && (v != r.tried || r.epoch != r.t.set.broker.Epoch()) || r.finished()
}

// finished tells that the topic is closed and nothing can come any more. With
// redelivery an item that another has taken and not acknowledged may still come, unless
// the topic was deleted.
func (r *Reader) finished() bool {
	if !r.t.isClosed() {
		return false
	}
	if !r.grouped() || !r.t.Info.Redeliver || r.t.isDeleted() {
		return true
	}
	for _, k := range r.cursors {
		head := k.Ring.Head()
		for i := k.FirstIn(head); i <= head && k.there(); i++ {
			if !k.group.Done(i) {
				return false
			}
		}
	}
	return true
}

// Await waits until ready says that there may be a message. It does not where the last poll has
// passed over so many that it is time to look whether there is time.
func (r *Reader) Await(ctx context.Context, ready func() bool) error {
	if r.passed == mostPassed && ctx.Err() != nil {
		return ctx.Err()
	}
	err := r.t.set.waits.Wait(ctx, r.spin.Budget(), ready, r.waits)
	if err != nil {
		r.spin.GaveUp()
	}
	return err
}

// PassOn has another member of the group look where this one goes without a message that is
// there: a sender may have rung this one alone.
//
// SYNC waiting: this session is out of the set, or was taken out by the sender: the
// message is seen here, or the sender rings another.
func (r *Reader) PassOn() {
	if !r.grouped() || !slices.ContainsFunc(r.cursors, func(k *cursor) bool { return k.pending(true) }) {
		return
	}
	shm.Fence()
	last := r.t.set.files.Slot // behind it
	r.waits.RingOne(&last)
	runtime.KeepAlive(r)
}

// mostPassed is how many messages that cannot be taken are passed over before it is
// looked again whether there is time: a hostile sender can send such faster than they are read.
const mostPassed = 1 << 12

// Poll takes the message with the smallest stamp among the lanes into a fresh one; false where
// there is none.
func (r *Reader) Poll(ctx context.Context, into *memory.Taken) (from Received, ok bool, err error) {
	defer r.takeBack()
	for r.passed = 0; r.passed < mostPassed; r.passed++ {
		ended, err := r.attend(ctx)
		if err != nil {
			return from, false, err
		}
		if r.provides != nil && !r.Provides() { // before each claim
			return from, false, nil
		}
		k, i, hint := r.choose()
		if k == nil {
			if r.aside != nil {
				return from, false, r.aside // nothing but what waits for a process that is not back
			}
			if ended {
				return from, false, fault.Closed(r.t.Title())
			}
			return from, false, nil
		}
		// A lane that has come meanwhile may have what has caused this message.
		//
		// SYNC topic-version: after the look at the message.
		if now := r.t.version(); uint32(now) != r.view.at && now != r.tried {
			continue
		}
		// Neither message nor error: another was faster. Look again.
		ok, err := r.takeFrom(ctx, k, i, hint, into)
		if fault.Code(err) == protocol.CodeBusy && len(r.cursors) > 1 {
			k.aside, r.aside = true, err // the others go on
			continue
		}
		if err != nil {
			return from, false, err
		}
		if ok {
			return r.arrived(k, i, into.Stamp), true, nil
		}
	}
	return from, false, nil
}

// attend has the lanes that there are now looked at, and tells whether the topic is closed and
// nothing more comes there.
func (r *Reader) attend(ctx context.Context) (ended bool, err error) {
	if r.closed {
		return false, fault.Closed("reader of " + r.t.Title())
	}
	if err := r.t.set.life.Ended(); err != nil {
		return false, err
	}
	ended = r.finished() // before the look: what was sent earlier is seen
	version := r.t.version()
	if r.view.at == uint32(version) {
		return ended, nil
	}
	// While the broker is away the former view serves.
	r.tried, r.epoch = version, r.t.set.broker.Epoch()
	v, err := r.t.lanesNow(ctx)
	if err != nil {
		if ended && fault.Code(err) == protocol.CodeNotFound {
			return false, fault.Closed(r.t.Title())
		}
		return false, err
	}
	if v != r.view {
		err = r.follow(v, false)
	}
	return ended, err
}

// takeBack ends what one poll has put aside.
func (r *Reader) takeBack() {
	if r.aside == nil {
		return
	}
	r.aside = nil
	for _, k := range r.cursors {
		k.aside = false
	}
}

// mostPasses bounds the looks for one message where writers overwrite them faster than they
// are looked at.
const mostPasses = 64

func (r *Reader) grouped() bool { return r.group != nil }

// pending tells whether the lane of a cursor, by its index, has something for the reader.
func (r *Reader) pending(k int) bool { return r.cursors[k].pending(r.grouped()) }

// head returns the head of the lane of a cursor, by its index.
func (r *Reader) head(k int) uint64 { return r.cursors[k].Ring.Head() }

// choose finds the next message: of several lanes' that with the smallest stamp, but no
// lane is passed over without a bound. When there are several lanes it looks at all of
// them once more after finding one, so that a message which another one caused
// is never taken before it. Where the one that it has found is gone by then, and it finds one
// that is younger, nothing is known of what has caused that: it looks once more. Of many
// lanes it passes over those that are silent, and those that it has put aside.
func (r *Reader) choose() (best *cursor, number, hint uint64) {
	if len(r.cursors) == 1 {
		k := r.cursors[0]
		if i, hint, ok := r.next(k); ok {
			return k, i, hint
		}
		return nil, 0, 0
	}
	most := uint64(r.t.Info.Slots) * uint64(len(r.cursors)-1)
	r.lookFullyIfDue()
	var looked []int          // of the cursors
	var before uint64         // stamp of what the last pass found
	for pass := 0; ; pass++ { // MODEL active:two-passes
		best = nil
		var stamp uint64
		looked = r.scan.Look(r.pending)
		for _, at := range looked {
			k := r.cursors[at]
			i, h, ok := r.next(k)
			if !ok || k.aside {
				continue
			}
			k.wait.see(i)
			if s := k.Ring.Stamp(i); best == nil || k.wait.before(s, &best.wait, stamp, most) {
				best, number, hint, stamp = k, i, h, s
			}
		}
		if best == nil {
			return nil, 0, 0
		}
		if pass > 0 && (stamp <= before || pass == mostPasses || best.wait.passed >= most) {
			break
		}
		before = stamp
	}
	for _, at := range looked {
		r.cursors[at].wait.passed++ // of one that offers nothing it means nothing
	}
	best.wait = waiting{}
	return best, number, hint
}

func (r *Reader) lookFullyIfDue() {
	if r.scan.Due(sys.Monotonic) {
		r.scan.FullLook(sys.Monotonic(), r.head, r.pending)
	}
}

// next returns the lane's next message for this reader. One that fell behind
// skips to a little after the oldest kept, so that it is not overtaken again at
// once.
func (r *Reader) next(k *cursor) (i, hint uint64, ok bool) {
	if k.over {
		return 0, 0, false
	}
	if r.grouped() {
		i, hint, ok = k.group.Next(k.Ring.Head())
		return i, hint, ok
	}
	for {
		if k.Ring.Has(k.next) { // MODEL lanes:take-look
			return k.next, 0, true
		}
		if k.caughtUp() {
			return 0, 0, false
		}
		head := k.Ring.Head()
		if head < k.next {
			return 0, 0, false
		}
		if k.Ring.Has(k.next) {
			continue
		}
		if !k.there() { // its head is another lane's
			return 0, 0, false
		}
		depth := uint64(r.t.Info.Depth)
		to := k.next + 1
		if head > depth {
			to = max(to, head-depth+1+depth/8)
		}
		to = min(to, head+1)
		k.lost += to - k.next
		k.next = to
	}
}

// takeFrom takes message i and, in a group, claims it. Neither message nor error
// means that another reader was faster: look again.
func (r *Reader) takeFrom(ctx context.Context, k *cursor, i, hint uint64, into *memory.Taken) (ok bool, err error) {
	m := r.t.set.memory
	ok, err = m.Take(ctx, k.Lane, i, into) // MODEL group:take-first
	if err != nil || !ok {
		into.Renew(m)
	}
	if err != nil && !refuted(err) {
		if fault.Unreachable(err) && !r.grouped() {
			r.skip(k, i, hint) // said once: it would be so each time
		}
		return false, err // it stays, for another attempt or another member
	}
	if err != nil || !ok {
		r.skip(k, i, hint)
		return false, nil
	}
	if !r.grouped() {
		k.next = i + 1
		return true, nil
	}
	acknowledge := r.t.Info.Redeliver
	calls := r.provides != nil
	if calls && r.t.set.broker.AwayFor() > 0 && !r.provides.canBegin(into.Body) {
		into.Held.Release()
		into.Renew(m)
		return false, protocol.Errorf(protocol.CodeBusy, "start the broker again", "a call waits for a broker")
	}
	if calls {
		r.claimed = Claimed{r.t, r.group, k.group, k.Lane, i, r.member, false, r.counts(), k.group.BegunBefore(i)}
	}
	crashpoint.At("claim-before")
	if ok, err := r.claim(k, i, hint, acknowledge); !ok {
		into.Held.Release()
		into.Renew(m)
		return false, err
	}
	if calls {
		return true, nil // it ends by itself
	}
	if acknowledge {
		into.Held.Done = r.acknowledgement(k, i)
	} else if !r.quiet {
		r.t.ringWriter(k.Lane)
	}
	return true, nil
}

// acknowledgement is what the release of a message of a group does.
func (r *Reader) acknowledgement(k *cursor, i uint64) func() {
	claims, member, t, l, group := k.group, r.member, r.t, k.Lane, r.group
	return func() {
		crashpoint.At("ack-before")
		t.set.claiming.RLock()
		// Else it was freed, and may be another's; or will be: a request may be refused for the end of the session before
		// that is noted here, and what is released then was not done.
		if t.set.life.Ended() == nil && !t.set.life.IsEvicted() {
			claims.Acknowledge(i, member) // MODEL group:ack-cas
		}
		t.set.claiming.RUnlock()
		crashpoint.At("ack-done")
		t.ringWriter(l)
		runtime.KeepAlive(group) // it has the file of the claims
	}
}

// arrived notes that a message was taken, and tells where it came from.
func (r *Reader) arrived(k *cursor, i, stamp uint64) Received {
	from := Received{Sender: k.Peer.Name, Number: i, Lost: k.lost + r.gone.take()}
	k.lost = 0
	r.counted.took(from.Lost)
	r.spin.Happened(stamp)
	return from
}

// claim makes message i this member's, unless another was faster or the client is
// closed: nothing would undo a claim of a session that is over.
func (r *Reader) claim(k *cursor, i, hint uint64, acknowledge bool) (bool, error) {
	s := r.t.set
	s.claiming.RLock()
	defer s.claiming.RUnlock()
	if err := s.life.Ended(); err != nil {
		return false, err
	}
	return k.group.Take(i, hint, r.member, acknowledge), nil
}

// refuted reports whether an error says that no process can have the message. Any other
// is about this process or its broker: no descriptors or memory left, no answer,
// an owner that is not back after the death of a broker.
func refuted(err error) bool {
	if fault.Unreachable(err) {
		return false
	}
	switch fault.Code(err) {
	case protocol.CodeProtocol, protocol.CodeHandle, protocol.CodeExpired, protocol.CodeNotFound,
		protocol.CodeInvalid, protocol.CodeUnsupported, protocol.CodeReadOnly, protocol.CodePermission:
		return true
	}
	return false
}

// skip passes over a message that cannot be taken (overwritten, withdrawn, malformed), and
// over a lane that is no more. In a group it claims the message, so that no member is
// blocked; the claim fails, as it should, when a faster member has taken the message.
// The message of a writer that keeps the protocol stays until it is read. So only one of a writer
// that breaks it can be lost here, and one in memory that was lent and ended with its owner.
func (r *Reader) skip(k *cursor, i, hint uint64) {
	if !k.there() {
		return
	}
	if !r.grouped() {
		k.lost++
		k.next = i + 1
		return
	}
	if ok, _ := r.claim(k, i, hint, false); ok {
		k.lost++
		r.t.ringWriter(k.Lane)
	}
}

// ringWriter wakes the writer of a lane, which may wait for room.
func (t *Topic) ringWriter(l *sessionfiles.Lane) {
	shm.Fence() // SYNC parked: the claim is visible before the writer's parked word is read
	if l.State == protocol.LaneLive {
		l.Bell.Ring()
	}
	runtime.KeepAlive(t)
}

// CountLost counts the messages that went by unseen since the reader was made, less
// those that a later message has reported.
func (r *Reader) CountLost() uint64 {
	n := r.gone.lost()
	for _, k := range r.cursors {
		n += k.lost
	}
	return n
}

// Close leaves the topic.
func (r *Reader) Close() error {
	if r.closed {
		return nil
	}
	r.closed = true
	return r.t.behind(func(ctx context.Context) error {
		_, err := r.t.set.broker.CallUntil(ctx, protocol.OpTopicLeave, protocol.TopicLeave{TopicRef: r.t.ref(), Role: protocol.RoleNameRead, Reader: r.number}, nil)
		crashpoint.At("leave-read")
		r.counted.end()
		r.counts().end()
		if r.grouped() {
			r.t.forgetGroups(ctx)
		}
		return fault.UnlessLost(unlessLeft(err))
	})
}
