package broker

import (
	"time"

	"github.com/baton-ipc/baton/broker/memory"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// Rows of the listings `segments` and `storages`.
type (
	SegmentRow = memory.SegmentRow
	StorageRow = memory.StorageRow
	HolderRow  = memory.HolderRow
	HolderUse  = memory.HolderUse
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
	if s == nil || !match(s.Name) {
		return nil, 0
	}
	state := "live"
	if s.state == protocol.SessionDisconnected {
		state = "disconnected"
	}
	return SessionRow{Slot: s.Slot, Serial: s.Serial, Name: s.Name, PID: s.PID, UID: s.uid,
		Language: languageName(s.language), Version: s.version, Namespace: s.namespace, State: state,
		ConnectedAt: s.connectedAt, Held: b.memory.Held(s.memory), Granted: s.memory.Granted()}, 64
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
		for k := uint64(0); l.pages.There() && k < l.view.Slots(); k++ {
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
