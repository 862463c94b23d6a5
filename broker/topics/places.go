package topics

import (
	"fmt"
	"slices"
	"time"

	"github.com/baton-ipc/baton/broker/memory"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// PlaceRow is a row of the listing `places`: one lane, or one name, and the storages that what
// stands there names, none of a message without tensors. A holder counts a storage once for each place and name that it has there.
type PlaceRow struct {
	Kind      string `json:"kind"`             // topic, queue, name
	Name      string `json:"name"`             // "" of a private one
	Former    string `json:"former,omitempty"` // of a deleted one: what it was called
	Namespace string `json:"namespace"`
	ID        uint64 `json:"id"` // of the topic
	// Slot is that of the session whose refcounts count them: the sender's, or the broker's where the
	// sender has ended, and of names.
	Slot     uint32         `json:"slot"`
	Sender   string         `json:"sender"` // or the session that set the name
	PID      int            `json:"pid,omitempty"`
	Depth    uint32         `json:"depth,omitempty"`
	Messages []PlaceMessage `json:"messages"`
	// Ephemeral: the name ends with the session that has set it.
	Ephemeral bool `json:"ephemeral,omitempty"`
	Lingering
	Unread bool `json:"unread,omitempty"` // there is more, whose description was not handed over yet
}

// PlaceMessage is one message, or the revision of a name.
type PlaceMessage struct {
	Sequence uint64   `json:"sequence"`
	Age      float64  `json:"age_seconds"`
	Storages []uint32 `json:"storages"`
	// Awaits tells for whom a message of a lossless topic or queue is kept: groups that have not
	// taken it, and the takers that hold it unacknowledged.
	Awaits []string `json:"awaits,omitempty"`
	// Taker has claimed the message.
	Taker *Taker `json:"taker,omitempty"`
	// HoldsUp tells that its sender has no room because the message is not done with, though others behind it are or were
	// taken; the message has been seen there for so many seconds.
	HoldsUp    bool    `json:"holds_up,omitempty"`
	HoldsUpFor float64 `json:"holds_up_seconds,omitempty"`
}

// Taker is a session that has a message.
type Taker struct {
	Session uint64 `json:"session"` // serial
	Name    string `json:"name"`
	PID     int    `json:"pid"`
	// Over tells that the session is over, and that its process holds the message still.
	Over bool `json:"over,omitempty"`
}

// placeBudget bounds the references that are looked at of one lane, as adoption does.
const placeBudget = 1 << 20

// placeBytes is about how long what Places returns may become: it is less than a control message.
const placeBytes = 1 << 20

// laneBits and slotBits are those of a cursor of Places that number a lane and a slot in it.
const (
	laneBits = 13
	slotBits = 18
)

// Places lists what lanes and names name, from a cursor on: at most limit rows, and no more when
// the time is over or they have become long. A lane with many messages has several rows. next is
// where to go on, 0 at the end.
func (ts *Topics) Places(from uint64, limit int, most time.Duration, match func(name string) bool) (rows []any, next uint64) {
	rows = []any{}
	began := time.Now()
	topics := ts.used()
	slot, lane, room := from&(1<<slotBits-1), uint32(from>>slotBits&(1<<laneBits-1)), placeBytes
	for i := from >> (laneBits + slotBits); i < uint64(len(topics)); i++ {
		t := topics[i]
		if t == nil || !match(t.called()) {
			lane, slot = 0, 0
			continue
		}
		for ; lane < ts.store.Record.Topic(t.index).UsedLanes(); lane++ {
			here := i<<(laneBits+slotBits) | uint64(lane)<<slotBits
			if len(rows) == limit || room <= 0 || (len(rows) > 0 || lane > 0) && time.Since(began) > most {
				return rows, here | slot
			}
			if l := t.lanes[lane]; l != nil {
				r, next := ts.placesIn(l, slot, &room)
				if r != nil {
					rows = append(rows, r)
				}
				if next > 0 {
					return rows, here | next
				}
			}
			slot = 0
		}
		lane, slot = 0, 0
		if time.Since(began) > most {
			return rows, (i + 1) << (laneBits + slotBits)
		}
	}
	return rows, 0
}

// placesIn is a row of a lane, of the messages from a slot on for which there is room; nil where
// nothing is kept there. next is the slot with which the next row begins, 0 at the end.
func (ts *Topics) placesIn(l *Lane, from uint64, room *int) (row any, next uint64) {
	t := l.Topic
	r := PlaceRow{Kind: kindName(t.kind), Name: t.key.name, Former: t.former, Namespace: t.key.namespace, ID: t.id, Slot: l.File.Slot, Sender: l.File.Name, PID: l.File.PID,
		Depth: t.depth, Messages: []PlaceMessage{}, Lingering: t.lingers()}
	_, r.Unread = ts.unread[l]
	now := sys.Monotonic()
	if t.name != nil {
		r.Slot, r.Sender, r.PID, r.Depth = protocol.BrokerSlot, t.name.setter, 0, 0
		r.Ephemeral = t.name.ephemeral != nil
		if t.name.set {
			r.Messages = append(r.Messages, PlaceMessage{Sequence: t.name.number(), Age: time.Since(t.name.at).Seconds(), Storages: slices.Clone(t.name.indices)})
		}
	} else if l.File.There() {
		if l.state == protocol.LaneAdopted {
			r.Slot = protocol.BrokerSlot
		}
		budget, holding := placeBudget, l.holder()
		heldFor := l.noteHolding(holding)
		for k := from; k < l.View.Slots(); k++ {
			if *room <= 0 {
				next = k
				break
			}
			i := l.View.Seq(k)
			if i == 0 || i&(l.View.Slots()-1) != k {
				continue
			}
			m := PlaceMessage{Sequence: min(i, protocol.MaxSafeInt), Age: float64(now-min(now, l.stamp(i))) / 1e9}
			awaited := false
			m.Storages, awaited = ts.storagesOf(l, i, &budget)
			m.Awaits, m.Taker = ts.awaits(l, i, m.Storages)
			if i == holding {
				m.HoldsUp, m.HoldsUpFor = true, heldFor.Seconds()
			}
			r.Unread = r.Unread || awaited
			if len(m.Storages) > 0 || !awaited {
				r.Messages = append(r.Messages, m)
				*room -= m.length()
			}
		}
	}
	if len(r.Messages) == 0 && !r.Unread {
		return nil, next
	}
	*room -= rowLength
	return r, next
}

// rowLength is about how long a row without messages is.
const rowLength = 512

// length is about how long a message is in a row.
func (m *PlaceMessage) length() int {
	n := 64 + 8*len(m.Storages)
	for _, who := range m.Awaits {
		n += 4 + len(who)
	}
	return n
}

// awaits lists for whom a message is kept beyond the depth, and finds the taker that has it, where it is known.
func (ts *Topics) awaits(l *Lane, i uint64, storages []uint32) (list []string, taker *Taker) {
	for _, g := range l.Topic.groups {
		if g == nil {
			continue
		}
		a, ok := g.area(l.Number)
		if !ok || a.Done(i) {
			continue
		}
		who := g.label()
		if m := a.Claimant(i); m != 0 {
			s, left := g.owners[m], ts.takerThatLeft(g, l, m, storages)
			switch {
			case s != nil:
				who += ": claimed by " + s.Who()
				taker = &Taker{Session: s.Serial, Name: s.Name, PID: s.PID}
			case left != nil:
				who += fmt.Sprintf(": claimed by %s, whose session is over", whoIs(left.Name, left.PID))
				taker = &Taker{left.Serial, left.Name, left.PID, true}
			default:
				who += ": claimed by a member that has left"
			}
		}
		list = append(list, who)
	}
	return list, taker
}

// takerThatLeft is the session of a member that is no more, while it counts what the member has claimed; nil: not known.
// Where the member is not known, the closed session that counts it is.
func (ts *Topics) takerThatLeft(g *group, l *Lane, m uint16, storages []uint32) (taker *sessionfiles.SessionFile) {
	if g.members[m] != nil {
		return nil
	}
	meant := func(s *memory.Account) bool {
		taker = s.SessionFile
		return taker == g.left[m].file || g.left[m].file == nil && s.Closed
	}
	for _, index := range storages {
		if ts.memory.CountedBy(index, meant, l.File) {
			return taker
		}
	}
	return nil
}

// label names a group in listings.
func (g *group) label() string {
	switch {
	case g.topic.function != nil:
		return "a provider"
	case g.topic.isQueue():
		return "a taker"
	case g.alone:
		for _, s := range g.owners {
			return "reader " + s.Who()
		}
		return "a reader"
	}
	return "group " + g.name
}
