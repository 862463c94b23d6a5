package shm

import (
	"math/bits"
	"slices"

	"github.com/baton-ipc/baton/protocol"
)

// Active is which lanes of a topic have sent something of late: a bit for each. A sender
// sets that of its lane after its publish, a reader clears those of lanes that are silent.
// A clear raises the turn, which stands in the same word: a reader that sees another turn than
// before looks at all lanes of the word.
type Active struct{ r Region }

const (
	turnOne  = uint64(1) << protocol.ActiveLanes
	laneBits = turnOne - 1
)

// Active views the lanes of the topic that have sent of late.
func (w Waits) Active() Active {
	return Active{w.r.Sub(protocol.WaitActive, 8*protocol.ActiveWords)}
}

// Mark has readers look at a lane. The caller has published and then called Fence.
//
// SYNC active: published before the fence, then the look at the bit; pairs with Scan. One
// that finds the bit set read the word before it was cleared, so a reader that sees the word
// cleared, and fences, sees what was published.
func (a Active) Mark(lane uint32) {
	at, bit := uint64(lane/protocol.ActiveLanes)*8, uint64(1)<<(lane%protocol.ActiveLanes)
	if a.r.Load64(at)&bit == 0 { // MODEL active:look-bit
		a.r.Or64(at, bit) // MODEL active:set-bit
		Fence()           // before the caller's look at the readers asleep
	}
}

// clear takes lanes out that are silent, where the word is still what was seen.
func (a Active) clear(w int, seen, silent uint64) {
	a.r.CAS64(uint64(w)*8, seen, seen&^silent+turnOne) // MODEL active:clear
}

// Reset empties all words. The broker's, before it lists the topic.
func (a Active) Reset() { clear(a.r.Bytes(0, a.r.Len())) }

// Scan is which lanes a reader looks at: all of few. Of many those that are active, and
// those in which it has not yet found that nothing is left. One that it passes over holds
// nothing whose sender has returned.
//
// From time to time it looks at all of them. So what a sender published that died before it marked
// its lane, or whose mark was spoiled, is late and not lost.
type Scan struct {
	active Active
	words  []scanned // none: the lanes are few
	index  []uint16  // by lane: of those that Begin was given
	heads  []uint64  // by index, at the last full look
	next   uint64    // when all are looked at again
	chosen []int
}

// scanned is a word of the active lanes as a scan last saw it.
type scanned struct {
	seen uint64
	all  uint64 // lanes that there are
	open uint64 // lanes to be looked at
}

const (
	// fewLanes are looked at one by one: more than that costs as much as the words.
	fewLanes = 8
	// A full look costs some tens of ns for each lane: so it is a thousandth of the time.
	fullLookEach  = 40_000     // ns for each lane
	fullLookLeast = 10_000_000 // ns
)

// Begin has the scan look at lanes of these numbers, whose indices it will name.
func (s *Scan) Begin(a Active, lanes []uint32) {
	*s = Scan{active: a, words: s.words[:0], index: s.index[:0], heads: s.heads[:0], chosen: s.chosen[:0]}
	if len(lanes) <= fewLanes {
		for k := range lanes {
			s.chosen = append(s.chosen, k)
		}
		return
	}
	for k, n := range lanes {
		for w := int(n / protocol.ActiveLanes); len(s.words) <= w; {
			s.words = append(s.words, scanned{})
		}
		for len(s.index) <= int(n) {
			s.index = append(s.index, 0)
		}
		s.words[n/protocol.ActiveLanes].all |= 1 << (n % protocol.ActiveLanes)
		s.index[n] = uint16(k)
	}
	s.heads = append(s.heads, make([]uint64, len(lanes))...)
	s.openAll()
}

func (s *Scan) openAll() {
	for w := range s.words {
		s.words[w].open = s.words[w].all
	}
}

// each calls f with the index of each lane of a word that is set in lanes.
func (s *Scan) each(w int, lanes uint64, f func(k int, bit uint64)) {
	for ; lanes != 0; lanes &= lanes - 1 {
		n := bits.TrailingZeros64(lanes)
		f(int(s.index[w*protocol.ActiveLanes+n]), 1<<n)
	}
}

// Due tells whether it is time for a FullLook. The clock is monotonic, in ns.
func (s *Scan) Due(clock func() uint64) bool { return len(s.words) > 0 && clock() >= s.next }

// FullLook has all lanes looked at, at a time of the clock, and clears those that are active and have sent nothing
// since the last one. head tells a lane's head, pending whether it has anything for the reader.
func (s *Scan) FullLook(now uint64, head func(k int) uint64, pending func(k int) bool) {
	s.next = now + max(fullLookLeast, fullLookEach*uint64(len(s.heads)))
	for w := range s.words {
		word := s.active.r.Load64(uint64(w) * 8)
		silent := uint64(0)
		s.each(w, word&s.words[w].all, func(k int, bit uint64) {
			if h := head(k); h != s.heads[k] {
				s.heads[k] = h
			} else if !pending(k) {
				silent |= bit
			}
		})
		if silent != 0 {
			s.active.clear(w, word, silent)
		}
	}
	s.openAll()
}

// Look returns the indices of the lanes to be looked at. It is valid until the next call.
//
// SYNC active: the word, then a fence, then the look at a lane that is passed over from
// here on; pairs with Active.Mark.
func (s *Scan) Look(pending func(k int) bool) []int {
	if len(s.words) == 0 {
		return s.chosen
	}
	s.chosen = s.chosen[:0]
	for i := range s.words {
		w := &s.words[i]
		word := s.active.r.Load64(uint64(i) * 8) // MODEL active:read-word
		if word&^laneBits != w.seen&^laneBits {
			w.open = w.all // MODEL active:other-turn
		}
		w.seen = word
		w.open |= word & w.all
		if quiet := w.open &^ word; quiet != 0 {
			Fence()
			s.each(i, quiet, func(k int, bit uint64) {
				if !pending(k) { // MODEL active:pass-over
					w.open &^= bit
				}
			})
		}
		s.each(i, w.open, func(k int, _ uint64) { s.chosen = append(s.chosen, k) })
	}
	return s.chosen
}

// Ready tells whether Look may name a lane that has something. It changes nothing.
func (s *Scan) Ready(pending func(k int) bool) bool {
	if len(s.words) == 0 {
		return slices.ContainsFunc(s.chosen, pending)
	}
	for i := range s.words {
		w := &s.words[i]
		word := s.active.r.Load64(uint64(i) * 8)
		if word&^laneBits != w.seen&^laneBits {
			return true
		}
		for lanes := w.open | word&w.all; lanes != 0; lanes &= lanes - 1 {
			if pending(int(s.index[i*protocol.ActiveLanes+bits.TrailingZeros64(lanes)])) {
				return true
			}
		}
	}
	return false
}
