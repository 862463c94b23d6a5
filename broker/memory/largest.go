package memory

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/baton-ipc/baton/protocol"
)

// HolderUse is what one holder has: bytes of the storages that its refcounts count, of the segments that it was granted,
// and of the lanes that it has for what it sends.
type HolderUse struct {
	Session string `json:"session"`
	PID     int    `json:"pid,omitempty"`
	Held    uint64 `json:"held"`
	Granted uint64 `json:"granted"`
	Lanes   uint64 `json:"lanes"`
	// For tells what is held of the segments that it was granted, and not by itself; of the broker, what it holds.
	For HeldFor `json:"held_for"`
	// Waste is the rest of the segments that it was granted of which anything is held: small tensors keep it. Empty is
	// the bytes of those of which nothing is.
	Waste uint64 `json:"waste"`
	Empty uint64 `json:"empty"`
}

// HeldFor is in bytes of storages, each for one reason.
type HeldFor struct {
	Names    uint64 `json:"names"`
	Leases   uint64 `json:"leases"`
	Messages uint64 `json:"messages"` // of ended sessions
	Others   uint64 `json:"others"`   // by other sessions
}

// Sum is what is held for any of the reasons.
func (f *HeldFor) Sum() uint64 { return f.Names + f.Leases + f.Messages + f.Others }

// text lists the reasons, "" for none.
func (f *HeldFor) text(bytes func(uint64) string) string {
	var parts []string
	for _, r := range []struct {
		what  string
		bytes uint64
	}{{"names", f.Names}, {"leases", f.Leases}, {"messages of ended sessions", f.Messages}, {"other sessions", f.Others}} {
		if r.bytes > 0 {
			parts = append(parts, r.what+" "+bytes(r.bytes))
		}
	}
	return strings.Join(parts, ", ")
}

// Text names a holder and what it has.
func (u *HolderUse) Text(bytes func(uint64) string) string {
	text := fmt.Sprintf("%s (pid %d): holds %s, was granted %s, has %s in lanes", u.Session, u.PID, bytes(u.Held), bytes(u.Granted), bytes(u.Lanes))
	if by := u.For.text(bytes); by != "" && u.isBroker() {
		text += " (held by " + by + ")"
	} else if by != "" {
		text += " (held of what it was granted: " + by + ")"
	}
	return text
}

// ofBroker is what the broker is called among holders.
const ofBroker = "broker: names, leases, messages of ended sessions"

func (u *HolderUse) isBroker() bool { return u.Session == ofBroker }

// most orders holders: what a quota counts of one, or what it keeps others from.
func (u *HolderUse) most() uint64 { return max(u.Held, u.Granted) + u.Lanes }

// Advice tells what frees the memory of the largest holders, for each reason that an eighth of what is used is held for,
// or as much as is missing; "": no reason is known. It ends with a comma and a space.
func Advice(largest []HolderUse, used, missing uint64) string {
	// Any bytes of a reason may be what lacks; segments are larger than what is in them, so that of these as much is needed.
	held := func(n uint64) bool { return n > 0 && (missing > 0 && n >= missing || n >= used/8) }
	granted := func(n uint64) bool { return n > 0 && n >= max(missing, used/8) }
	text := ""
	for _, reason := range []struct {
		matters func(h *HolderUse) bool
		frees   string
	}{
		{func(h *HolderUse) bool { return held(h.For.Names) }, "delete names that are not needed (baton ls names, baton delete NAME), "},
		{func(h *HolderUse) bool { return held(h.For.Leases) }, "end leases of handles that no process opens (baton ls leases, baton revoke LEASE), "},
		{func(h *HolderUse) bool { return held(h.For.Messages) }, "take or drop what ended sessions have sent (baton ls topics --all, baton purge NAME), "},
		{func(h *HolderUse) bool { return held(h.For.Others) }, "have other sessions let go (baton ls storages), "},
		{func(h *HolderUse) bool { return granted(h.Waste) }, "copy the small tensors that keep large segments (baton why SESSION), "},
		{func(h *HolderUse) bool { return granted(h.Empty) }, "have programs give back what they do not use (baton collect), "},
	} {
		if slices.ContainsFunc(largest, func(h HolderUse) bool { return reason.matters(&h) }) {
			text += reason.frees
		}
	}
	return text
}

// Kept tells what the broker's own refcounts are for.
type Kept struct {
	Names, Leases func(f func(index uint32))
}

// KeptFor sets what tells this.
func (m *Memory) KeptFor(k Kept) { m.kept = k }

// reasons are the storages that names and leases keep; all else that the broker counts are messages of ended sessions.
type reasons struct{ names, leases storages }

// storages are bits, as many as there are numbers in use: there may be millions.
type storages []uint64

func (s storages) add(index uint32) {
	if w := int(index / 64); w < len(s) {
		s[w] |= 1 << (index % 64)
	}
}

func (s storages) has(index uint32) bool {
	w := int(index / 64)
	return w < len(s) && s[w]>>(index%64)&1 != 0
}

func (m *Memory) reasons() reasons {
	words := len(m.usedChunks()) * protocol.ChunkIndices / 64
	r := reasons{make(storages, words), make(storages, words)}
	if m.kept.Names != nil {
		m.kept.Names(r.names.add)
		m.kept.Leases(r.leases.add)
	}
	return r
}

// add counts a storage that the broker holds.
func (f *HeldFor) add(r reasons, index uint32, bytes uint64) {
	switch {
	case r.names.has(index):
		f.Names += bytes
	case r.leases.has(index):
		f.Leases += bytes
	default:
		f.Messages += bytes
	}
}

// lack is what there is too little of for a grant.
type lack struct {
	code        protocol.Code
	remedy      string
	limit, used uint64
	missing     uint64   // bytes that would have to come free
	of          *Account // whose quota it is; nil: that of all
	alone       bool     // what is asked for is more than the limit, whatever others have
}

// noRoom is the refusal.
func (m *Memory) noRoom(l lack, format string, args ...any) error {
	e := protocol.Errorf(l.code, l.remedy, format, args...).
		With("limit", l.limit).With("used", l.used).With(detailMissing, l.missing)
	return &refusal{e, l}
}

// refusal is the error of a lack.
type refusal struct {
	error
	lack
}

func (r *refusal) Unwrap() error { return r.error }

// detailMissing is the detail of a refusal that tells how much would have to come free.
const detailMissing = "missing"

// nameLargest adds to a refusal those that hold most of what is limited, and what frees that: of a session's quota the
// session alone.
func (m *Memory) nameLargest(err error) {
	var r *refusal
	var e *protocol.Error
	if !errors.As(err, &r) || !errors.As(err, &e) {
		return
	}
	largest := m.largestHolders(mostNamed, r.of)
	var names []string
	for i := range largest {
		names = append(names, largest[i].Text(func(n uint64) string { return fmt.Sprintf("%d bytes", n) }))
	}
	if len(names) > 0 {
		e.Message += "; largest: " + strings.Join(names, "; ")
	}
	if !r.alone {
		e.Remedy = Advice(largest, r.used, r.missing) + e.Remedy
	}
	e.With("largest", largest)
}

// mostNamed is how many holders are named where there is no room.
const mostNamed = 3

// Largest lists those that have most of the memory.
func (m *Memory) Largest() []HolderUse { return m.largestHolders(mostNamed, nil) }

// largestHolders lists the sessions that have most of held, granted and lanes; of: that one alone.
func (m *Memory) largestHolders(n int, of *Account) []HolderUse {
	why := m.reasons()
	if of != nil {
		return []HolderUse{m.useOf(of, why)}
	}
	type holder struct {
		HolderUse
		of *Account // nil: the broker
	}
	broker := holder{HolderUse: HolderUse{Session: ofBroker, PID: m.store.Own.PID, Lanes: m.lanes}}
	all := []holder{}
	for _, s := range m.accounts[:] {
		if s != nil {
			broker.Lanes -= min(broker.Lanes, s.lanes) // the rest are those of ended sessions
			all = append(all, holder{HolderUse{Held: m.Held(s), Granted: s.Granted(), Lanes: s.lanes}, s})
		}
	}
	for c := range m.usedChunks() {
		if m.chunkOf[c] != nil {
			m.eachHeldInChunk(m.store.Own, m.chunkOf[c], func(index uint32, bytes uint64) {
				broker.Held += bytes
				broker.For.add(why, index, bytes)
			})
		}
	}
	for g := range m.orphans {
		broker.Granted += g.cost()
	}
	all = slices.DeleteFunc(append(all, broker), func(h holder) bool { return h.most() == 0 })
	slices.SortFunc(all, func(x, y holder) int { return cmp.Compare(y.most(), x.most()) })
	largest := []HolderUse{}
	for _, h := range all[:min(n, len(all))] {
		if h.of != nil { // what is held of its segments is looked at of these alone
			h.HolderUse = m.useOf(h.of, why)
		}
		largest = append(largest, h.HolderUse)
	}
	return largest
}

// useOf is what a session has, and what is held of its segments.
func (m *Memory) useOf(s *Account, why reasons) HolderUse {
	own, ofOthers := m.HeldApart(s)
	u := HolderUse{Session: s.Name, PID: s.PID, Held: own + ofOthers, Granted: s.Granted(), Lanes: s.lanes}
	for g := range s.segments {
		before, held := u.For.Sum(), uint64(0)
		for _, c := range g.chunks {
			held += m.heldInChunk(s.SessionFile, c)
			m.addHeldFor(&u.For, s, c, why)
		}
		if held += u.For.Sum() - before; held == 0 {
			u.Empty += g.cost()
		} else {
			u.Waste += g.cost() - min(g.cost(), held)
		}
	}
	return u
}

// addHeldFor counts what others than its owner hold in a chunk, and the owner does not.
func (m *Memory) addHeldFor(f *HeldFor, owner *Account, c *chunk, why reasons) {
	if !c.segment.owner.There() || !m.store.Own.There() {
		return
	}
	for w, word := range m.heldOf(c) {
		for ; word != 0; word &= word - 1 {
			index := c.index*protocol.ChunkIndices + uint32(w*64+bits.TrailingZeros64(word))
			if owner.There() && owner.Refcounts.Count(index) != 0 {
				continue
			}
			// The owner wrote it: at most the segment's size counts.
			bytes := min(c.segment.owner.Entries.Load(index).Bytes, c.segment.bytes)
			if m.store.Own.Refcounts.Count(index) != 0 {
				f.add(why, index, bytes)
			} else {
				f.Others += bytes
			}
		}
	}
}
