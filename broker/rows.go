package broker

import (
	"strings"
	"time"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// SessionRow is a row of the listing `sessions`.
type SessionRow struct {
	Slot        uint32    `json:"slot"`
	Serial      uint64    `json:"serial"`
	Name        string    `json:"name"`
	PID         int       `json:"pid"`
	UID         uint32    `json:"uid"`
	Language    string    `json:"language"`
	Version     string    `json:"version,omitempty"`
	Namespace   string    `json:"namespace"`
	State       string    `json:"state"` // live, disconnected
	ConnectedAt time.Time `json:"connected_at"`
	Held        uint64    `json:"held_bytes"`    // of storages that its row counts
	Granted     uint64    `json:"granted_bytes"` // of its segments
}

// TopicRow is a row of the listing `topics`: topics and queues.
type TopicRow struct {
	Topic       uint32  `json:"topic"`
	ID          uint64  `json:"id"`
	Name        string  `json:"name"` // "" of a private one
	Kind        string  `json:"kind"`
	Namespace   string  `json:"namespace"`
	State       string  `json:"state"` // open, closed, lingering
	Depth       uint32  `json:"depth"`
	Overwrite   bool    `json:"overwrite"`
	Redeliver   bool    `json:"redeliver"`
	Description uint32  `json:"description"`
	Linger      float64 `json:"linger"`
	Creator     string  `json:"creator"`
	Writers     int     `json:"writers"`
	Readers     int     `json:"readers"`
	Openers     int     `json:"openers"` // sessions that have it open
	Groups      int     `json:"groups"`
	Kept        int     `json:"kept"`    // messages
	Adopted     int     `json:"adopted"` // of them, those of ended sessions
}

// NameRow is a row of the listing `names`.
type NameRow struct {
	Name      string  `json:"name"`
	Namespace string  `json:"namespace"`
	Revision  uint64  `json:"revision"`
	Live      bool    `json:"live"`
	Ephemeral bool    `json:"ephemeral"`
	Tensors   uint16  `json:"tensors"`
	Bytes     uint64  `json:"bytes"`
	Age       float64 `json:"age_seconds"`
	Setter    string  `json:"setter"`
	Readers   int     `json:"readers"`
}

// SegmentRow is a row of the listing `segments`.
type SegmentRow struct {
	Segment  uint32  `json:"segment"`
	Serial   uint64  `json:"serial"`
	Bytes    uint64  `json:"bytes"`
	Kind     string  `json:"kind"`             // memfd, file, hugetlb, cuda, borrowed
	Device   string  `json:"device,omitempty"` // of memory that is not the machine's
	State    string  `json:"state"`            // granted, orphan
	Owner    string  `json:"owner"`
	PID      int     `json:"pid"`
	Chunks   int     `json:"chunks"`
	Storages int     `json:"storages"` // held by anybody
	Age      float64 `json:"age_seconds"`
}

// StorageRow is a row of the listing `storages`: those that anybody holds.
type StorageRow struct {
	Index      uint32      `json:"index"`
	Serial     uint64      `json:"serial"` // of the chunk
	Generation uint64      `json:"generation"`
	Segment    uint32      `json:"segment"`
	Offset     uint64      `json:"offset"`
	Bytes      uint64      `json:"bytes"`
	Age        float64     `json:"age_seconds"`
	Creator    string      `json:"creator"`
	CreatorPID int         `json:"creator_pid"`
	Orphan     bool        `json:"orphan,omitempty"` // its creator has ended
	Holders    []HolderRow `json:"holders"`
	Trace      string      `json:"trace,omitempty"` // where it was made, when tracing is on
}

// HolderRow is one row's count of a storage.
type HolderRow struct {
	Session string `json:"session"`
	Slot    uint32 `json:"slot"`
	PID     int    `json:"pid,omitempty"`
	Count   uint64 `json:"count"`
}

// LeaseRow is a row of the listing `leases`.
type LeaseRow struct {
	Lease     uint64   `json:"lease"`
	Maker     string   `json:"maker"`
	Storages  []uint32 `json:"storages"`
	Once      bool     `json:"once"`
	ExpiresIn *float64 `json:"expires_in"` // null: with its session
}

func (b *Broker) sessionRow(_ *session, i int, match func(string) bool) (any, int) {
	s := b.slots[i]
	if s == nil || !match(s.name) {
		return nil, 0
	}
	state := "live"
	if s.state == protocol.SessionDisconnected {
		state = "disconnected"
	}
	return SessionRow{Slot: s.slot, Serial: s.serial, Name: s.name, PID: s.pid, UID: s.uid,
		Language: languageName(s.language), Version: s.version, Namespace: s.namespace, State: state,
		ConnectedAt: s.connectedAt, Held: b.heldBytes(s), Granted: s.allGranted()}, 64
}

func (b *Broker) topicRow(s *session, i int, match func(string) bool) (any, int) {
	t := b.topics[i]
	if t == nil || t.kind == protocol.TopicKindName || t.key.namespace != s.namespace || !match(t.key.name) {
		return nil, 0
	}
	r := TopicRow{Topic: t.index, ID: t.id, Name: t.key.name, Kind: kindName(t.kind), Namespace: t.key.namespace,
		State: "open", Depth: t.depth, Overwrite: !t.lossless, Redeliver: t.redeliver, Description: t.description,
		Linger: t.linger.Seconds(), Creator: t.creator, Openers: len(t.members)}
	switch {
	case t.closed:
		r.State = "closed"
	case len(t.members) == 0:
		r.State = "lingering"
	}
	for _, m := range t.members {
		r.Readers += len(m.readers)
	}
	for _, g := range t.groups {
		if g != nil {
			r.Groups++
		}
	}
	cost := 1
	for _, l := range t.lanes {
		kept := 0
		for k := uint64(0); l.pages.there() && k < l.view.Slots(); k++ {
			if l.view.Seq(k) != 0 {
				kept++
			}
		}
		cost += int(t.slots / 16)
		r.Kept += kept
		if l.state == protocol.LaneAdopted {
			r.Adopted += kept
		} else {
			r.Writers++
		}
	}
	return r, cost
}

func (b *Broker) nameRow(s *session, i int, match func(string) bool) (any, int) {
	t := b.topics[i]
	if t == nil || t.name == nil || !t.name.set || t.key.namespace != s.namespace || !match(t.key.name) {
		return nil, 0
	}
	n := t.name
	r := NameRow{Name: t.key.name, Namespace: t.key.namespace, Revision: n.revision, Live: n.live, Ephemeral: n.ephemeral != nil,
		Tensors: n.tensors, Bytes: n.bytes, Age: time.Since(n.at).Seconds(), Setter: n.setter}
	for _, m := range t.members {
		r.Readers += len(m.readers)
	}
	return r, 1
}

func kindOfSegment(kind uint32) string {
	switch kind {
	case protocol.KindMemfd:
		return "memfd"
	case protocol.KindFile:
		return "file"
	case protocol.KindHugePages:
		return "hugetlb"
	case protocol.KindCUDA:
		return "cuda"
	case protocol.KindCUDALegacy:
		return "borrowed"
	default:
		return "other"
	}
}

func (b *Broker) segmentRow(_ *session, i int, match func(string) bool) (any, int) {
	g := b.segments[i]
	if g == nil || !match(g.owner.name) {
		return nil, 0
	}
	r := SegmentRow{Segment: g.index, Serial: g.serial, Bytes: g.bytes, Kind: kindOfSegment(g.kind), State: "granted",
		Owner: g.owner.name, PID: g.owner.pid, Chunks: len(g.chunks), Age: time.Since(g.made).Seconds()}
	if g.holder == nil {
		r.State = "orphan"
	}
	if g.device != nil {
		r.Device = g.device.name
	}
	for _, c := range g.chunks {
		r.Storages += b.heldStorages(c)
	}
	return r, 16 * len(g.chunks)
}

// storageRow's cost of 0 says that the whole chunk has nothing to show.
func (b *Broker) storageRow(_ *session, i int, match func(string) bool) (any, int) {
	c := b.chunkOf[i/protocol.ChunkIndices]
	if c == nil || !match(c.segment.owner.name) || i%protocol.ChunkIndices == 0 && b.heldStorages(c) == 0 {
		return nil, 0
	}
	index := uint32(i)
	var holders []HolderRow
	cost := 1
	b.chunks.EachAttached(c.index, func(slot uint32) bool {
		cost++
		if row, ok := b.rowOf(slot); ok {
			if n := row.Count(index); n != 0 {
				h := HolderRow{Slot: slot, Count: n, Session: b.own.name, PID: b.own.pid}
				if s := b.slots[slot]; s != nil {
					h.Session, h.PID = s.name, s.pid
				}
				holders = append(holders, h)
			}
		}
		return true
	})
	if holders == nil {
		return nil, cost
	}
	owner := c.segment.owner
	if !owner.there() {
		return StorageRow{Index: index, Serial: c.serial, Segment: c.segment.index, Creator: owner.name,
			CreatorPID: owner.pid, Orphan: c.segment.holder == nil, Holders: holders}, cost
	}
	e := owner.entries.Load(index)
	now := sys.Monotonic()
	return StorageRow{Index: index, Serial: c.serial, Generation: e.Generation, Segment: c.segment.index,
		Offset: jsonNumber(e.Offset), Bytes: jsonNumber(e.Bytes), Age: float64(now-min(now, e.MadeAt)) / 1e9,
		Creator: owner.name, CreatorPID: owner.pid, Orphan: c.segment.holder == nil,
		Holders: holders, Trace: owner.trace(index)}, cost
}

// jsonNumber bounds what an owner wrote to what JSON readers keep exact.
func jsonNumber(n uint64) uint64 { return min(n, 1<<53-1) }

// trace returns where a storage was made, if its owner says so.
func (p *pages) trace(index uint32) string {
	if p.session.region.Load32(protocol.SessionTraceOn) != 1 {
		return ""
	}
	var text [protocol.TraceSize]byte
	copy(text[:], p.session.region.Bytes(protocol.SessionTraces+uint64(index)*protocol.TraceSize, protocol.TraceSize))
	s, _, _ := strings.Cut(string(text[:]), "\x00")
	return printable(s, protocol.TraceSize+1)
}

func (l *lease) row() LeaseRow {
	r := LeaseRow{Lease: l.id, Maker: l.maker, Once: l.once, Storages: []uint32{}}
	for _, ref := range l.refs {
		r.Storages = append(r.Storages, ref.Index)
	}
	if l.expires != 0 {
		now := sys.Monotonic()
		left := float64(l.expires-min(l.expires, now)) / 1e9
		r.ExpiresIn = &left
	}
	return r
}
