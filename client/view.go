package client

import (
	"context"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// parts are what a client has to know of a topic's peers: the lanes where it reads, the
// readers where it sends.
type parts struct{ lanes, readers bool }

var (
	toRead = parts{lanes: true}
	toSend = parts{readers: true}
)

// peersView is who takes part in a topic, as far as this client has asked: each part as of
// a version of its own. It is never changed.
type peersView struct {
	has parts
	// The versions of the lanes, and of the readers and groups.
	lanesAt, readersAt uint32
	gone               uint64 // messages of lanes that are no more
	lanes              []laneView
	hidden             []uint64   // incarnations of lanes whose pages no broker has yet: the version will say when it has
	readers            []listener // rung by the writer, under topic.mu
	far                bool       // readers that could not be mapped are not among them: the broker rings
	made               uint64     // CLOCK_MONOTONIC
	groups             []groupView
}

type laneView struct {
	protocol.LaneInfo
	lane   shm.Lane
	record *uint64   // the incarnation in the lane's record
	bell   *shm.Bell // of the writer, nil when it is the broker's by adoption
	peer   *peer     // whose mappings they look through
}

// current tells whether the lane is still there. Once it is not, its place may be
// another lane's, of this topic or any other, and what is read there means nothing.
//
// SYNC lane-incarnation: behind the second look at a slot, and behind the base of the
// claims; the broker clears it before the place may be used anew, so that it is seen
// cleared by a process that has seen something of another lane.
func (l *laneView) current() bool { return atomic.LoadUint64(l.record) == l.Incarnation }

// listener is a session that reads the topic.
type listener struct {
	bell *shm.Bell
	peer *peer // whose mappings it rings through
}

type groupView struct {
	protocol.GroupInfo
	file *mapping
	fd   *sys.FD
}

// current returns who takes part, asking the broker if that has changed or was not asked
// yet. While the broker is away, or when it goes away before it has answered, the last
// answer serves: hand-over needs no broker.
func (t *topic) current(ctx context.Context, need parts) (*peersView, error) {
	v := t.view.Load()
	if v != nil && t.fresh(v, need) {
		return v, nil
	}
	if err := t.peersMu.take(ctx); err != nil {
		return nil, err
	}
	defer t.peersMu.end()
	if v = t.view.Load(); v != nil && t.fresh(v, need) {
		return v, nil
	}
	c := t.c
	if v != nil && !v.knows(need) {
		v = nil // it does not serve
	}
	if v != nil && c.brokerAway() {
		return v, nil
	}
	asked := ctx
	if v != nil {
		var cancel context.CancelFunc
		asked, cancel = c.untilAway(ctx)
		defer cancel()
	}
	var p protocol.Peers
	_, err := c.call(asked, protocol.OpTopicPeers, protocol.TopicPeers{TopicRef: t.ref(), Lanes: need.lanes, Waiters: need.readers}, &p)
	if err == nil {
		var now *peersView
		if now, err = t.adopt(asked, &p, need); err == nil {
			return now, nil
		}
	}
	// That it went away counts, even where the caller's time has run out meanwhile.
	if v != nil && (isLost(err) || isLost(context.Cause(asked))) {
		return v, nil
	}
	return nil, err
}

// aMoment is how long a broker that runs may take to answer.
const aMoment = time.Second

// silence is when the broker did not say in a moment who takes part: the version that
// was asked for, and how much had been heard of it. Until one of them changes it is not
// asked again.
type silence struct {
	version uint64
	ctl     *control
	heard   uint64
}

// viewToSend is current for a send. Where messages are overwritten the last answer
// serves while the broker stands still: no slot is kept for anybody, and who has come
// since looks once a second. A lossless topic has to know of each group before it uses
// a slot again. Callers hold t.mu.
func (t *topic) viewToSend(ctx context.Context) (*peersView, error) {
	before := t.view.Load()
	if before == nil || !t.info.Overwrite || !before.knows(toSend) || t.fresh(before, toSend) {
		return t.current(ctx, toSend)
	}
	v, err := t.currentAtOnce(ctx)
	if v == nil && err == nil {
		v = before
	}
	return v, err
}

// currentAtOnce is current; nil where the broker does not answer in a moment, or
// before the deadline of ctx, and then until it is heard of again. Callers hold t.mu.
func (t *topic) currentAtOnce(ctx context.Context) (*peersView, error) {
	now := silence{version: t.version()}
	now.ctl, now.heard = t.c.heard()
	if now == t.silence {
		return nil, nil
	}
	brief, cancel := context.WithTimeout(ctx, aMoment)
	defer cancel()
	v, err := t.current(brief, toSend)
	if err != nil && brief.Err() == context.DeadlineExceeded {
		t.silence = now
		return nil, nil
	}
	return v, err
}

// knows tells whether a view has the parts that are needed, as of some version.
func (v *peersView) knows(need parts) bool {
	return (v.has.lanes || !need.lanes) && (v.has.readers || !need.readers)
}

// fresh tells whether the parts of a view that are needed are still those of now. Readers
// come and go without a reader's having to know of it. Those that could not be mapped are
// tried again after a while.
func (t *topic) fresh(v *peersView, need parts) bool {
	now := t.version()
	if !v.knows(need) || need.lanes && v.lanesAt != uint32(now) {
		return false
	}
	return !need.readers || v.readersAt == uint32(now>>32) && !(v.far && sys.Monotonic()-v.made > uint64(aMoment))
}

// ring wakes the readers: through the broker those whose bell this process cannot map.
func (t *topic) ring(v *peersView) {
	if v.far {
		t.c.ringByBroker(t.ref())
	}
	for i := range v.readers {
		v.readers[i].bell.Ring()
	}
	runtime.KeepAlive(v)
}

// adopt builds a view of an answer that has some parts; the others stay as they were, and so
// do files mapped before.
func (t *topic) adopt(ctx context.Context, p *protocol.Peers, has parts) (_ *peersView, err error) {
	before := t.view.Load()
	v := &peersView{has: has, lanesAt: p.LanesVersion, readersAt: p.ReadersVersion, gone: p.Gone, made: sys.Monotonic()}
	defer func() {
		if err != nil {
			v.closeGone(before)
		}
	}()
	if before != nil && !has.lanes {
		v.has.lanes, v.lanesAt, v.lanes, v.hidden, v.gone = before.has.lanes, before.lanesAt, before.lanes, before.hidden, before.gone
	}
	if before != nil && !has.readers {
		v.has.readers, v.readersAt, v.readers, v.far, v.made = before.has.readers, before.readersAt, before.readers, before.far, before.made
	}
	for _, l := range p.Lanes {
		if l.State == protocol.LaneClosed {
			continue
		}
		q, err := t.c.peer(ctx, l.Slot, l.Serial)
		if err != nil {
			switch protocolCode(err) {
			case protocol.CodeNotFound, protocol.CodeExpired: // gone meanwhile; the version will say so
			case protocol.CodeBusy: // its process stands still since a former broker: the others go on
				v.hidden = append(v.hidden, l.Incarnation)
			default:
				return nil, err
			}
			continue
		}
		lane, err := shm.NewLane(q.file.Region, l.Offset, t.info.Slots, t.info.Stride)
		if err == nil && l.Lane >= protocol.MaxLanes {
			err = protocol.Errorf(protocol.CodeProtocol, "use a broker of this version", "a lane of %s has the number %d", t.title(), l.Lane)
		}
		if err != nil {
			return nil, err
		}
		v.lanes = append(v.lanes, laneView{LaneInfo: l, lane: lane, record: t.laneRecord(l.Lane), bell: shm.NewBell(q.file.Region, q.bell.Region), peer: q})
	}
	for _, w := range p.Waiters {
		q, err := t.c.peer(ctx, w.Slot, w.Serial)
		if err != nil && (isLost(err) || ctx.Err() != nil) {
			return nil, err
		}
		if code := protocolCode(err); code == protocol.CodeNotFound || code == protocol.CodeExpired {
			continue // it has gone
		}
		if err != nil {
			v.far = true
			continue
		}
		v.readers = append(v.readers, listener{shm.NewBell(q.file.Region, q.bell.Region), q})
	}
	for _, g := range p.Groups {
		gv, err := t.group(ctx, before, g)
		if err != nil {
			if protocolCode(err) == protocol.CodeNotFound {
				continue
			}
			return nil, err
		}
		v.groups = append(v.groups, gv)
	}
	t.keep(v)
	before.closeGone(v)
	t.c.tidyPeers()
	return v, nil
}

// closeGone closes the descriptors of groups that another view has not. They
// stay mapped while somebody has a view with them.
func (v *peersView) closeGone(now *peersView) {
	if v == nil {
		return
	}
	var kept []groupView
	if now != nil {
		kept = now.groups
	}
	for _, g := range v.groups {
		if !slices.ContainsFunc(kept, func(n groupView) bool { return n.fd == g.fd }) {
			g.fd.Close()
		}
	}
}

func (t *topic) group(ctx context.Context, before *peersView, g protocol.GroupInfo) (groupView, error) {
	if before != nil {
		for _, known := range before.groups {
			if known.ID == g.ID {
				return known, nil
			}
		}
	}
	fds, err := t.c.call(ctx, protocol.OpTopicGroupFile, protocol.TopicGroupFile{TopicRef: t.ref(), Group: g.Group}, nil)
	if err != nil {
		return groupView{}, err
	}
	return t.mapGroup(g, fds)
}

func (t *topic) mapGroup(g protocol.GroupInfo, fds []*sys.FD) (groupView, error) {
	if len(fds) != 1 {
		wire.CloseAll(fds)
		return groupView{}, protocol.Errorf(protocol.CodeProtocol, "use a broker of this version", "group came with %d descriptors, not 1", len(fds))
	}
	r, err := newMapping(fds[0], protocol.GroupBytes(t.info.Slots), true, nil)
	if err != nil {
		wire.CloseAll(fds)
		return groupView{}, err
	}
	return groupView{GroupInfo: g, file: r, fd: fds[0]}, nil
}

// keepGroup maps a group's file that came with joining it, for the view that is
// built next; one that is mapped already stays. Callers hold t.peersMu.
func (t *topic) keepGroup(g protocol.GroupInfo, fds []*sys.FD) error {
	before := t.view.Load()
	if before == nil {
		before = &peersView{}
	}
	for _, known := range before.groups {
		if known.ID == g.ID {
			wire.CloseAll(fds)
			return nil
		}
	}
	gv, err := t.mapGroup(g, fds)
	if err != nil {
		return err
	}
	with := *before
	with.groups = append(append([]groupView(nil), before.groups...), gv)
	t.keep(&with)
	return nil
}

// keep makes a view the one of now. Of a client that was closed meanwhile nobody would
// close its files: one of the two sees the other.
func (t *topic) keep(v *peersView) {
	t.view.Store(v)
	if t.c.live() != nil {
		t.groupFiles(func(_ uint64, fd *sys.FD) { fd.Close() })
	}
}

// groupFiles lists the group files mapped here, for a new broker.
func (t *topic) groupFiles(f func(id uint64, fd *sys.FD)) {
	if v := t.view.Load(); v != nil {
		for _, g := range v.groups {
			f(g.ID, g.fd)
		}
	}
}
