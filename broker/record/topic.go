package record

import (
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// In a TopicRecord, only for brokers.
const (
	topicEphemeral   = 976 // u64 serial of the session whose end deletes the name
	topicDescription = 984 // u32 as asked for
	topicSetter      = 988 // u32 pid of the process that set a name's revision; its session's name is the creator's
	topicHolder      = 992 // u64 family, u64 user: of its creator

	topicTextBytes = 64
)

// Topic is a copy of the head of a TopicRecord; its groups and lanes have views of
// their own.
type Topic struct {
	ID          uint64
	State       uint32
	Kind        uint32
	Flags       uint32
	Depth       uint32
	Slots       uint32
	Stride      uint32
	Description uint32
	MadeAt      uint64 // ns, CLOCK_REALTIME
	Linger      uint64 // ns
	Name        string
	Namespace   string
	Creator     string   // of a name: the session that set its revision
	Setter      uint32   // pid of that session's process
	Token       [16]byte // of a private one
	Ephemeral   uint64   // serial of the session whose end deletes the name
	Gone        uint64   // messages that were sent in lanes that are no more
	GoneBytes   uint64   // of their tensors
	Holder      Holder   // of its creator
}

// TopicView stands for one TopicRecord.
type TopicView struct {
	f File
	i uint32
	r shm.Region
}

// Topic views a record of the table of topics.
func (f File) Topic(i uint32) TopicView {
	p := TopicPlace(i)
	return TopicView{f, i, f.r.Sub(p.At, p.Bytes)}
}

// ID returns the topic's id, 0 when the record is free.
func (v TopicView) ID() uint64 { return v.r.Load64(protocol.TopicID) }

// Load copies the head of the record.
func (v TopicView) Load() Topic {
	t := Topic{
		ID: v.ID(), State: v.r.Load32(protocol.TopicState), Kind: v.r.Load32(protocol.TopicKind),
		Flags: v.r.Load32(protocol.TopicFlags), Depth: v.r.Load32(protocol.TopicDepth),
		Slots: v.r.Load32(protocol.TopicSlots), Stride: v.r.Load32(protocol.TopicStride),
		Description: v.r.Load32(topicDescription), Setter: v.r.Load32(topicSetter),
		MadeAt: v.r.Load64(protocol.TopicMadeAt), Linger: v.r.Load64(protocol.TopicLinger),
		Name:      text(v.r, protocol.TopicName, protocol.TopicNameBytes),
		Namespace: text(v.r, protocol.TopicNamespace, topicTextBytes), Creator: text(v.r, protocol.TopicCreator, topicTextBytes),
		Gone: v.r.Load64(protocol.TopicGone), GoneBytes: v.r.Load64(protocol.TopicGoneBytes), Ephemeral: v.r.Load64(topicEphemeral), Holder: loadHolder(v.r, topicHolder),
	}
	copy(t.Token[:], v.r.Bytes(protocol.TopicToken, 16))
	return t
}

// Begin makes the record ready for groups and lanes, while its id is still 0. The
// version goes on from that of the topic that had the record before, though the record's pages
// may have been given back since.
func (v TopicView) Begin() {
	v.f.markUsed(protocol.BrokerTopicsEnd, v.i)
	v.r.Store64(protocol.TopicID, 0)
	v.r.Store64(protocol.TopicVersion, laterVersions(v.versions(), v.f.r.Load64(headVersion)))
	v.clear()
}

// clear makes zeros of everything but the version. Lanes behind the last one that was
// used have no pages, and are zeros.
func (v TopicView) clear() {
	clear(v.r.Bytes(protocol.TopicLanes, uint64(v.UsedLanes())*protocol.LaneRecordSize))
	clear(v.r.Bytes(protocol.TopicID, protocol.TopicLanes-protocol.TopicID))
}

// Store writes the head of the record, the id last. Groups and lanes stay.
func (v TopicView) Store(t Topic) {
	v.r.Store64(protocol.TopicID, 0)
	v.r.Store32(protocol.TopicState, t.State)
	v.r.Store32(protocol.TopicKind, t.Kind)
	v.r.Store32(protocol.TopicFlags, t.Flags)
	v.r.Store32(protocol.TopicDepth, t.Depth)
	v.r.Store32(protocol.TopicSlots, t.Slots)
	v.r.Store32(protocol.TopicStride, t.Stride)
	v.r.Store64(protocol.TopicMadeAt, t.MadeAt)
	v.r.Store64(protocol.TopicLinger, t.Linger)
	v.r.Store32(topicDescription, t.Description)
	v.r.Store64(topicEphemeral, t.Ephemeral)
	t.Holder.store(v.r, topicHolder)
	copy(v.r.Bytes(protocol.TopicToken, 16), t.Token[:])
	putText(v.r, protocol.TopicName, protocol.TopicNameBytes, t.Name)
	putText(v.r, protocol.TopicNamespace, topicTextBytes, t.Namespace)
	putText(v.r, protocol.TopicCreator, topicTextBytes, t.Creator)
	v.r.Store64(protocol.TopicID, t.ID)
}

// Free makes the record free, and its groups and lanes with it. The version stays.
func (v TopicView) Free() {
	v.r.Store64(protocol.TopicID, 0)
	v.clear()
}

// KeepVersion notes the version of a record that is free, so that its pages may be
// given back.
func (v TopicView) KeepVersion() {
	v.f.r.Store64(headVersion, laterVersions(v.versions(), v.f.r.Load64(headVersion)))
}

// laterVersions takes the higher one of each of two counts, which share a word.
func laterVersions(a, b uint64) uint64 {
	return uint64(max(uint32(a), uint32(b))) | uint64(max(uint32(a>>32), uint32(b>>32)))<<32
}

// versions is both counts: a sender compares them by one load.
func (v TopicView) versions() uint64 { return v.r.Load64(protocol.TopicVersion) }

// RaiseLanesVersion notes that lanes of the topic have changed. The broker alone writes
// the word, and one goroutine at a time.
//
// SYNC topic-version: the change is visible before the version is.
func (v TopicView) RaiseLanesVersion() {
	both := v.versions()
	v.r.Store64(protocol.TopicVersion, both&^0xffffffff|uint64(uint32(both)+1))
}

// RaiseReadersVersion notes that readers or groups of the topic have changed.
//
// SYNC topic-version: as RaiseLanesVersion.
func (v TopicView) RaiseReadersVersion() { v.r.Store64(protocol.TopicVersion, v.versions()+1<<32) }

// SetLinger changes for how many nanoseconds the topic stays once no session has it open.
func (v TopicView) SetLinger(ns uint64) { v.r.Store64(protocol.TopicLinger, ns) }

// SetState changes the topic's state alone.
func (v TopicView) SetState(state uint32) { v.r.Store32(protocol.TopicState, state) }

// Delete makes a topic one with a token, which goes with its last user. Its name stays in the
// record, for listings.
func (v TopicView) Delete(token [16]byte) {
	copy(v.r.Bytes(protocol.TopicToken, 16), token[:])
	v.r.Store64(protocol.TopicLinger, 0)
	v.r.Store32(protocol.TopicFlags, v.r.Load32(protocol.TopicFlags)|protocol.TopicPrivate|protocol.TopicDeleted)
}

// Deleted tells whether a name was deleted.
func (v TopicView) Deleted() bool {
	return v.r.Load32(protocol.TopicFlags)&protocol.TopicDeleted != 0
}

// SetDeleted notes that a name was deleted, or is set anew.
func (v TopicView) SetDeleted(on bool) {
	flags := v.r.Load32(protocol.TopicFlags) &^ protocol.TopicDeleted
	if on {
		flags |= protocol.TopicDeleted
	}
	v.r.Store32(protocol.TopicFlags, flags)
}

// SetStale notes whether a newer revision of a name may be set on another host.
func (v TopicView) SetStale(on bool) {
	flags := v.r.Load32(protocol.TopicFlags) &^ protocol.TopicStale
	if on {
		flags |= protocol.TopicStale
	}
	v.r.Store32(protocol.TopicFlags, flags)
}

// Ephemeral returns the serial of the session whose end deletes the name, or 0.
func (v TopicView) Ephemeral() uint64 { return v.r.Load64(topicEphemeral) }

// SetEphemeral notes it.
func (v TopicView) SetEphemeral(session uint64) { v.r.Store64(topicEphemeral, session) }

// SetSetter notes which session, of which process, has set a name's revision.
func (v TopicView) SetSetter(name string, pid uint32) {
	v.r.Store32(topicSetter, 0)
	putText(v.r, protocol.TopicCreator, topicTextBytes, name)
	v.r.Store32(topicSetter, pid)
}

// UsedLanes returns the number behind the highest lane.
func (v TopicView) UsedLanes() uint32 {
	return min(v.r.Load32(protocol.TopicLanesEnd), protocol.MaxLanes)
}

// SetUsedLanes lowers it, after the lanes behind were freed.
func (v TopicView) SetUsedLanes(n uint32) { v.r.Store32(protocol.TopicLanesEnd, n) }

// SetUsedGroups is as SetUsedLanes.
func (v TopicView) SetUsedGroups(n uint32) { v.r.Store32(protocol.TopicGroupsEnd, n) }

// SetGone notes how many messages, of how many bytes, were sent in lanes that are no more.
func (v TopicView) SetGone(n, bytes uint64) {
	v.r.Store64(protocol.TopicGoneBytes, bytes)
	v.r.Store64(protocol.TopicGone, n)
}

// SetLastLeft notes the name of the session that left last, for messages of timeouts.
func (v TopicView) SetLastLeft(name string) {
	putText(v.r, protocol.TopicLastLeft, protocol.SessionNameBytes, name)
}

// LastLeft returns the name of that session, "" if none has left.
func (v TopicView) LastLeft() string {
	return text(v.r, protocol.TopicLastLeft, protocol.SessionNameBytes)
}

// SetReader marks a session slot as one that reads the topic, or not.
func (v TopicView) SetReader(slot uint32, on bool) {
	at := protocol.TopicReaders + uint64(slot/64)*8
	if on {
		v.r.Or64(at, 1<<(slot%64))
	} else {
		v.r.And64(at, ^uint64(1<<(slot%64)))
	}
}

// ClearReaders marks no session.
func (v TopicView) ClearReaders() {
	for w := range uint64(protocol.BitmapWords) {
		v.r.Store64(protocol.TopicReaders+w*8, 0)
	}
}
