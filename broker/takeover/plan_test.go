package takeover_test

import (
	"os"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/baton-ipc/baton/broker/takeover"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// worlds is how many are tried; BATON_WORLDS sets another number.
func worlds(t *testing.T) uint64 {
	if text := os.Getenv("BATON_WORLDS"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		return n
	}
	return 10_000
}

// planner is Plan, or what is tried in its place.
type planner struct {
	plan     func(takeover.Facts) []takeover.Repair
	trusting bool // Collect frees without a look at any holder's refcounts
}

// run plays a world to its end and returns what was wrong.
func (p planner) run(seed uint64) []string {
	w := newWorld(seed)
	w.check("as it was left")
	for range 4 { // brokers, each of which dies within its plan
		w.carryOut(p, true)
		w.event()
		if w.chance(0.5) {
			w.returnAll() // the next broker begins without any file
		}
	}
	w.resolve()
	for range 3 {
		w.carryOut(p, false)
	}
	for range 3 { // what one collect lets go may free what another one tested before
		if w.carryOut(p, false) && len(w.wrong) == 0 {
			w.fail("it never comes to an end")
		}
	}
	if len(w.wrong) == 0 {
		w.checkEnd(p)
	}
	return w.wrong
}

// carryOut plans and applies, perhaps only as far as the broker's death; it tells
// whether anything was changed.
func (w *world) carryOut(p planner, dies bool) (changed bool) {
	f := w.facts()
	repairs := p.plan(f)
	if again := p.plan(w.facts()); !reflect.DeepEqual(repairs, again) {
		w.fail("the same world gives other repairs")
	}
	left := -1
	if dies && w.chance(0.7) {
		left = w.r.IntN(40)
	}
	for _, r := range repairs {
		for _, step := range w.apply(r, p.trusting) {
			if left == 0 {
				return true
			}
			left--
			step()
			if w.check(r); len(w.wrong) > 0 {
				return true
			}
		}
		if _, request := r.(takeover.Reclaim); !request {
			changed = true
		}
	}
	// What is planned now was asked for before, and refused, or follows from a burial.
	if !changed {
		return false
	}
	if !slices.ContainsFunc(repairs, func(r takeover.Repair) bool {
		switch r.(type) {
		case takeover.EndSession, takeover.Reclaim:
			return true
		}
		return false
	}) {
		if more := p.plan(w.facts()); len(more) > 0 {
			w.fail("applied whole, it asks for more: %#v", more[0])
		}
	}
	return true
}

// event changes the world beside any broker: a death, or a late return.
func (w *world) event() {
	for slot := uint32(1); slot <= 5; slot++ {
		s := w.sessions[slot]
		if s == nil {
			continue
		}
		p := w.living[s.serial]
		switch {
		case p == nil:
			if s.known == takeover.Unknown && w.chance(0.3) {
				s.known = takeover.Dead // it could be looked at now
			}
		case w.chance(0.2):
			delete(w.living, s.serial)
			s.known = takeover.Dead
			if !s.back && w.chance(0.3) {
				s.known = takeover.Unknown
			}
		case p.stopped && w.chance(0.4):
			p.stopped = false
			if s.answered {
				w.handOver(p)
			}
		}
	}
}

// resolve brings every living session back, with all that it has.
func (w *world) resolve() {
	for slot := uint32(1); slot <= 5; slot++ {
		s := w.sessions[slot]
		if s == nil {
			continue
		}
		p := w.living[s.serial]
		if p == nil || !s.answered {
			s.known = takeover.Dead // evicted, or a session of which no client knows
			delete(w.living, s.serial)
			continue
		}
		p.leaves, p.stopped = 0, false
		w.handOver(p)
	}
}

// check looks whether anything is broken that a living process, or a place, needs.
func (w *world) check(after any) {
	for serial, p := range w.living {
		s := w.sessions[p.slot]
		if s == nil || s.serial != serial || s.marked {
			w.fail("%#v: session %d lives and was ended", after, serial)
			continue
		}
		for index, n := range p.held {
			c := w.chunks[index/protocol.ChunkIndices]
			switch {
			case n == 0:
			case c == nil || c.serial&^takeover.Retiring != p.chunkOf[index/protocol.ChunkIndices]:
				w.fail("%#v: storage %d is held by session %d and its chunk was given away", after, index, serial)
			case w.segments[c.segment] == nil || w.segments[c.segment].serial != c.segmentSerial:
				w.fail("%#v: storage %d is held by session %d and its memory was freed", after, index, serial)
			case !c.bits[p.slot]:
				w.fail("%#v: storage %d is held by session %d and its refcounts are not looked at", after, index, serial)
			case s.refcounts[index] != n:
				w.fail("%#v: the refcounts of session %d count %d for %d", after, serial, s.refcounts[index], n)
			}
		}
	}
	w.checkPlaces(after)
}

// checkPlaces looks at what messages, names and leases name.
func (w *world) checkPlaces(after any) {
	need := map[uint32]uint64{}
	var kept []promised
	for _, x := range w.places {
		paid, there := w.payer(x)
		if !there {
			if !w.mayGo(x) {
				w.fail("%#v: %+v was dropped", after, x)
			}
			continue
		}
		kept = append(kept, x)
		for _, ref := range x.refs {
			c := w.chunks[ref.Index/protocol.ChunkIndices]
			if c == nil || c.serial&^takeover.Retiring != ref.Serial || w.segments[c.segment] == nil {
				w.fail("%#v: %+v names what was freed", after, x)
				return
			}
			if paid {
				need[ref.Index]++
			}
		}
	}
	w.places = kept
	for index, n := range need {
		if w.refcounts[index] < n {
			w.fail("%#v: storage %d is named %d times and counted %d times", after, index, n, w.refcounts[index])
		}
	}
}

// payer tells whether a place is still there, and whether the broker's refcounts pay for it.
func (w *world) payer(x promised) (broker, there bool) {
	if x.number == 0 {
		l := w.leases[x.lease]
		return true, l != nil
	}
	l := w.lanes[x.lane]
	if l == nil || l.messages[x.number] == nil || l.deleted { // what is begun may be finished later
		return false, false
	}
	return l.name || l.state == protocol.LaneAdopted, true
}

// mayGo tells whether a place was dropped rightly: it ended with a session that is
// over, or no living process could hand over what it needs.
func (w *world) mayGo(x promised) bool {
	if x.endsWith != 0 && w.living[x.endsWith] == nil {
		return true
	}
	for _, p := range w.living {
		if s := w.sessions[p.slot]; s != nil && s.answered && !s.back {
			return false // it may have what is missing
		}
	}
	if x.writer != 0 && !w.files[file{'s', x.writer}] {
		return true
	}
	return slices.ContainsFunc(x.refs, func(r protocol.Ref) bool {
		c := w.chunks[r.Index/protocol.ChunkIndices]
		if c == nil || w.segments[c.segment] == nil {
			return false
		}
		g := w.segments[c.segment]
		return !g.device && !w.files[file{'g', g.serial}] && !w.heldByLiving(c.segment)
	})
}

// heldByLiving tells the truth.
func (w *world) heldByLiving(segment uint32) bool {
	for _, p := range w.living {
		for index, n := range p.held {
			if c := w.chunks[index/protocol.ChunkIndices]; n != 0 && c != nil && c.segment == segment {
				return true
			}
		}
	}
	return false
}

// checkEnd looks at what is left when all is known: nothing of the dead, and no count
// that is not for anything.
func (w *world) checkEnd(p planner) {
	for slot, s := range w.sessions {
		if w.living[s.serial] == nil {
			w.fail("in the end: session %d of slot %d is dead and there", s.serial, slot)
		}
	}
	for n, c := range w.chunks {
		for slot := range c.bits {
			if slot != 0 && w.sessions[slot] == nil {
				w.fail("in the end: chunk %d has a bit of slot %d, which is free", n, slot)
			}
		}
		if c.serial == 0 && len(c.bits) > 0 || c.serial&takeover.Retiring != 0 {
			w.fail("in the end: chunk %d is half freed", n)
		}
	}
	for i, g := range w.segments {
		if w.ownedBy(g.owner) == 0 && !w.heldIn(i, 99) {
			w.fail("in the end: segment %d of a dead session is there though it is not held", i)
		}
		if w.ownedBy(g.owner) == 0 && !g.orphan {
			w.fail("in the end: segment %d is no orphan", i)
		}
	}
	for i, serial := range w.remains {
		if w.ownerSlot(serial) != 0 || !w.needsFile(serial) {
			w.fail("in the end: remains %d are of a session that is there, or of which nothing is", i)
		}
	}
	for i, j := range w.joins {
		if w.ownerSlot(j.Session) == 0 || !j.Known {
			w.fail("in the end: join %d has no session", i)
		}
	}
	named := map[uint32]uint64{}
	for _, l := range w.lanes {
		for _, m := range l.messages {
			if w.awaited(m) {
				return // any count may be for it
			}
			for _, ref := range m.refs {
				if l.name || l.state == protocol.LaneAdopted {
					named[ref.Index]++
				}
			}
		}
	}
	for _, l := range w.leases {
		named[l.ref.Index]++
	}
	for index, n := range w.refcounts {
		if n != named[index] {
			w.fail("in the end: storage %d is named %d times by the broker and counted %d times", index, named[index], n)
		}
	}
}

func TestGeneratedWorlds(t *testing.T) {
	p := planner{plan: takeover.Plan}
	each(worlds(t), func(seed uint64) bool {
		wrong := p.run(seed)
		if len(wrong) > 0 {
			t.Errorf("world %d: %s", seed, wrong[0])
		}
		return len(wrong) == 0
	})
}

// each tries seeds on all processors until one is refused.
func each(n uint64, try func(seed uint64) bool) (all bool) {
	const workers = 4
	var wg sync.WaitGroup
	var mu sync.Mutex
	all = true
	for k := range uint64(workers) {
		wg.Go(func() {
			for seed := k; seed < n; seed += workers {
				mu.Lock()
				goOn := all
				mu.Unlock()
				if !goOn {
					return
				}
				if !try(seed) {
					mu.Lock()
					all = false
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return all
}
