package lanes

import (
	"context"
	"maps"
	"runtime"
	"slices"
	"sort"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/client/internal/memory"
	"github.com/baton-ipc/baton/client/internal/sessionfiles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// lanesView is the lanes of a topic, as of a version of them: what a reader has to know. It is
// never changed.
type lanesView struct {
	at     uint32
	gone   uint64 // messages of lanes that are no more
	lanes  []*sessionfiles.Lane
	hidden []uint64 // incarnations of lanes whose pages no broker has yet: the version will say when it has
}

// numbers are those of the lanes, in their order.
func (v *lanesView) numbers() []uint32 {
	n := make([]uint32, len(v.lanes))
	for i := range v.lanes {
		n[i] = v.lanes[i].Number
	}
	return n
}

// groupsView is the groups of a lossless topic whose files are mapped here. It is never
// changed.
type groupsView struct {
	whole  bool   // all as of a version, as a sender has to know them; else those that readers of this session are in
	at     uint32 // that version
	groups []*group
}

type group struct {
	sessionfiles.GroupRecord
	file *sessionfiles.Mapping
	fd   *sys.FD
}

// lanesNow returns the lanes as the broker's page has them. The broker is asked only for
// files that are not mapped here. While it is away, or when it goes away before it has
// answered, the former view serves: hand-over needs no broker.
func (t *Topic) lanesNow(ctx context.Context) (*lanesView, error) {
	if v := t.lanes.Load(); v != nil && v.at == uint32(t.version()) {
		return v, nil
	}
	if err := t.viewMu.Take(ctx); err != nil {
		return nil, err
	}
	defer t.viewMu.End()
	before := t.lanes.Load()
	at := uint32(t.version()) // before the records
	if before != nil && before.at == at {
		return before, nil
	}
	// The count before the lanes: of one that ends meanwhile it is told at the next look.
	v := &lanesView{at: at, gone: t.record.Gone()}
	records := t.record.Lanes()
	if err := t.listed(); err != nil {
		return nil, err
	}
	found, serves, err := t.findPeers(ctx, before, records)
	if err != nil || serves {
		return before, err
	}
	for _, l := range records {
		if same := before.find(&l); same != nil {
			v.lanes = append(v.lanes, same.As(l))
			continue
		}
		q := found[l.Serial]
		switch {
		case q.Peer != nil:
			mapped, err := sessionfiles.NewLane(t.record, l, q.Peer, t.set.files.Bells.Bell(l.Slot), &t.Info)
			if err != nil {
				return nil, err
			}
			if before == nil {
				mapped.Before = mapped.Ring.Head()
			}
			v.lanes = append(v.lanes, mapped)
		case fault.Code(q.Err) == protocol.CodeBusy: // its process has been suspended since a previous broker: the others go on
			v.hidden = append(v.hidden, l.Incarnation)
		} // else it is gone; the version will say so
	}
	t.lanes.Store(v)
	t.set.memory.TidyPeers()
	return v, nil
}

// find returns a lane that the view has, else nil.
func (v *lanesView) find(l *sessionfiles.LaneRecord) *sessionfiles.Lane {
	if v == nil {
		return nil
	}
	i := sort.Search(len(v.lanes), func(i int) bool { return v.lanes[i].Number >= l.Number })
	if i == len(v.lanes) || v.lanes[i].Incarnation != l.Incarnation {
		return nil
	}
	return v.lanes[i]
}

// listed makes sure that what was read of the record just now is about this topic, and not
// about one that has come after it.
func (t *Topic) listed() error {
	if t.record.ID() == t.Info.ID {
		return nil
	}
	return t.set.life.Refused(protocol.Errorf(protocol.CodeNotFound, "open it again", "%s is no more", t.Title()))
}

// findPeers finds the files of lanes that a former view has not, with as few requests as
// possible. serves: the former view does.
func (t *Topic) findPeers(ctx context.Context, before *lanesView, records []sessionfiles.LaneRecord) (found map[uint64]memory.FoundPeer, serves bool, err error) {
	found = map[uint64]memory.FoundPeer{}
	var missing []protocol.PeerSession
	for _, l := range records {
		if _, looked := found[l.Serial]; looked || before.find(&l) != nil {
			continue
		}
		q := t.set.files.Known(l.Slot, l.Serial)
		found[l.Serial] = memory.FoundPeer{Peer: q}
		if q == nil {
			missing = append(missing, protocol.PeerSession{Slot: l.Slot, Serial: l.Serial})
		}
	}
	if len(missing) == 0 {
		return found, false, nil
	}
	serves, err = t.unlessAway(ctx, before != nil, func(ctx context.Context) error {
		mapped, err := t.set.memory.MapPeers(ctx, missing)
		maps.Copy(found, mapped)
		for _, f := range mapped {
			if code := fault.Code(f.Err); f.Peer == nil && code != protocol.CodeExpired && code != protocol.CodeBusy {
				return f.Err
			}
		}
		return err
	})
	return found, serves, err
}

// unlessAway runs what asks the broker for what a new view needs. serves: it is away, or went
// away meanwhile, and there is a former view that serves.
func (t *Topic) unlessAway(ctx context.Context, former bool, ask func(context.Context) error) (serves bool, err error) {
	if !former {
		return false, ask(ctx)
	}
	if t.set.broker.IsAway() {
		return true, nil
	}
	asked, cancel := t.set.broker.UntilAway(ctx)
	defer cancel()
	err = ask(asked)
	// That it went away counts, even where the caller's time has run out meanwhile.
	if err != nil && (fault.IsLost(err) || fault.IsLost(context.Cause(asked))) {
		return true, nil
	}
	return false, err
}

// groupsNow is as lanesNow for the groups.
func (t *Topic) groupsNow(ctx context.Context) (*groupsView, error) {
	if v := t.groups.Load(); v.whole && v.at == uint32(t.version()>>32) {
		return v, nil
	}
	if err := t.viewMu.Take(ctx); err != nil {
		return nil, err
	}
	defer t.viewMu.End()
	before := t.groups.Load()
	v := &groupsView{whole: true, at: uint32(t.version() >> 32)} // before the records
	if before.whole && before.at == v.at {
		return before, nil
	}
	records := t.record.Groups()
	if err := t.listed(); err != nil {
		return nil, err
	}
	var missing []sessionfiles.GroupRecord
	for _, r := range records {
		if g := before.find(r.ID); g != nil {
			v.groups = append(v.groups, g)
		} else {
			missing = append(missing, r)
		}
	}
	if len(missing) > 0 {
		serves, err := t.unlessAway(ctx, before.whole, func(ctx context.Context) error {
			for _, r := range missing {
				g, err := t.askGroup(ctx, r)
				if err == nil {
					v.groups = append(v.groups, g)
				} else if fault.Code(err) != protocol.CodeNotFound { // else it is gone; the version will say so
					return err
				}
			}
			return nil
		})
		if err != nil || serves {
			v.closeBut(before)
			return before, err
		}
	}
	t.keepGroups(v)
	if t.Info.Kind == protocol.KindFunction {
		t.mapReaders(ctx)
	}
	return v, nil
}

// mapReaders maps the files of the sessions that read: in them lies what they reply. One that no broker gives in a moment is
// asked for when there is a reply of its session.
func (t *Topic) mapReaders(ctx context.Context) {
	var missing []protocol.PeerSession
	for _, slot := range t.record.ReaderSlots() {
		if serial := t.set.files.SessionSerial(slot); serial != 0 && t.set.files.Known(slot, serial) == nil {
			missing = append(missing, protocol.PeerSession{Slot: slot, Serial: serial})
		}
	}
	if len(missing) > 0 {
		ctx, cancel := context.WithTimeout(ctx, moment)
		defer cancel()
		t.unlessAway(ctx, true, func(ctx context.Context) error {
			_, err := t.set.memory.MapPeers(ctx, missing)
			return err
		})
	}
}

// find returns a group that is mapped here.
func (v *groupsView) find(id uint64) *group {
	if i := slices.IndexFunc(v.groups, func(g *group) bool { return g.ID == id }); i >= 0 {
		return v.groups[i]
	}
	return nil
}

// closeBut closes the descriptors of groups that another view has not. They stay mapped while
// any view has them.
func (v *groupsView) closeBut(kept *groupsView) {
	for _, g := range v.groups {
		if kept.find(g.ID) != g {
			g.fd.Close()
		}
	}
}

// keepGroups makes a view the one of now. Of a client that was closed meanwhile nothing would
// close its files: one of the two sees the other.
func (t *Topic) keepGroups(v *groupsView) {
	t.groups.Swap(v).closeBut(v)
	if t.set.life.Ended() != nil {
		t.closeGroups()
	}
}

func (t *Topic) closeGroups() { t.groups.Load().closeBut(&groupsView{}) }

func (t *Topic) askGroup(ctx context.Context, r sessionfiles.GroupRecord) (*group, error) {
	fds, err := t.set.broker.Call(ctx, protocol.OpTopicGroupFile, protocol.TopicGroupFile{TopicRef: t.ref(), Group: r.Number}, nil)
	if err != nil {
		return nil, err
	}
	return t.mapGroup(r, fds)
}

func (t *Topic) mapGroup(r sessionfiles.GroupRecord, fds []*sys.FD) (*group, error) {
	if len(fds) != 1 {
		wire.CloseAll(fds)
		return nil, protocol.Errorf(protocol.CodeProtocol, "stop the broker and start one of this client's version", "group came with %d descriptors, not 1", len(fds))
	}
	file, err := sessionfiles.NewMapping(fds[0], protocol.GroupBytes(t.Info.Slots), true, nil)
	if err != nil {
		wire.CloseAll(fds)
		return nil, err
	}
	return &group{r, file, fds[0]}, nil
}

// joinGroup maps a group's file that came with joining it, unless it is mapped already.
func (t *Topic) joinGroup(ctx context.Context, r sessionfiles.GroupRecord, fds []*sys.FD) (*group, error) {
	if err := t.viewMu.Take(ctx); err != nil {
		wire.CloseAll(fds)
		return nil, err
	}
	defer t.viewMu.End()
	before := t.groups.Load()
	if g := before.find(r.ID); g != nil {
		wire.CloseAll(fds)
		return g, nil
	}
	g, err := t.mapGroup(r, fds)
	if err != nil {
		return nil, err
	}
	with := *before
	with.groups = append(slices.Clone(before.groups), g)
	t.keepGroups(&with)
	return g, nil
}

// forgetGroups lets go of groups that are over, in a session that may never look at them again.
func (t *Topic) forgetGroups(ctx context.Context) {
	if t.viewMu.Take(ctx) != nil {
		return
	}
	defer t.viewMu.End()
	left := *t.groups.Load()
	left.groups = slices.DeleteFunc(slices.Clone(left.groups), func(g *group) bool { return t.record.GroupID(g.Number) != g.ID })
	t.keepGroups(&left)
}

// attachAhead considers the newest message of each lane that has sent since it was looked at
// first, or of all where what was kept then is read too. Of a queue it is not known which
// reader takes which message.
func (t *Topic) attachAhead(a *memory.Ahead) {
	v := t.lanes.Load()
	if v == nil || t.isQueue() {
		return
	}
	for _, l := range v.lanes {
		if a.Full() {
			return
		}
		head := l.Ring.Head()
		if head <= l.Before && !t.rewound.Load() {
			continue
		}
		if ref, ok := l.Ring.FirstRef(head); ok {
			a.Consider(ref)
		}
	}
}

// CountItems returns how many items of a queue wait to be taken.
func (t *Topic) CountItems(ctx context.Context) (int, error) {
	if err := t.set.life.Ended(); err != nil {
		return 0, err
	}
	v, err := t.lanesNow(ctx)
	if err != nil {
		return 0, err
	}
	groups, err := t.groupsNow(ctx)
	if err != nil {
		return 0, err
	}
	return t.waiting(v, groups), nil
}

// waiting counts the items of a queue that nothing has taken.
func (t *Topic) waiting(v *lanesView, groups *groupsView) int {
	n := 0
	for _, l := range v.lanes {
		for _, g := range groups.groups {
			gl, err := shm.NewGroupLane(g.file.Region, l.Number, t.Info.Slots)
			if err != nil || !l.Current() {
				continue
			}
			head := l.Ring.Head()
			for i := l.FirstIn(head); i <= head; i++ {
				if l.Ring.Has(i) && gl.Open(i) {
					n++
				}
			}
		}
	}
	runtime.KeepAlive(v)
	runtime.KeepAlive(groups)
	return n
}
