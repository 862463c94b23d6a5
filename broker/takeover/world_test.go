package takeover_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/baton-ipc/baton/broker/takeover"
	"github.com/baton-ipc/baton/protocol"
)

// world is what a killed broker left, and the truth beside it. Repairs change the
// words; the truth is changed by events alone.
type world struct {
	r *rand.Rand

	// The words: records, refcounts and lanes.
	sameBoot  bool
	sessions  map[uint32]*session // by slot
	remains   map[uint32]uint64   // serial by number of the record
	segments  map[uint32]*segment
	chunks    map[uint32]*chunk
	lanes     map[place]*lane
	leases    map[uint32]*lease
	joins     map[uint32]*takeover.Join
	groups    []takeover.Group
	refcounts map[uint32]uint64 // the broker's

	files map[file]bool // that this broker was handed
	next  uint64        // serial

	// The truth.
	living map[uint64]*process
	places []promised // what must be kept, as long as it can be
	wrong  []string
}

type place struct{ topic, lane uint32 }

// file is a session file or that of a segment, by serial.
type file struct {
	role   byte
	serial uint64
}

type session struct {
	serial    uint64
	marked    bool
	closed    bool
	answered  bool
	refcounts map[uint32]uint64
	known     takeover.Process
	back      bool
}

// process is a living client.
type process struct {
	slot    uint32
	serial  uint64
	held    map[uint32]uint64
	chunkOf map[uint32]uint64 // serials of the chunks that it counts on
	mapped  map[file]bool
	stopped bool    // it cannot come back yet
	leaves  float64 // of its list: how much is left out
}

type segment struct {
	serial, owner uint64
	orphan        bool
	device        bool
}

type chunk struct {
	serial        uint64
	segment       uint32
	segmentSerial uint64
	bits          map[uint32]bool
}

type lane struct {
	serial      uint64
	incarnation uint64
	state       uint32
	name        bool
	deleted     bool
	ephemeral   uint64
	messages    map[uint64]*message
}

type message struct {
	refs  []protocol.Ref
	bad   bool
	spill uint32 // segment in which its refs stand, + 1
}

type lease struct {
	session uint64
	timed   bool
	ref     protocol.Ref
}

// promised is a place that names storages: a message or revision, or a lease.
type promised struct {
	lane   place
	number uint64 // 0: a lease
	lease  uint32
	refs   []protocol.Ref

	writer   uint64 // the session in whose file it stands, if not the broker's
	endsWith uint64 // the session with which it ends
}

func (w *world) serial() uint64 { w.next++; return w.next }

func (w *world) chance(p float64) bool { return w.r.Float64() < p }

func (w *world) fail(format string, args ...any) {
	w.wrong = append(w.wrong, fmt.Sprintf(format, args...))
}

const storages = 3 // of each chunk

func newWorld(seed uint64) *world {
	w := &world{r: rand.New(rand.NewPCG(seed, 1)), sameBoot: true, sessions: map[uint32]*session{}, remains: map[uint32]uint64{},
		segments: map[uint32]*segment{}, chunks: map[uint32]*chunk{}, lanes: map[place]*lane{}, leases: map[uint32]*lease{},
		joins: map[uint32]*takeover.Join{}, refcounts: map[uint32]uint64{}, files: map[file]bool{}, living: map[uint64]*process{}}
	slots := 1 + w.r.Uint32N(5)
	var serials []uint64
	// Earlier users of the slots have ended and left remains, or nothing.
	for i := range w.r.Uint32N(3) {
		w.remains[i] = w.serial()
		serials = append(serials, w.remains[i])
	}
	lost := w.serial() // ended when the table of remains was full
	for slot := uint32(1); slot <= slots; slot++ {
		s := &session{serial: w.serial(), answered: w.chance(0.9), refcounts: map[uint32]uint64{}}
		w.sessions[slot] = s
		if s.answered {
			serials = append(serials, s.serial)
		}
		if w.chance(0.7) {
			w.living[s.serial] = &process{slot: slot, serial: s.serial, held: map[uint32]uint64{}, chunkOf: map[uint32]uint64{},
				mapped: map[file]bool{{'s', s.serial}: true}, stopped: w.chance(0.2)}
			if w.chance(0.3) {
				w.living[s.serial].leaves = 0.5
			}
			s.closed = s.answered && w.chance(0.15)
		} else {
			s.marked = w.chance(0.1) // ended as far as that
		}
	}
	if w.chance(0.1) {
		serials = append(serials, lost)
	}
	if len(serials) == 0 {
		return w
	}
	n := uint32(0)
	for i := range 1 + w.r.Uint32N(4) {
		g := &segment{serial: w.serial(), owner: serials[w.r.IntN(len(serials))], device: w.chance(0.1)}
		g.orphan = w.ownedBy(g.owner) == 0 && w.chance(0.8)
		w.segments[i] = g
		for range 1 + w.r.Uint32N(2) {
			c := &chunk{serial: w.serial(), segment: i, segmentSerial: g.serial, bits: map[uint32]bool{0: true}}
			if slot := w.ownerSlot(g.owner); slot != 0 {
				c.bits[slot] = true
			}
			w.chunks[n] = c
			n++
		}
		if p := w.living[g.owner]; p != nil && !g.device {
			p.mapped[file{'g', g.serial}] = true
		}
	}
	w.hold()
	w.fillPlaces(serials)
	w.halfDone(lost)
	w.returnAll()
	return w
}

func (w *world) ownerSlot(serial uint64) uint32 {
	for slot, s := range w.sessions {
		if s.serial == serial {
			return slot
		}
	}
	return 0
}

// ownedBy is ownerSlot of a session that was not closed.
func (w *world) ownedBy(serial uint64) uint32 {
	if slot := w.ownerSlot(serial); slot != 0 && !w.sessions[slot].closed {
		return slot
	}
	return 0
}

// hold has sessions count storages: the living, and the dead before they died.
func (w *world) hold() {
	for _, slot := range slices.Sorted(maps.Keys(w.sessions)) {
		s := w.sessions[slot]
		for _, n := range slices.Sorted(maps.Keys(w.chunks)) {
			if !s.answered || !w.chance(0.4) {
				continue
			}
			w.chunks[n].bits[slot] = true
			for i := range uint32(storages) {
				if w.chance(0.4) {
					w.count(slot, n*protocol.ChunkIndices+i)
				}
			}
		}
	}
}

// count has a session count a storage once more, with all that it needs mapped.
func (w *world) count(slot, index uint32) {
	s, c := w.sessions[slot], w.chunks[index/protocol.ChunkIndices]
	c.bits[slot] = true
	s.refcounts[index]++
	if p := w.living[s.serial]; p != nil {
		p.held[index]++
		p.chunkOf[index/protocol.ChunkIndices] = c.serial &^ takeover.Retiring
		g := w.segments[c.segment]
		if !g.device {
			p.mapped[file{'g', g.serial}] = true
		}
		p.mapped[file{'s', g.owner}] = true
	}
}

func (w *world) someRefs() (refs []protocol.Ref) {
	all := slices.Sorted(maps.Keys(w.chunks))
	for range 1 + w.r.IntN(2) {
		n := all[w.r.IntN(len(all))]
		refs = append(refs, protocol.Ref{Serial: w.chunks[n].serial, Generation: 1, Index: n*protocol.ChunkIndices + w.r.Uint32N(storages)})
	}
	return refs
}

// fillPlaces makes lanes, names, leases, joins and groups, with their holders.
func (w *world) fillPlaces(serials []uint64) {
	for topic := range w.r.Uint32N(4) {
		if w.chance(0.5) {
			w.addName(topic)
			continue
		}
		for number := range 1 + w.r.Uint32N(3) {
			l := &lane{serial: serials[w.r.IntN(len(serials))], incarnation: w.serial(), state: protocol.LaneLive, messages: map[uint64]*message{}}
			slot := w.ownerSlot(l.serial)
			if w.ownedBy(l.serial) == 0 || w.chance(0.3) {
				l.state = protocol.LaneAdopted
			}
			if slot == 0 && !slices.Contains(slices.Collect(maps.Values(w.remains)), l.serial) {
				continue
			}
			at := place{topic, number}
			w.lanes[at] = l
			for i := range uint64(w.r.IntN(3)) {
				m := &message{refs: w.someRefs()}
				l.messages[i+1] = m
				if l.state == protocol.LaneAdopted && w.chance(0.1) {
					m.spill = 1 + w.chunks[m.refs[0].Index/protocol.ChunkIndices].segment
				}
				w.places = append(w.places, promised{lane: at, number: i + 1, refs: m.refs, writer: l.serial})
				for _, ref := range m.refs {
					if l.state == protocol.LaneAdopted {
						w.refcounts[ref.Index]++
					} else {
						w.count(slot, ref.Index)
					}
				}
			}
		}
		w.groups = append(w.groups, takeover.Group{Topic: topic, Number: 0, Queue: true}, takeover.Group{Topic: topic, Number: 1})
	}
	for i := range w.r.Uint32N(3) {
		l := &lease{session: serials[w.r.IntN(len(serials))], timed: w.chance(0.5), ref: w.someRefs()[0]}
		w.leases[i] = l
		w.refcounts[l.ref.Index]++
		x := promised{lease: i, refs: []protocol.Ref{l.ref}}
		if !l.timed && w.ownerSlot(l.session) != 0 {
			x.endsWith = l.session
		}
		w.places = append(w.places, x)
	}
	for i := range w.r.Uint32N(4) {
		w.joins[i] = &takeover.Join{Index: i, Session: serials[w.r.IntN(len(serials))], Topic: w.r.Uint32N(3), Known: w.chance(0.9), Group: uint8(w.r.IntN(3))}
	}
}

func (w *world) addName(topic uint32) {
	l := &lane{incarnation: w.serial(), state: protocol.LaneLive, name: true, messages: map[uint64]*message{}}
	at := place{topic, 0}
	w.lanes[at] = l
	if w.chance(0.2) {
		return // nothing is set
	}
	m := &message{refs: w.someRefs()}
	l.messages[5] = m
	if w.chance(0.1) {
		m.spill = 1 + w.chunks[m.refs[0].Index/protocol.ChunkIndices].segment
	}
	for _, ref := range m.refs {
		w.refcounts[ref.Index]++
	}
	if w.chance(0.2) && !w.sessions[1].closed {
		l.ephemeral = w.sessions[1].serial
	}
	switch {
	case w.chance(0.1): // half deleted: the flag comes first
		l.deleted = true
		return
	case w.chance(0.2): // the broker died before it had un-named the one before
		old := &message{refs: w.someRefs()}
		l.messages[4] = old
		for _, ref := range old.refs {
			w.refcounts[ref.Index]++
		}
	}
	w.places = append(w.places, promised{lane: at, number: 5, refs: m.refs, endsWith: l.ephemeral})
}

// halfDone leaves what a broker leaves that is killed within a step.
func (w *world) halfDone(lost uint64) {
	for _, n := range slices.Sorted(maps.Keys(w.chunks)) {
		if w.chance(0.1) {
			w.refcounts[n*protocol.ChunkIndices]++ // counted, and not named yet
		}
		if w.chance(0.05) {
			w.chunks[n].serial |= takeover.Retiring
		}
		if w.chance(0.05) {
			w.chunks[n].bits[9] = true // of a session whose slot is free again
		}
	}
	if w.chance(0.2) { // a segment that was not held was being freed
		i := uint32(len(w.segments))
		n := uint32(len(w.chunks))
		w.segments[i] = &segment{serial: w.serial(), owner: lost, orphan: true}
		w.chunks[n] = &chunk{segment: i, segmentSerial: w.segments[i].serial, bits: map[uint32]bool{0: true}}
	}
	for slot, s := range w.sessions {
		if w.living[s.serial] == nil && s.marked && w.chance(0.5) {
			w.remains[100+slot] = s.serial // ended as far as its slot
		}
	}
	if w.chance(0.1) {
		w.lanes[place{7, 1}] = &lane{serial: lost, incarnation: 1, state: protocol.LaneLive, messages: map[uint64]*message{}}
	}
	if w.chance(0.1) {
		w.lanes[place{7, 2}] = &lane{serial: w.sessions[1].serial, state: protocol.LaneClosed, messages: map[uint64]*message{}}
	}
	for _, l := range w.lanes {
		if l.state == protocol.LaneAdopted && w.chance(0.1) {
			l.messages[9] = &message{bad: true}
		}
	}
}

// returnAll has the living sessions that can come back do so with their lists, to a
// broker that has no files yet. The broker's own refcounts are always among them.
func (w *world) returnAll() {
	w.files = map[file]bool{}
	for _, slot := range slices.Sorted(maps.Keys(w.sessions)) {
		s := w.sessions[slot]
		s.back, s.known = false, takeover.Dead
		p := w.living[s.serial]
		if p != nil {
			s.known = takeover.Alive
		}
		if w.chance(0.1) {
			s.known = takeover.Unknown
		}
		if p != nil && !p.stopped && s.answered {
			w.handOver(p)
		}
	}
}

func (w *world) handOver(p *process) {
	s := w.sessions[p.slot]
	s.back = true
	s.known = takeover.Alive
	for _, f := range slices.SortedFunc(maps.Keys(p.mapped), func(a, b file) int { return int(a.serial) - int(b.serial) }) {
		if f == (file{'s', p.serial}) || !w.chance(p.leaves) {
			w.files[f] = true
		}
	}
}

// facts are what a broker finds.
func (w *world) facts() takeover.Facts {
	f := takeover.Facts{SameBoot: w.sameBoot, Refcounts: map[uint32]uint64{}}
	for index, n := range w.refcounts {
		if n != 0 {
			f.Refcounts[index] = n
		}
	}
	for _, slot := range slices.Sorted(maps.Keys(w.sessions)) {
		s := w.sessions[slot]
		f.Sessions = append(f.Sessions, takeover.Session{Slot: slot, Serial: s.serial, Marked: s.marked, Closed: s.closed, Answered: s.answered,
			Process: s.known, Back: s.back, File: w.files[file{'s', s.serial}]})
	}
	for _, i := range slices.Sorted(maps.Keys(w.remains)) {
		f.Remains = append(f.Remains, takeover.Remains{Index: i, Serial: w.remains[i], File: w.files[file{'s', w.remains[i]}]})
	}
	for _, i := range slices.Sorted(maps.Keys(w.segments)) {
		g := w.segments[i]
		f.Segments = append(f.Segments, takeover.Segment{Index: i, Serial: g.serial, OwnerSerial: g.owner, Orphan: g.orphan,
			Device: g.device, File: w.files[file{'g', g.serial}]})
	}
	for _, n := range slices.Sorted(maps.Keys(w.chunks)) {
		c := w.chunks[n]
		if c.serial == 0 && len(c.bits) == 0 {
			continue
		}
		f.Chunks = append(f.Chunks, takeover.Chunk{Index: n, Serial: c.serial, Segment: c.segment, SegmentSerial: c.segmentSerial,
			Attached: slices.Sorted(maps.Keys(c.bits))})
	}
	for _, at := range w.lanePlaces() {
		l := w.lanes[at]
		out := takeover.Lane{Topic: at.topic, Number: at.lane, Incarnation: l.incarnation, Serial: l.serial, State: l.state,
			Name: l.name, Deleted: l.deleted, Ephemeral: l.ephemeral}
		if l.name || l.state == protocol.LaneAdopted && w.files[file{'s', l.serial}] {
			for _, i := range slices.Sorted(maps.Keys(l.messages)) {
				m := l.messages[i]
				out.Messages = append(out.Messages, takeover.Message{Slot: i, Number: i, Refs: m.refs, Bad: m.bad, Awaited: w.awaited(m)})
			}
		}
		f.Lanes = append(f.Lanes, out)
	}
	for _, i := range slices.Sorted(maps.Keys(w.leases)) {
		l := w.leases[i]
		f.Leases = append(f.Leases, takeover.Lease{Index: i, Session: l.session, Timed: l.timed, Ref: l.ref})
	}
	for _, i := range slices.Sorted(maps.Keys(w.joins)) {
		f.Joins = append(f.Joins, *w.joins[i])
	}
	f.Groups = slices.Clone(w.groups)
	return f
}

func (w *world) lanePlaces() []place {
	return slices.SortedFunc(maps.Keys(w.lanes), func(a, b place) int { return int(a.topic)*1000 + int(a.lane) - int(b.topic)*1000 - int(b.lane) })
}

// awaited tells that a message's refs stand in a spill that this broker cannot read.
func (w *world) awaited(m *message) bool {
	if m.spill == 0 {
		return false
	}
	g := w.segments[m.spill-1]
	return g != nil && (!w.files[file{'g', g.serial}] || !w.files[file{'s', g.owner}])
}
