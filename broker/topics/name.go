package topics

import (
	"slices"
	"time"

	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// name is what a topic of kind name has besides: the present revision, which the
// broker's refcounts pay for. The topic's one lane lies in the broker's own file.
type name struct {
	lane      *Lane
	set       bool // a revision stands in the lane
	revision  uint64
	live      bool
	ephemeral *Party   // its end deletes the name
	indices   []uint32 // counted up for the revision
	bytes     uint64
	tensors   uint16
	at        time.Time
	setter    string
	setterPID int // 0: not known

	agreed  protocol.Agreed // of a name that spans several hosts: its newest revision or deletion; Revision 0: there is none
	foreign bool            // that revision came from another host
	stale   bool
	pending int // revisions that are held until hosts agree
}

const (
	nameDepth = 1
	// nameSlot is the room of one name's lane in the broker's file.
	nameLane = (protocol.LaneSlotsAt + 2*((protocol.SlotSize+protocol.DefaultDescription+63)&^63) +
		protocol.PageBytes - 1) &^ (protocol.PageBytes - 1)
	nameLanes = (protocol.SessionBytes - protocol.SessionLanes) / nameLane
)

// nameRoom gives out the places of names' lanes in the broker's own file.
type nameRoom struct{ record.Table }

// take needs no shares: a name has a topic, of which its maker has a share.
func (r *nameRoom) take() (offset uint64, err error) {
	n, err := r.Table.Take(record.Holder{})
	return protocol.SessionLanes + uint64(n)*nameLane, err
}

func (r *nameRoom) give(offset uint64) {
	r.Table.Give(uint32((offset-protocol.SessionLanes)/nameLane), record.Holder{})
}

// nameTopic finds a name's topic, or makes one in which nothing is set yet.
func (ts *Topics) nameTopic(s *Party, text string) (*Topic, error) {
	if err := protocol.CheckName(text); err != nil {
		return nil, err
	}
	key := topicKey{s.Namespace, text, ofNames}
	if t := ts.named[key]; t != nil {
		return t, nil
	}
	t := &Topic{key: key, kind: protocol.TopicKindName, creator: s.Name, depth: nameDepth,
		description: protocol.DefaultDescription, name: &name{}}
	if err := ts.makeTopic(s, t); err != nil {
		return nil, err
	}
	if err := ts.addNameLane(t); err != nil {
		ts.removeTopic(t)
		return nil, err
	}
	return t, nil
}

func (ts *Topics) addNameLane(t *Topic) error {
	offset, err := ts.nameRoom.take()
	if err != nil {
		return err
	}
	if err := ts.store.Own.File.FD.Reserve(int64(offset), nameLane); err != nil {
		ts.nameRoom.give(offset)
		return sessionfiles.NoMemory(err, "a name")
	}
	view, err := shm.NewLane(ts.store.Own.File.Region, offset, t.slots, t.stride)
	if err != nil {
		ts.nameRoom.give(offset)
		return err
	}
	view.Clear()
	view.Init(t.id)
	t.name.lane = &Lane{Topic: t, File: ts.store.Own, offset: offset, state: protocol.LaneLive, View: view}
	ts.addLane(t.name.lane)
	ts.changed(t)
	return nil
}

// OpenName opens a name, also one in which nothing is set yet.
func (ts *Topics) OpenName(s *Party, r *protocol.NameOpen) (info protocol.TopicInfo, err error) {
	t, err := ts.opened(s, r.Opening)
	if t == nil && err == nil {
		t, err = ts.nameTopic(s, r.Name)
	}
	if err != nil {
		return info, err
	}
	return ts.openTopic(s, t, r.Opening)
}

// SetName publishes a revision, or sets a live name. The setter holds what it
// names; the broker holds it in its own refcounts before the lane names it.
func (ts *Topics) SetName(s *Party, r *protocol.NameSet) (reply protocol.NameSetReply, err error) {
	if err := ts.checkNameSet(r); err != nil {
		return reply, err
	}
	if err := ts.checkReplaces(s, r); err != nil {
		return reply, err
	}
	indices, words, err := ts.holdRevision(r)
	if err != nil {
		return reply, err
	}
	t, err := ts.nameTopic(s, r.Name)
	if err != nil {
		ts.memory.DropAll(indices)
		return reply, err
	}
	n := t.name
	h := shm.SlotHead{Stamp: sys.Monotonic(), Tensors: r.Tensors, Bytes: r.Bytes, Body: uint32(len(r.Body))}
	h.Nref = uint16(len(r.Refs))
	if r.Spilled {
		h.Nref, h.Flags = 1, protocol.SlotSpilled
	}
	if r.Live {
		h.Flags |= protocol.SlotWritable | protocol.SlotLive
	}
	if was := n.setter; !n.set || was != s.Who() {
		ts.log.Debug("name set", events.Of(events.Name), "namespace", t.key.namespace, "name", t.key.name, "by", s.Who(),
			"revision", n.lane.View.Head()+1, "bytes", r.Bytes, "live", r.Live, "ephemeral", r.Ephemeral)
	}
	ts.publish(t, h, words, indices)
	if n.setter != s.Who() {
		ts.store.Record.Topic(t.index).SetSetter(s.Name, uint32(s.PID))
	}
	n.live, n.bytes, n.tensors, n.at, n.setter, n.setterPID = r.Live, r.Bytes, r.Tensors, time.Now(), s.Who(), s.PID
	n.agreed, n.foreign = protocol.Agreed{}, false
	ts.setEphemeral(t, s, r.Ephemeral)
	return protocol.NameSetReply{Revision: n.revision}, nil
}

// checkReplaces refuses a revision that is to replace one which is not set any more.
func (ts *Topics) checkReplaces(s *Party, r *protocol.NameSet) error {
	if r.Replaces == 0 {
		return nil
	}
	t := ts.named[topicKey{s.Namespace, r.Name, ofNames}]
	switch {
	case t == nil || !t.name.set:
		return protocol.Errorf(protocol.CodeConflict, "get it anew", "name %s is not set any more", r.Name)
	case t.name.revision != r.Replaces:
		return protocol.Errorf(protocol.CodeConflict, "get it anew", "name %s has revision %d by now, and not %d", r.Name, t.name.revision, r.Replaces)
	}
	return nil
}

// publish writes the next message of a name's lane, then lets go of the one
// before, then wakes the sessions that wait. The mirror comes last: each wake costs time, and
// what the mirror does then takes a processor.
func (ts *Topics) publish(t *Topic, h shm.SlotHead, words []uint64, indices []uint32) {
	n := t.name
	i := n.lane.View.Head() + 1
	crashpoint.At("broker-name-held")
	n.lane.View.Write(i, &h, words)
	n.lane.View.AddTotal(h.Bytes)
	n.lane.View.Publish(i)
	if n.set {
		crashpoint.At("broker-name-published")
		n.lane.View.Unname(n.revision)
		crashpoint.At("broker-name-unnamed")
		ts.memory.DropAll(n.indices)
	}
	n.set, n.revision, n.indices = true, i, indices
	ts.understood(n.lane)
	ts.setDeleted(t, false)
	shm.Fence() // SYNC waiting: after the publish
	ts.waits(t).All().Ring()
	ts.watch.Named(t)
}

func (ts *Topics) checkNameSet(r *protocol.NameSet) error {
	room := int(protocol.Stride(protocol.DefaultDescription)) - protocol.SlotSize
	switch {
	case r.Spilled && (len(r.Refs) == 0 || len(r.Body) > 0):
		return protocol.Errorf(protocol.CodeInvalid, "name the spill storage first, and leave the body out", "a spilled bundle without its storage, or with a body")
	case len(r.Refs) > protocol.MaxRefs+1:
		return protocol.Errorf(protocol.CodeInvalid, "pack tensors into fewer storages", "a bundle of %d storages", len(r.Refs))
	case !r.Spilled && len(r.Refs)*protocol.RefSize+len(r.Body) > room:
		return protocol.Errorf(protocol.CodeInvalid, "spill refs and body into a storage",
			"a bundle of %d storages and %d bytes does not fit in the %d of a slot", len(r.Refs), len(r.Body), room)
	}
	return protocol.CheckName(r.Name)
}

// holdRevision counts the storages of a revision up and returns them, with the
// words for the slot: refs and body, or the spill's ref alone.
func (ts *Topics) holdRevision(r *protocol.NameSet) (indices []uint32, words []uint64, err error) {
	defer func() {
		if err != nil {
			ts.memory.DropAll(indices)
		}
	}()
	for _, sr := range r.Refs {
		ref := protocol.Ref{Serial: sr.Serial, Generation: sr.Generation, Index: sr.Index}
		if err := ts.memory.Hold(ref); err != nil {
			return indices, nil, err
		}
		indices = append(indices, sr.Index)
		if !r.Spilled || len(indices) == 1 {
			words = shm.AppendRef(words, ref)
		}
	}
	if !r.Spilled {
		return indices, shm.AppendBytes(words, r.Body), nil
	}
	// A successor finds in the spill what to count: it must say the same.
	nested, err := ts.memory.ReadSpill(protocol.Ref{Serial: r.Refs[0].Serial, Index: r.Refs[0].Index})
	if err != nil {
		return indices, nil, err
	}
	same := len(nested) == len(r.Refs)-1
	for i := 0; same && i < len(nested); i++ {
		same = nested[i] == protocol.Ref{Serial: r.Refs[i+1].Serial, Generation: r.Refs[i+1].Generation, Index: r.Refs[i+1].Index}
	}
	if !same {
		return indices, nil, protocol.Errorf(protocol.CodeInvalid, "list the storages as they stand in the spill",
			"the spilled bundle names other storages than the request")
	}
	return indices, words, nil
}

// setEphemeral ties a name to its setter's end, or unties it.
func (ts *Topics) setEphemeral(t *Topic, s *Party, on bool) {
	if old := t.name.ephemeral; old != nil {
		delete(old.names, t)
		t.name.ephemeral = nil
	}
	serial := uint64(0)
	if on {
		t.name.ephemeral, serial = s, s.Serial
		s.names[t] = struct{}{}
	}
	ts.store.Record.Topic(t.index).SetEphemeral(serial)
}

func (ts *Topics) setDeleted(t *Topic, on bool) { ts.store.Record.Topic(t.index).SetDeleted(on) }

// DeleteName takes a name away, for whom by names; sessions that hold its tensors keep them.
func (ts *Topics) DeleteName(namespace string, r *protocol.NameRef, by string) error {
	t := ts.named[topicKey{namespace, r.Name, ofNames}]
	if t == nil || !t.name.set {
		return protocol.Errorf(protocol.CodeNotFound, "baton ls names lists what there is",
			"no name %q is set in namespace %s", r.Name, namespace)
	}
	ts.unset(t, by)
	crashpoint.At("broker-name-deleted")
	return nil
}

// unset un-names a name's revision. The topic stays while a session has it open.
func (ts *Topics) unset(t *Topic, by string) {
	n := t.name
	ts.setDeleted(t, true)
	n.lane.View.Unname(n.revision)
	ts.memory.DropAll(n.indices)
	n.set, n.indices = false, nil
	ts.log.Debug("name deleted", events.Of(events.Name), "namespace", t.key.namespace, "name", t.key.name, "revision", n.revision, "by", by)
	ts.understood(n.lane)
	ts.setEphemeral(t, nil, false)
	ts.watch.Named(t)
	ts.changed(t)
	for s := range t.members {
		s.client.Trim() // one that has it open from a read leaves it
	}
	ts.removeIfUnused(t)
}

// IsLive tells whether a live name has a storage that is held.
func (ts *Topics) IsLive(index uint32) bool {
	for _, t := range ts.named {
		if t.name != nil && t.name.set && t.name.live && slices.Contains(t.name.indices, index) {
			return true
		}
	}
	return false
}
