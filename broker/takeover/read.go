package takeover

import (
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/protocol"
)

// Read returns what the records and the broker's own refcounts say. The caller adds what is known of
// processes and files, and what stands in lanes.
func Read(f record.File, refcounts handles.Refcounts) Facts {
	facts := Facts{Refcounts: map[uint32]uint64{}}
	for slot := uint32(1); slot < f.UsedSessions(); slot++ {
		if f.Session(slot).Serial() == 0 {
			continue
		}
		s := f.Session(slot).Load()
		facts.Sessions = append(facts.Sessions, Session{Slot: slot, Serial: s.Serial, Marked: s.State == protocol.SessionDead,
			Closed: s.State == protocol.SessionClosed && s.Evicted != record.EvictionUnread, Answered: s.Answered})
	}
	for i := range f.UsedRemains() {
		if r := f.Remains(i).Load(); r.Serial != 0 {
			facts.Remains = append(facts.Remains, Remains{Index: i, Serial: r.Serial})
		}
	}
	for i := range f.UsedSegments() {
		if f.Segment(i).Serial() == 0 {
			continue
		}
		g := f.Segment(i).Load()
		facts.Segments = append(facts.Segments, Segment{Index: i, Serial: g.Serial, OwnerSerial: g.OwnerSerial,
			Orphan: g.State == protocol.SegmentOrphan, Device: g.OnDevice()})
	}
	facts.readChunks(f, refcounts)
	for i := range f.UsedTopics() {
		if f.Topic(i).ID() != 0 {
			facts.readTopic(f, i)
		}
	}
	for i := range f.UsedLeases() {
		if l := f.Lease(i).Load(); l.ID != 0 {
			facts.Leases = append(facts.Leases, Lease{Index: i, Session: l.Session, Timed: l.Expires != 0, Ref: l.Ref})
		}
	}
	for i := range f.UsedJoins() {
		j := f.Join(i).Load()
		if j.Session == 0 {
			continue
		}
		known := j.Topic < protocol.MaxTopics && f.Topic(j.Topic).ID() == j.TopicID
		if j.Member == 0 || j.Group > protocol.MaxGroups {
			j.Group = 0
		}
		facts.Joins = append(facts.Joins, Join{Index: i, Session: j.Session, Topic: j.Topic, Known: known, Group: j.Group})
	}
	return facts
}

// readChunks reads the refcounts only where anything was ever counted: they have no pages elsewhere.
func (f *Facts) readChunks(file record.File, refcounts handles.Refcounts) {
	chunks := file.Chunks()
	for i := range file.UsedChunks() {
		v := chunks.Load(i)
		c := Chunk{Index: i, Serial: v.Serial, Segment: v.Segment, SegmentSerial: v.SegmentSerial}
		chunks.EachAttached(i, func(slot uint32) bool {
			c.Attached = append(c.Attached, slot)
			return true
		})
		if c.Serial == 0 && c.Attached == nil {
			continue
		}
		f.Chunks = append(f.Chunks, c)
		for k := range uint32(protocol.ChunkIndices) {
			if n := refcounts.Count(i*protocol.ChunkIndices + k); n != 0 {
				f.Refcounts[i*protocol.ChunkIndices+k] = n
			}
		}
	}
}

func (f *Facts) readTopic(file record.File, i uint32) {
	view := file.Topic(i)
	t := view.Load()
	for n := range uint32(protocol.MaxGroups) {
		if view.Group(n).ID() != 0 {
			f.Groups = append(f.Groups, Group{Topic: i, Number: n, Queue: t.Kind == protocol.TopicKindQueue || t.Kind == protocol.TopicKindFunction})
		}
	}
	for n := range view.UsedLanes() {
		if view.Lane(n).Serial() == 0 {
			continue
		}
		l := view.Lane(n).Load()
		f.Lanes = append(f.Lanes, Lane{Topic: i, Number: n, Incarnation: l.Incarnation, Serial: l.Serial, State: l.State,
			Name: t.Kind == protocol.TopicKindName, Deleted: t.Flags&protocol.TopicDeleted != 0, Ephemeral: t.Ephemeral})
	}
}

// Apply carries out a repair of the record or of the broker's refcounts. It returns false for repairs
// that need more: slots of lanes, the time, and the end of dead sessions.
func Apply(f record.File, refcounts handles.Refcounts, r Repair) bool {
	switch r := r.(type) {
	case KeepChunk:
		f.SetChunkSerial(r.Chunk, f.Chunks().Serial(r.Chunk)&^Retiring)
	case FreeChunk:
		f.SetChunkSerial(r.Chunk, 0)
	case Detach:
		f.Chunks().Detach(r.Chunk, r.Slot)
	case FreeRemains:
		f.Remains(r.Index).Free()
	case FreeLane:
		f.Topic(r.Topic).Lane(r.Lane).Free()
	case FreeJoin:
		f.Join(r.Index).Free()
	case FreeGroup:
		f.Topic(r.Topic).Group(r.Group).Free()
	case FreeLease:
		f.Lease(r.Index).Free()
	case DeleteName:
		f.Topic(r.Topic).SetDeleted(true)
	case OrphanSegment:
		f.Segment(r.Segment).SetOrphan()
	case MarkDead:
		f.Session(r.Slot).SetState(protocol.SessionDead)
	case Raise:
		for refcounts.Count(r.Index) < r.To && refcounts.Take(r.Index) == nil { // MODEL lanes:rebuild-raise
		}
	case Lower:
		for refcounts.Count(r.Index) > r.To { // MODEL lanes:rebuild-lower
			refcounts.Drop(r.Index)
		}
	default:
		return false
	}
	return true
}
