package testkit

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"testing"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// Holdings is what a broker's listings say of every storage and every session at
// one time.
type Holdings struct {
	Sessions []broker.SessionRow
	Storages []broker.StorageRow
	Topics   []broker.TopicRow
	Names    []broker.NameRow
	Leases   []broker.LeaseRow
	Segments []broker.SegmentRow
}

// Look reads the listings of the broker.
func Look(t testing.TB, b *Broker) *Holdings {
	t.Helper()
	h, err := look(b.Raw())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func look(r *Raw) (h *Holdings, err error) {
	h = &Holdings{}
	if h.Sessions, err = list[broker.SessionRow](r, protocol.ListSessions); err != nil {
		return nil, err
	}
	if h.Storages, err = list[broker.StorageRow](r, protocol.ListStorages); err != nil {
		return nil, err
	}
	if h.Topics, err = list[broker.TopicRow](r, protocol.ListTopics); err != nil {
		return nil, err
	}
	if h.Names, err = list[broker.NameRow](r, protocol.ListNames); err != nil {
		return nil, err
	}
	if h.Leases, err = list[broker.LeaseRow](r, protocol.ListLeases); err != nil {
		return nil, err
	}
	h.Segments, err = list[broker.SegmentRow](r, protocol.ListSegments)
	return h, err
}

// Counts sums the counts of the broker's refcounts, and those of all sessions.
func (h *Holdings) Counts() (ofBroker, ofSessions uint64) {
	for _, s := range h.Storages {
		for _, k := range s.Holders {
			if k.Slot == protocol.BrokerSlot {
				ofBroker += k.Count
			} else {
				ofSessions += k.Count
			}
		}
	}
	return ofBroker, ofSessions
}

// Kept sums the messages that lanes of the living name, and those that the
// broker keeps of the dead.
func (h *Holdings) Kept() (ofLiving, ofDead int) {
	for _, t := range h.Topics {
		ofLiving += t.Kept - t.Adopted
		ofDead += t.Adopted
	}
	return ofLiving, ofDead
}

// String shows everything, for a failure.
func (h *Holdings) String() string {
	var w strings.Builder
	for _, s := range h.Sessions {
		fmt.Fprintf(&w, "session %d slot %d %s pid %d %s, holds %d bytes, granted %d\n", s.Serial, s.Slot, s.Name, s.PID, s.State, s.Held, s.Granted)
	}
	for _, t := range h.Topics {
		fmt.Fprintf(&w, "%s %q %s: %d writers, %d readers, %d open it, %d kept, %d of them of ended sessions\n",
			t.Kind, t.Name, t.State, t.Writers, t.Readers, t.Openers, t.Kept, t.Adopted)
	}
	for _, n := range h.Names {
		fmt.Fprintf(&w, "name %q revision %d\n", n.Name, n.Revision)
	}
	for _, l := range h.Leases {
		fmt.Fprintf(&w, "lease of %s on %v\n", l.Maker, l.Storages)
	}
	for _, g := range h.Segments {
		fmt.Fprintf(&w, "segment %d, %s of %s (%d), %d bytes, %d storages held\n", g.Segment, g.State, g.Owner, g.PID, g.Bytes, g.Storages)
	}
	for i, s := range h.Storages {
		if i == 32 {
			fmt.Fprintf(&w, "… and %d storages more\n", len(h.Storages)-i)
			break
		}
		fmt.Fprintf(&w, "storage %d gen %d, %d bytes, %.1f s old, made by %s (%d)", s.Index, s.Generation, s.Bytes, s.Age, s.Creator, s.CreatorPID)
		for _, k := range s.Holders {
			fmt.Fprintf(&w, "; %s (%d) holds %d", k.Session, k.PID, k.Count)
		}
		w.WriteByte('\n')
	}
	return w.String()
}

// orphans tells whether a segment of an ended session is left.
func (h *Holdings) orphans() bool {
	return slices.ContainsFunc(h.Segments, func(g broker.SegmentRow) bool { return g.State == "orphan" })
}

// Audit waits until nothing of a dead process is left: no session, no count in
// any refcounts, no attached bit. It fails the test with all that is held otherwise.
// Messages that the dead had sent stay, counted by the broker.
func Audit(t testing.TB, b *Broker) *Holdings {
	t.Helper()
	var h *Holdings
	Until(t, "nothing of a dead process is left", func() (bool, string) {
		h = Look(t, b)
		if wrong := h.ofTheDead(b); len(wrong) > 0 {
			return false, strings.Join(wrong, "\n") + "\n" + h.String()
		}
		return true, ""
	})
	return h
}

// ofTheDead lists what belongs to processes that have ended.
func (h *Holdings) ofTheDead(b *Broker) (wrong []string) {
	slots := map[uint32]bool{protocol.BrokerSlot: true}
	for _, s := range h.Sessions {
		if _, err := sys.StartTime(s.PID); err != nil {
			wrong = append(wrong, fmt.Sprintf("session %d of process %d, which has ended, is there", s.Serial, s.PID))
		}
		slots[s.Slot] = true
	}
	for _, s := range h.Storages {
		for _, k := range s.Holders {
			if !slots[k.Slot] {
				wrong = append(wrong, fmt.Sprintf("storage %d is held by slot %d, which no session has", s.Index, k.Slot))
			}
		}
	}
	return append(wrong, strayBits(b, slots)...)
}

// strayBits looks at the broker's page for chunks that count a session which is
// not there: the owner's free test would look at refcounts that are never emptied.
func strayBits(b *Broker, slots map[uint32]bool) (wrong []string) {
	page := b.Raw().Broker
	for chunk := range uint64(b.Raw().ChunksEnd()) {
		at := protocol.BrokerChunks + chunk*protocol.ChunkRecordSize
		if page.Load64(at+protocol.ChunkSerial) == 0 {
			continue
		}
		for w := uint64(0); w < protocol.BitmapWords; w++ {
			for set := page.Load64(at + protocol.ChunkAttached + 8*w); set != 0; set &= set - 1 {
				if slot := uint32(w*64) + uint32(bits.TrailingZeros64(set)); !slots[slot] {
					wrong = append(wrong, fmt.Sprintf("chunk %d is attached to slot %d, which no session has", chunk, slot))
				}
			}
		}
	}
	return wrong
}

// AuditEmpty is Audit, and waits until no storage has a holder and no
// memory of an ended session is left. The clients given are asked to collect
// what others have let go.
func AuditEmpty(t testing.TB, b *Broker, clients ...*client.Client) {
	t.Helper()
	Audit(t, b)
	Until(t, "no storage is held", func() (bool, string) {
		for _, c := range clients {
			c.Collect()
		}
		h := Look(t, b)
		return len(h.Storages) == 0 && !h.orphans(), h.String()
	})
}

// AuditKept is Audit, and waits until the refcounts count exactly what messages, names
// and leases name, one storage each: everything else has been let go, and nothing
// was let go too often. Every process must be at rest, holding nothing itself.
func AuditKept(t testing.TB, b *Broker) {
	t.Helper()
	Audit(t, b)
	Until(t, "the refcounts count what is named, and nothing else", func() (bool, string) {
		h := Look(t, b)
		living, dead := h.Kept()
		leased := 0
		for _, l := range h.Leases {
			leased += len(l.Storages)
		}
		ofBroker, ofSessions := h.Counts()
		if ofSessions == uint64(living) && ofBroker == uint64(dead+len(h.Names)+leased) {
			return true, ""
		}
		return false, fmt.Sprintf("the sessions' refcounts count %d for %d messages; the broker's %d for %d messages of the dead, %d names and %d leased storages\n%s",
			ofSessions, living, ofBroker, dead, len(h.Names), leased, h)
	})
}

// Gone waits until the broker has noticed the end of a process.
func Gone(t testing.TB, b *Broker, pids ...int) {
	t.Helper()
	Until(t, fmt.Sprintf("the broker has ended the sessions of %v", pids), func() (bool, string) {
		rows := List[broker.SessionRow](t, b, protocol.ListSessions)
		for _, s := range rows {
			if slices.Contains(pids, s.PID) {
				return false, fmt.Sprintf("session %d of process %d is there", s.Serial, s.PID)
			}
		}
		return true, ""
	})
}
