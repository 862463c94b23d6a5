package client

import (
	"context"
	"runtime"
	"slices"

	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Start says which of the messages kept a new reader begins with.
type Start int

// Where a reader starts.
const (
	StartNew  Start = iota // what is sent from now on
	StartLast              // the newest message kept, then what follows
	StartAll               // everything that is kept
)

// Reader receives a topic's messages. In a topic that overwrites it sees each
// message that is still kept when it looks; in a lossless one, every message
// from its making on, alone or sharing the work with its group. One goroutine
// at a time.
type Reader struct {
	t       *topic
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
	spin    spinner
	passed  int      // messages that the last poll passed over
	aside   error    // why a poll has put lanes aside
	spare   *Message // for the next one: made while there is nothing to take
	start   Start
	counted counted
	closed  bool
}

// follow takes over a new view: cursors of lanes that are still there stay, new
// lanes begin at their first message, or where start says at the first view. What
// was not yet read of lanes that are no more is lost.
func (r *Reader) follow(v *lanesView, first bool) error {
	if r.grouped() {
		if id := r.t.record.groupID(r.group.number); id != 0 && id != r.group.id {
			return protocol.Errorf(protocol.CodeProtocol, "use a broker of this version", "the group of a reader of %s is gone", r.t.title())
		}
	}
	if first {
		r.hidden = v.hidden
	}
	known := map[uint64]*cursor{} // by incarnation
	for _, k := range r.cursors {
		known[k.incarnation] = k
	}
	r.view = v
	r.cursors = r.cursors[:0]
	for _, l := range v.lanes {
		k := known[l.incarnation]
		if k == nil {
			k = &cursor{laneView: l, next: 1}
			switch {
			case first:
				k.next = l.lane.Head() + 1
			case slices.Contains(r.hidden, l.incarnation):
				k.next = k.oldest() // where it was when the reader began, nobody can tell
			}
		}
		k.laneView = l
		delete(known, l.incarnation)
		if r.grouped() {
			var err error
			if k.group, err = shm.NewGroupLane(r.group.file.Region, l.number, r.t.info.Slots); err != nil {
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
			head := k.lane.Head()
			if s := k.lane.Stamp(head); head > 0 && k.lane.Has(head) && (best == nil || s > stamp) {
				best, stamp = k, s
			}
		}
		if best != nil {
			best.next = best.lane.Head()
		}
	}
}

// ready tells whether poll may find something, or has to look at the topic anew.
func (r *Reader) ready() bool {
	if r.scan.Ready(r.pending) || r.scan.Due(sys.Monotonic) {
		return true
	}
	v := r.t.version()
	return uint32(v) != r.view.at && (v != r.tried || r.epoch != r.t.c.epoch.Load()) || r.finished()
}

// finished tells that the topic is closed and nothing can come any more. With
// redelivery an item that another has taken and not acknowledged may still come, unless
// the topic was deleted.
func (r *Reader) finished() bool {
	if !r.t.isClosed() {
		return false
	}
	if !r.grouped() || !r.t.info.Redeliver || r.t.isDeleted() {
		return true
	}
	for _, k := range r.cursors {
		head := k.lane.Head()
		for i := k.firstIn(head); i <= head && k.there(); i++ {
			if !k.group.Done(i) {
				return false
			}
		}
	}
	return true
}

// Receive returns the next message, waiting for it until ctx ends (ErrTimeout at
// its deadline). ErrClosed: the topic was closed and everything was received.
// The caller releases the message.
func (r *Reader) Receive(ctx context.Context) (m *Message, err error) {
	for {
		if m, err = r.poll(ctx); m != nil || err != nil {
			break
		}
		if r.passed == mostPassed && ctx.Err() != nil || r.await(ctx, r.ready) != nil {
			err = r.t.timeout(ctx, protocol.CodeTimeout, "no message")
			break
		}
	}
	if err != nil {
		r.passOn()
	}
	return m, err
}

// await waits until ready says that there may be a message.
func (r *Reader) await(ctx context.Context, ready func() bool) error {
	err := r.t.c.hub.wait(ctx, r.spin.budget(), ready, r.waits)
	if err != nil {
		r.spin.gaveUp()
	}
	return err
}

// passOn has another member of the group look where this one goes without a message that is
// there: a sender may have rung this one alone.
//
// SYNC waiting: this session is out of the set, or was taken out by who published: the
// message is seen here, or the sender rings another.
func (r *Reader) passOn() {
	if !r.grouped() || !slices.ContainsFunc(r.cursors, func(k *cursor) bool { return k.pending(true) }) {
		return
	}
	shm.Fence()
	last := r.t.c.pages.slot // behind it
	r.waits.RingOne(&last)
	runtime.KeepAlive(r)
}

// TryReceive returns the next message if one is there, else nil.
func (r *Reader) TryReceive(ctx context.Context) (*Message, error) { return r.poll(ctx) }

// mostPassed is how many messages that cannot be had are passed over before it is
// looked again whether there is time: a liar can send such faster than they are read.
const mostPassed = 1 << 12

// poll takes the message with the smallest stamp among the lanes.
func (r *Reader) poll(ctx context.Context) (*Message, error) {
	defer r.takeBack()
	for r.passed = 0; r.passed < mostPassed; r.passed++ {
		if r.closed {
			return nil, errClosed("reader of " + r.t.title())
		}
		if err := r.t.c.live(); err != nil {
			return nil, err
		}
		ended := r.finished() // before the look: what was sent earlier is seen
		if version := r.t.version(); r.view.at != uint32(version) {
			// While the broker is away the former view serves.
			r.tried, r.epoch = version, r.t.c.epoch.Load()
			v, err := r.t.lanesNow(ctx)
			if err != nil {
				if ended && protocolCode(err) == protocol.CodeNotFound {
					return nil, errClosed(r.t.title())
				}
				return nil, err
			}
			if v != r.view {
				if err := r.follow(v, false); err != nil {
					return nil, err
				}
			}
		}
		k, i, hint := r.choose()
		if k == nil {
			if r.aside != nil {
				return nil, r.aside // nothing but what waits for a process that is not back
			}
			if ended {
				return nil, errClosed(r.t.title())
			}
			if r.spare == nil {
				r.spare = newMessage(r.t.c)
			}
			return nil, nil
		}
		// A lane that has come meanwhile may have what has caused this message.
		//
		// SYNC topic-version: behind the look at the message.
		if now := r.t.version(); uint32(now) != r.view.at && now != r.tried {
			continue
		}
		// Neither message nor error: somebody was faster. Look again.
		m, err := r.takeFrom(ctx, k, i, hint)
		if protocolCode(err) == protocol.CodeBusy && len(r.cursors) > 1 {
			k.aside, r.aside = true, err // the others go on
			continue
		}
		if err != nil || m != nil {
			return m, err
		}
	}
	return nil, nil
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
func (r *Reader) head(k int) uint64 { return r.cursors[k].lane.Head() }

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
	most := uint64(r.t.info.Slots) * uint64(len(r.cursors)-1)
	if r.scan.Due(sys.Monotonic) {
		r.scan.FullLook(sys.Monotonic(), r.head, r.pending)
	}
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
			if s := k.lane.Stamp(i); best == nil || k.wait.before(s, &best.wait, stamp, most) {
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

// next returns the lane's next message for this reader. One that fell behind
// skips to a little after the oldest kept, so that it is not overtaken again at
// once.
func (r *Reader) next(k *cursor) (i, hint uint64, ok bool) {
	if k.over {
		return 0, 0, false
	}
	if r.grouped() {
		i, hint, ok = k.group.Next(k.lane.Head())
		return i, hint, ok
	}
	for {
		if k.lane.Has(k.next) { // MODEL lanes:take-look
			return k.next, 0, true
		}
		if k.caughtUp() {
			return 0, 0, false
		}
		head := k.lane.Head()
		if head < k.next {
			return 0, 0, false
		}
		if k.lane.Has(k.next) {
			continue
		}
		if !k.there() { // its head is another lane's
			return 0, 0, false
		}
		depth := uint64(r.t.info.Depth)
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
// means that somebody was faster: look again.
func (r *Reader) takeFrom(ctx context.Context, k *cursor, i, hint uint64) (*Message, error) {
	m := r.spare
	if r.spare = nil; m == nil {
		m = newMessage(r.t.c)
	}
	ok, err := r.t.c.take(ctx, &k.laneView, i, m) // MODEL group:take-first
	if err != nil && !refuted(err) {
		if unreachable(err) && !r.grouped() {
			r.skip(k, i, hint) // said once: it would be so each time
		}
		return nil, err // it stays, for another attempt or another member
	}
	if err != nil || !ok {
		r.skip(k, i, hint)
		return nil, nil
	}
	if r.grouped() {
		acknowledge := r.t.info.Redeliver
		crashpoint.At("claim-before")
		if ok, err := r.claim(k, i, hint, acknowledge); !ok {
			m.Release()
			return nil, err
		}
		if acknowledge {
			claims, member, t, lane, group := k.group, r.member, r.t, k.laneView, r.group
			m.held.done = func() {
				crashpoint.At("ack-before")
				t.c.claiming.RLock()
				if t.c.live() == nil { // else it was freed, and may be another's
					claims.Acknowledge(i, member) // MODEL group:ack-cas
				}
				t.c.claiming.RUnlock()
				crashpoint.At("ack-done")
				t.ringWriter(&lane)
				runtime.KeepAlive(group) // it has the file of the claims
			}
		} else {
			r.t.ringWriter(&k.laneView)
		}
	} else {
		k.next = i + 1
	}
	m.Sender, m.Lost = k.peer.name, k.lost+r.gone.take()
	k.lost = 0
	r.counted.took(m.Lost)
	r.spin.happened(m.Stamp)
	return m, nil
}

// claim makes message i this member's, unless somebody was faster or the client is
// closed: nobody would undo a claim of a session that is over.
func (r *Reader) claim(k *cursor, i, hint uint64, acknowledge bool) (bool, error) {
	c := r.t.c
	c.claiming.RLock()
	defer c.claiming.RUnlock()
	if err := c.live(); err != nil {
		return false, err
	}
	return k.group.Take(i, hint, r.member, acknowledge), nil
}

// refuted tells of an error that says that nobody can have the message. Any other
// is about this process or its broker: no descriptors or memory left, no answer,
// an owner that is not back after the death of a broker.
func refuted(err error) bool {
	if unreachable(err) {
		return false
	}
	switch protocolCode(err) {
	case protocol.CodeProtocol, protocol.CodeHandle, protocol.CodeExpired, protocol.CodeNotFound,
		protocol.CodeInvalid, protocol.CodeUnsupported, protocol.CodeReadOnly, protocol.CodePermission:
		return true
	}
	return false
}

// skip passes over a message that cannot be had (overwritten, withdrawn, malformed), and
// over a lane that is no more. In a group it claims the message, so that no member is
// blocked; the claim fails, as it should, when a faster member has taken the message.
// An honest writer's message stays until it is read. So only a hostile writer's can be
// lost here, and one in memory that was lent and ended with its owner.
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
		r.t.ringWriter(&k.laneView)
	}
}

// ringWriter wakes the writer of a lane, which may wait for room.
func (t *topic) ringWriter(l *laneView) {
	shm.Fence() // SYNC parked: the claim is visible before the writer's parked word is read
	if l.state == protocol.LaneLive {
		l.bell.Ring()
	}
	runtime.KeepAlive(t)
}

// Lost counts the messages that went by unseen since the reader was made, less
// those that a later message has reported.
func (r *Reader) Lost() uint64 {
	n := r.gone.lost()
	for _, k := range r.cursors {
		n += k.lost
	}
	return n
}

// Close leaves the topic. Messages received stay valid until their Release.
func (r *Reader) Close() error {
	if r.closed {
		return nil
	}
	r.closed = true
	return r.t.behind(func(ctx context.Context) error {
		_, err := r.t.c.callUntil(ctx, protocol.OpTopicLeave, protocol.TopicLeave{TopicRef: r.t.ref(), Role: protocol.RoleNameRead, Reader: r.number}, nil)
		crashpoint.At("leave-read")
		r.counted.end()
		if r.grouped() {
			r.t.forgetGroups(ctx)
		}
		return unlessLost(unlessLeft(err))
	})
}
