package topics

import (
	"slices"
	"time"

	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// A name that spans several hosts has revisions on which they agree. One that is set here is held until they have, and
// then published by the number that it got; one of another host is published when its bytes are here. The lane numbers
// its messages as ever; the agreed number stands in the slot.

// Holding are storages that the broker holds for something of which no record says so.
type Holding struct{ indices []uint32 }

func (ts *Topics) hold(indices []uint32) *Holding {
	h := &Holding{indices}
	ts.holdings[h] = struct{}{}
	return h
}

// take takes the references out of a holding.
func (ts *Topics) take(h *Holding) []uint32 {
	delete(ts.holdings, h)
	return h.indices
}

// HoldStorages holds storages until LetHolding.
func (ts *Topics) HoldStorages(all []protocol.Storage) (*Holding, error) {
	var indices []uint32
	for _, s := range all {
		if err := ts.memory.Hold(protocol.Ref{Serial: s.Serial, Generation: s.Generation, Index: s.Index}); err != nil {
			ts.memory.DropAll(indices)
			return nil, err
		}
		indices = append(indices, s.Index)
	}
	return ts.hold(indices), nil
}

// LetHolding ends it.
func (ts *Topics) LetHolding(h *Holding) { ts.memory.DropAll(ts.take(h)) }

// Pending is a revision that is held, and not published.
type Pending struct {
	party   *Party
	request protocol.NameSet
	held    *Holding
	words   []uint64
}

// Ephemeral tells whether the revision goes with its session.
func (p *Pending) Ephemeral() bool { return p.request.Ephemeral }

// HoldSet checks a revision of a session's and holds what it names, until PublishSet or DropSet.
func (ts *Topics) HoldSet(s *Party, r *protocol.NameSet) (*Pending, error) {
	if err := checkAgreedSet(r); err != nil {
		return nil, err
	}
	if err := ts.checkNameSet(r); err != nil {
		return nil, err
	}
	t, err := ts.nameTopic(s, r.Name) // now, since it is too late for a lack of room once hosts have agreed
	if err != nil {
		return nil, err
	}
	indices, words, err := ts.holdRevision(r)
	if err != nil {
		ts.removeIfUnused(t)
		return nil, err
	}
	t.name.pending++
	return &Pending{party: s, request: *r, held: ts.hold(indices), words: words}, nil
}

// checkAgreedSet leaves room in the slot for what hosts agree on.
func checkAgreedSet(r *protocol.NameSet) error {
	if n := len(r.Refs)*protocol.RefSize + len(r.Body); !r.Spilled && n > protocol.DefaultDescription {
		return protocol.Errorf(protocol.CodeInvalid, "spill refs and body into a storage", "a bundle of %d bytes does not fit in the %d of a slot", n, protocol.DefaultDescription)
	}
	return nil
}

// DropSet lets go of a revision that is not to be published.
func (ts *Topics) DropSet(p *Pending) {
	ts.LetHolding(p.held)
	ts.pendingEnded(p.party.Namespace, p.request.Name)
}

// pendingEnded lets the topic of a name go that waited for a revision.
func (ts *Topics) pendingEnded(namespace, name string) {
	if t := ts.named[topicKey{namespace, name, ofNames}]; t != nil {
		t.name.pending--
		ts.removeIfUnused(t)
	}
}

// PublishSet publishes a held revision by the number on which hosts have agreed. One that was replaced meanwhile by a newer
// one is let go.
func (ts *Topics) PublishSet(p *Pending, a protocol.Agreed) {
	t := ts.named[topicKey{p.party.Namespace, p.request.Name, ofNames}]
	if t == nil || t.name.agreed.Revision >= a.Revision {
		ts.DropSet(p)
		return
	}
	s := p.party
	ts.publishAgreed(t, &p.request, a, p.words, ts.take(p.held))
	n := t.name
	ts.store.Record.Topic(t.index).SetSetter(s.Name, uint32(s.PID))
	n.setter, n.setterPID, n.foreign = s.Who(), s.PID, false
	_, lives := ts.parties[s.SessionFile]
	ts.setEphemeral(t, s, p.request.Ephemeral && lives)
	if p.request.Ephemeral && !lives {
		ts.endEphemeral(t, "the end of its session")
	}
	ts.pendingEnded(s.Namespace, p.request.Name)
}

// publishAgreed is publish of what hosts have agreed on.
func (ts *Topics) publishAgreed(t *Topic, r *protocol.NameSet, a protocol.Agreed, words []uint64, indices []uint32) {
	h := shm.SlotHead{Stamp: sys.Monotonic(), Tensors: r.Tensors, Bytes: r.Bytes, Body: uint32(len(r.Body)), Nref: uint16(len(r.Refs)), Flags: protocol.SlotAgreed}
	if r.Spilled {
		h.Nref, h.Flags = 1, h.Flags|protocol.SlotSpilled
	}
	if r.Live {
		h.Flags |= protocol.SlotWritable | protocol.SlotLive
	}
	n := t.name
	n.agreed = a
	crashpoint.At("broker-name-agreed")
	ts.publish(t, h, slices.Insert(words, 3*int(h.Nref), a.Revision, a.Age, a.Bucket), indices)
	n.live, n.bytes, n.tensors, n.at = r.Live, r.Bytes, r.Tensors, time.Now().Add(-time.Duration(min(a.Age, 1<<62)))
}

// PublishFar publishes a revision of another host, whose storages are here, for the sessions that have the name open. It
// is no error if none has, or if a newer one stands there.
func (ts *Topics) PublishFar(namespace string, r *protocol.NameSet, a protocol.Agreed, setter string) error {
	if err := checkAgreedSet(r); err != nil {
		return err
	}
	if err := ts.checkNameSet(r); err != nil {
		return err
	}
	t := ts.named[topicKey{namespace, r.Name, ofNames}]
	if t == nil || t.name.agreed.Revision >= a.Revision {
		return nil
	}
	indices, words, err := ts.holdRevision(r)
	if err != nil {
		return err
	}
	ts.publishAgreed(t, r, a, words, indices)
	ts.store.Record.Topic(t.index).SetSetter(setter, 0)
	t.name.setter, t.name.setterPID, t.name.foreign = setter, 0, true
	ts.setEphemeral(t, nil, false)
	return nil
}

// UnsetAgreed takes a name away that was deleted after a revision on which hosts had agreed. before is the number of the
// deletion; a newer revision stays.
func (ts *Topics) UnsetAgreed(namespace, name string, before uint64, by string) {
	t := ts.named[topicKey{namespace, name, ofNames}]
	if t == nil || t.name.agreed.Revision >= before {
		return
	}
	t.name.agreed.Revision = before
	if t.name.set {
		ts.unset(t, by)
	}
}

// EvictAgreed lets a revision go that no session here has open, and tells how many bytes it named: one that came from
// another host, or any if it was replaced there.
func (ts *Topics) EvictAgreed(namespace, name string, replaced bool) (bytes uint64) {
	t := ts.named[topicKey{namespace, name, ofNames}]
	if t == nil || !t.name.set || !t.name.foreign && !replaced || len(t.members) > 0 || t.name.pending > 0 {
		return 0
	}
	bytes = t.name.bytes
	why := "the broker: its room was needed, and it is on another host"
	if replaced {
		why = "another host, which has set it"
	}
	ts.unset(t, why)
	return bytes
}

// AgreedName is what stands here of a name on which hosts agree.
type AgreedName struct {
	Agreed  protocol.Agreed // of the newest revision, or of the deletion; Revision 0: of none
	Set     bool
	Open    bool // a session has it open
	Foreign bool // the revision came from another host
	Live    bool
	Bytes   uint64
	Tensors uint16
}

// Agreed tells what stands here of a name.
func (ts *Topics) Agreed(namespace, name string) (a AgreedName) {
	if t := ts.named[topicKey{namespace, name, ofNames}]; t != nil {
		a = AgreedName{Agreed: t.name.agreed, Set: t.name.set, Open: len(t.members) > 0, Foreign: t.name.foreign, Live: t.name.live, Bytes: t.name.bytes, Tensors: t.name.tensors}
		if a.Set {
			a.Agreed.Age = uint64(max(time.Since(t.name.at), 0))
		}
	}
	return a
}

// EachAgreed gives the names of a namespace of which hosts have agreed on something.
func (ts *Topics) EachAgreed(namespace string, each func(name string, a AgreedName)) {
	for key, t := range ts.named {
		if key.space == ofNames && key.namespace == namespace && t.name.agreed.Revision > 0 {
			each(key.name, ts.Agreed(namespace, key.name))
		}
	}
}

// AgreedNamespaces are those with names on which hosts have agreed.
func (ts *Topics) AgreedNamespaces() (all []string) {
	for key, t := range ts.named {
		if key.space == ofNames && t.name.agreed.Revision > 0 && !slices.Contains(all, key.namespace) {
			all = append(all, key.namespace)
		}
	}
	return all
}

// Renumber publishes the present revision of a name anew, by another number on which hosts have agreed.
func (ts *Topics) Renumber(namespace, name string, a protocol.Agreed) {
	t := ts.named[topicKey{namespace, name, ofNames}]
	if t == nil || !t.name.set || t.name.agreed.Revision >= a.Revision {
		return
	}
	n := t.name
	h, words, ok := n.lane.View.Read(n.revision, nil)
	if !ok || h.Flags&protocol.SlotAgreed == 0 {
		return
	}
	for i, index := range n.indices { // they are held already, so nothing can be recycled
		if err := ts.store.Own.Refcounts.Take(index); err != nil {
			ts.memory.DropAll(n.indices[:i])
			return
		}
	}
	at := 3 * int(h.Nref)
	words = slices.Replace(slices.Clone(words), at, at+protocol.AgreedSize/8, a.Revision, a.Age, a.Bucket)
	h.Stamp = sys.Monotonic()
	n.agreed = a
	ts.publish(t, h, words, slices.Clone(n.indices))
	n.at = time.Now().Add(-time.Duration(min(a.Age, 1<<62)))
}

// SetStale notes whether a newer revision of a name may be set on another host.
func (ts *Topics) SetStale(namespace, name string, on bool) {
	if t := ts.named[topicKey{namespace, name, ofNames}]; t != nil && t.name.stale != on {
		t.name.stale = on
		ts.store.Record.Topic(t.index).SetStale(on)
	}
}

// NamesHold tells whether the present revision of a name of a namespace has a storage that is held.
func (ts *Topics) NamesHold(namespace string, index uint32) bool {
	for key, t := range ts.named {
		if key.space == ofNames && key.namespace == namespace && t.name.set && slices.Contains(t.name.indices, index) {
			return true
		}
	}
	return false
}

// FindName finds a name's topic; nil if there is none.
func (ts *Topics) FindName(namespace, name string) *Topic {
	return ts.named[topicKey{namespace, name, ofNames}]
}

// IsForeign tells whether the present revision of a name came from another host.
func (t *Topic) IsForeign() bool { return t.name.foreign }

// endEphemeral takes a name away that goes with its session, here and on other hosts.
func (ts *Topics) endEphemeral(t *Topic, by string) {
	if agreed := t.name.agreed.Revision; agreed != 0 {
		ts.watch.EndedAgreed(t.key.namespace, t.key.name, agreed)
	}
	ts.unset(t, by)
}

// number is that of the present revision, for its readers.
func (n *name) number() uint64 {
	if n.set && n.agreed.Revision != 0 {
		return n.agreed.Revision
	}
	return n.revision
}

// restoreAgreed reads what hosts had agreed of the revision in a slot.
func (ts *Topics) restoreAgreed(t *Topic, h *shm.SlotHead, words []uint64) {
	n := t.name
	if n.agreed = (protocol.Agreed{}); h.Flags&protocol.SlotAgreed == 0 {
		return
	}
	n.agreed = h.Agreed(words)
	n.at = n.at.Add(-time.Duration(min(n.agreed.Age, 1<<62)))
	n.foreign = n.setterPID == 0 && ts.store.Record.Topic(t.index).Load().Setter == 0
	n.stale = true // until its hosts have answered
	ts.store.Record.Topic(t.index).SetStale(true)
	ts.log.Debug("a name that spans hosts was taken over", events.Of(events.Name), "namespace", t.key.namespace, "name", t.key.name, "revision", n.agreed.Revision)
}
