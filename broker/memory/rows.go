package memory

import (
	"math/bits"
	"slices"
	"time"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// SegmentRow is a row of the listing `segments`.
type SegmentRow struct {
	Segment uint32 `json:"segment"`
	Serial  uint64 `json:"serial"`
	Bytes   uint64 `json:"bytes"`
	Kind    string `json:"kind"`             // memfd, file, hugetlb, cuda, borrowed
	Device  string `json:"device,omitempty"` // of memory that is not the machine's
	State   string `json:"state"`            // granted, orphan
	Owner   string `json:"owner"`
	PID     int    `json:"pid"`
	// OwnerSerial is that of the session.
	OwnerSerial uint64  `json:"owner_serial"`
	Chunks      int     `json:"chunks"`
	Storages    int     `json:"storages"` // that any holder counts
	Age         float64 `json:"age_seconds"`
}

// StorageRow is a row of the listing `storages`: those that any holder counts.
type StorageRow struct {
	Index      uint32  `json:"index"`
	Serial     uint64  `json:"serial"` // of the chunk
	Generation uint64  `json:"generation"`
	Segment    uint32  `json:"segment"`
	Offset     uint64  `json:"offset"`
	Bytes      uint64  `json:"bytes"`
	Age        float64 `json:"age_seconds"`
	Creator    string  `json:"creator"`
	CreatorPID int     `json:"creator_pid"`
	// CreatorSerial is that of the session.
	CreatorSerial uint64      `json:"creator_serial"`
	Orphan        bool        `json:"orphan,omitempty"` // its creator has ended
	Holders       []HolderRow `json:"holders"`
	Trace         string      `json:"trace,omitempty"` // where it was made, when tracing is on
}

// HolderRow is one holder's count of a storage.
type HolderRow struct {
	Session string `json:"session"`
	Slot    uint32 `json:"slot"`
	PID     int    `json:"pid,omitempty"`
	Count   uint64 `json:"count"`
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

// SegmentRow is the row of a segment, and what it cost to look at; nil when there
// is none, or its owner's name does not match.
func (m *Memory) SegmentRow(i int, match func(string) bool) (any, int) {
	g := m.segments[i]
	if g == nil || !match(g.owner.Name) {
		return nil, 0
	}
	r := SegmentRow{Segment: g.index, Serial: g.serial, Bytes: g.bytes, Kind: kindOfSegment(g.kind), State: "granted",
		Owner: g.owner.Name, PID: g.owner.PID, OwnerSerial: g.owner.Serial, Chunks: len(g.chunks), Age: time.Since(g.made).Seconds()}
	if g.holder == nil {
		r.State = "orphan"
	}
	if g.device != nil {
		r.Device = g.device.name
	}
	for _, c := range g.chunks {
		r.Storages += m.heldStorages(c)
	}
	return r, 16 * len(g.chunks)
}

// StorageRow is the row of a storage, as SegmentRow. A cost of 0 says that the whole
// chunk has nothing to show.
func (m *Memory) StorageRow(i int, match func(string) bool) (any, int) {
	c := m.chunkOf[i/protocol.ChunkIndices]
	if c == nil || !match(c.segment.owner.Name) || i%protocol.ChunkIndices == 0 && m.heldStorages(c) == 0 {
		return nil, 0
	}
	index := uint32(i)
	var holders []HolderRow
	cost := 1
	m.chunks.EachAttached(c.index, func(slot uint32) bool {
		cost++
		if refcounts, ok := m.refcountsOf(slot); ok {
			if n := refcounts.Count(index); n != 0 {
				h := HolderRow{Slot: slot, Count: n, Session: m.store.Own.Name, PID: m.store.Own.PID}
				if s := m.accounts[slot]; s != nil {
					h.Session, h.PID = s.Name, s.PID
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
	if !owner.There() {
		return StorageRow{Index: index, Serial: c.serial, Segment: c.segment.index, Creator: owner.Name,
			CreatorPID: owner.PID, CreatorSerial: owner.Serial, Orphan: c.segment.holder == nil, Holders: holders}, cost
	}
	e := owner.Entries.Load(index)
	now := sys.Monotonic()
	return StorageRow{Index: index, Serial: c.serial, Generation: e.Generation, Segment: c.segment.index,
		Offset: min(e.Offset, protocol.MaxSafeInt), Bytes: min(e.Bytes, protocol.MaxSafeInt), Age: float64(now-min(now, e.MadeAt)) / 1e9,
		Creator: owner.Name, CreatorPID: owner.PID, CreatorSerial: owner.Serial, Orphan: c.segment.holder == nil,
		Holders: holders, Trace: owner.Trace(index)}, cost
}

// StorageRowOf is as StorageRow, but only of storages that a session counts or has made.
func (m *Memory) StorageRowOf(slot uint32, i int, match func(string) bool) (any, int) {
	c := m.chunkOf[i/protocol.ChunkIndices]
	if c == nil {
		return nil, 0
	}
	own := c.segment.holder != nil && c.segment.owner.Slot == slot
	if !own && !m.chunks.IsAttached(c.index, slot) {
		return nil, 0
	}
	row, cost := m.StorageRow(i, match)
	r, is := row.(StorageRow)
	if !is || own || slices.ContainsFunc(r.Holders, func(h HolderRow) bool { return h.Slot == slot }) {
		return row, cost
	}
	return nil, cost
}

// heldStorages counts the storages of a chunk that any holder counts.
func (m *Memory) heldStorages(c *chunk) (n int) {
	for _, h := range m.heldOf(c) {
		n += bits.OnesCount64(h)
	}
	return n
}

// heldOf tells by bits which storages of a chunk any holder counts.
func (m *Memory) heldOf(c *chunk) (held [protocol.ChunkIndices / 64]uint64) {
	m.chunks.EachAttached(c.index, func(slot uint32) bool {
		if refcounts, ok := m.refcountsOf(slot); ok {
			refcounts.Counted(c.index, &held)
		}
		return true
	})
	return held
}
