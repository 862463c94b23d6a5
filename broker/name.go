package broker

import (
	"time"

	"github.com/baton-ipc/baton/broker/pages"
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// name is what a topic of kind name has besides: the present revision, which the
// broker's row pays for. The topic's one lane lies in the broker's own file.
type name struct {
	lane      *lane
	set       bool // a revision stands in the lane
	revision  uint64
	live      bool
	ephemeral *session // its end deletes the name
	indices   []uint32 // counted up for the revision
	bytes     uint64
	tensors   uint16
	at        time.Time
	setter    string
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

func (r *nameRoom) take() (offset uint64, ok bool) {
	n, ok := r.Table.Take()
	return protocol.SessionLanes + uint64(n)*nameLane, ok
}

func (r *nameRoom) give(offset uint64) {
	r.Table.Give(uint32((offset - protocol.SessionLanes) / nameLane))
}

// nameTopic finds a name's topic, or makes one in which nothing is set yet.
func (b *Broker) nameTopic(s *session, text string) (*topic, error) {
	if err := protocol.CheckName(text); err != nil {
		return nil, err
	}
	key := topicKey{s.namespace, text, true}
	if t := b.named[key]; t != nil {
		return t, nil
	}
	t := &topic{key: key, kind: protocol.TopicKindName, creator: s.Name, depth: nameDepth,
		description: protocol.DefaultDescription, name: &name{}}
	if err := b.makeTopic(t); err != nil {
		return nil, err
	}
	if err := b.addNameLane(t); err != nil {
		b.removeTopic(t)
		return nil, err
	}
	return t, nil
}

func (b *Broker) addNameLane(t *topic) error {
	offset, ok := b.nameRoom.take()
	if !ok {
		return protocol.Errorf(protocol.CodeTooMany, "delete some", "the broker's file has no room for another name")
	}
	if err := b.store.Own.Session.FD.Reserve(int64(offset), nameLane); err != nil {
		b.nameRoom.give(offset)
		return pages.NoMemory(err, "a name")
	}
	view, err := shm.NewLane(b.store.Own.Session.Region, offset, t.slots, t.stride)
	if err != nil {
		b.nameRoom.give(offset)
		return err
	}
	view.Clear()
	view.Init(t.id)
	t.name.lane = &lane{topic: t, pages: b.store.Own, offset: offset, state: protocol.LaneLive, view: view}
	b.addLane(t.name.lane)
	b.changed(t)
	return nil
}

// opNameOpen opens a name, also one in which nothing is set yet.
func (b *Broker) opNameOpen(s *session, r *protocol.NameRef) (any, []*sys.FD, error) {
	t, err := b.nameTopic(s, r.Name)
	if err != nil {
		return nil, nil, err
	}
	return b.openTopic(s, t)
}

// opNameSet publishes a revision, or sets a live name. The setter holds what it
// names; the broker holds it in its own row before the lane names it.
func (b *Broker) opNameSet(s *session, r *protocol.NameSet) (any, []*sys.FD, error) {
	if err := b.checkNameSet(r); err != nil {
		return nil, nil, err
	}
	indices, words, err := b.holdRevision(r)
	if err != nil {
		return nil, nil, err
	}
	t, err := b.nameTopic(s, r.Name)
	if err != nil {
		b.memory.DropAll(indices)
		return nil, nil, err
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
	b.publish(t, h, words, indices)
	n.live, n.bytes, n.tensors, n.at, n.setter = r.Live, r.Bytes, r.Tensors, time.Now(), s.Name
	b.setEphemeral(t, s, r.Ephemeral)
	return protocol.NameSetReply{Revision: n.revision}, nil, nil
}

// publish writes the next message of a name's lane, then lets go of the one
// before, then wakes who waits. The mirror comes last: each wake costs time, and
// what the mirror does then takes a processor.
func (b *Broker) publish(t *topic, h shm.SlotHead, words []uint64, indices []uint32) {
	n := t.name
	i := n.lane.view.Head() + 1
	crashpoint.At("broker-name-held")
	n.lane.view.Write(i, &h, words)
	n.lane.view.Publish(i)
	if n.set {
		crashpoint.At("broker-name-published")
		n.lane.view.Unname(n.revision)
		crashpoint.At("broker-name-unnamed")
		b.memory.DropAll(n.indices)
	}
	n.set, n.revision, n.indices = true, i, indices
	b.understood(n.lane)
	b.setDeleted(t, false)
	b.ringWaiters(t)
	b.noteName(t)
}

// ringWaiters wakes those who read the topic and sleep.
func (b *Broker) ringWaiters(t *topic) {
	shm.Fence()
	for s, m := range t.members {
		if len(m.readers) > 0 {
			s.Ring()
		}
	}
}

func (b *Broker) checkNameSet(r *protocol.NameSet) error {
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
func (b *Broker) holdRevision(r *protocol.NameSet) (indices []uint32, words []uint64, err error) {
	defer func() {
		if err != nil {
			b.memory.DropAll(indices)
		}
	}()
	for _, sr := range r.Refs {
		ref := protocol.Ref{Serial: sr.Serial, Generation: sr.Generation, Index: sr.Index}
		if err := b.memory.Hold(ref); err != nil {
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
	nested, err := b.memory.ReadSpill(protocol.Ref{Serial: r.Refs[0].Serial, Index: r.Refs[0].Index})
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
func (b *Broker) setEphemeral(t *topic, s *session, on bool) {
	if old := t.name.ephemeral; old != nil {
		delete(old.names, t)
		t.name.ephemeral = nil
	}
	serial := uint64(0)
	if on {
		t.name.ephemeral, serial = s, s.Serial
		s.names[t] = struct{}{}
	}
	b.store.Record.Topic(t.index).SetEphemeral(serial)
}

func (b *Broker) setDeleted(t *topic, on bool) { b.store.Record.Topic(t.index).SetDeleted(on) }

// opNameDelete takes a name away; those who hold its tensors keep them.
func (b *Broker) opNameDelete(s *session, r *protocol.NameRef) (any, []*sys.FD, error) {
	t := b.named[topicKey{s.namespace, r.Name, true}]
	if t == nil || !t.name.set {
		return nil, nil, protocol.Errorf(protocol.CodeNotFound, "baton ls names lists what there is",
			"no name %q is set in namespace %s", r.Name, s.namespace)
	}
	b.unset(t)
	return done{}, nil, nil
}

// unset un-names a name's revision. The topic stays while somebody has it open.
func (b *Broker) unset(t *topic) {
	n := t.name
	b.setDeleted(t, true)
	n.lane.view.Unname(n.revision)
	b.memory.DropAll(n.indices)
	n.set, n.indices = false, nil
	b.understood(n.lane)
	b.setEphemeral(t, nil, false)
	b.noteName(t)
	b.changed(t)
	b.leftAlone(t)
}
