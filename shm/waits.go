package shm

import (
	"math/bits"

	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/protocol"
)

// Waits is the sessions that sleep until a message comes in a topic: set 0, all
// rung at each message, and a set for each group, of which one session is rung. The sets
// say only when a session looks: one that is forgotten looks a second later by itself.
type Waits struct {
	r     Region
	bells Bells
}

// Waits views the sets of a topic.
func (b Bells) Waits(topic uint32) Waits {
	return Waits{b.r.Sub(protocol.BellWaits+uint64(topic)*protocol.WaitAreaSize, protocol.WaitAreaSize), b}
}

// All is the set of sessions that are rung at each message.
func (w Waits) All() WaitSet { return w.set(0) }

// Group is the set of those of a group's members that take what they are woken for.
func (w Waits) Group(group uint32) WaitSet { return w.set(1 + uint64(group)) }

func (w Waits) set(n uint64) WaitSet {
	return WaitSet{w.r.Sub(protocol.WaitWords+8*n, 8),
		w.r.Sub(protocol.WaitMembers+n*8*protocol.BitmapWords, 8*protocol.BitmapWords), w.bells}
}

// WaitSet is a set of sessions by slot: a bit for each, and one word that says which words
// have any.
type WaitSet struct {
	words   Region
	members Region
	bells   Bells
}

// Clear empties the set. The broker's, before it lists the topic or group.
func (s WaitSet) Clear() {
	s.words.Store64(0, 0)
	clear(s.members.Bytes(0, 8*protocol.BitmapWords))
}

// Add notes that a session is going to sleep. The caller has read the bell, and fences and
// looks once more afterwards.
//
// SYNC waiting: the bits, then a fence, then the second look; pairs with Ring and
// RingOne, after a publish and a fence. One of the two sees the other. Bits that are set
// already were not claimed since: a claim is followed by a ring.
func (s WaitSet) Add(slot uint32) {
	at, bit := uint64(slot/64)*8, uint64(1)<<(slot%64)
	if s.members.Load64(at)&bit == 0 {
		s.members.Or64(at, bit) // MODEL waits:wait-member
	}
	crashpoint.At("wait-member")
	if word := uint64(1) << (slot / 64); s.words.Load64(0)&word == 0 {
		s.words.Or64(0, word) // MODEL waits:wait-word
	}
}

// Remove notes that a session does not sleep any more.
func (s WaitSet) Remove(slot uint32) {
	if s.members.Load64(uint64(slot/64)*8)&(1<<(slot%64)) != 0 {
		s.claim(slot)
	}
}

// claim takes a session out, and tells whether it was in.
//
// SYNC waiting: of several that claim one alone succeeds, and rings.
func (s WaitSet) claim(slot uint32) bool {
	w := slot / 64
	bit := uint64(1) << (slot % 64)
	old := s.members.And64(uint64(w)*8, ^bit) // MODEL waits:claim
	if old == bit {
		s.tidy(w)
	}
	return old&bit != 0
}

// tidy notes that a word has no members, unless one has come meanwhile. That one is rung: a
// sender that looked in between did not see it.
//
// SYNC waiting: a session that came before the word's bit was cleared is seen by the second
// look at the word, one that comes later sets the bit itself.
func (s WaitSet) tidy(w uint32) {
	s.words.And64(0, ^(uint64(1) << w)) // MODEL waits:tidy
	crashpoint.At("wait-tidied")
	if members := s.members.Load64(uint64(w) * 8); members != 0 {
		s.words.Or64(0, 1<<w)
		s.wake(w, members)
	}
}

// wake rings sessions of a word.
func (s WaitSet) wake(w uint32, members uint64) {
	crashpoint.At("wait-claimed")
	for ; members != 0; members &= members - 1 {
		s.bells.Wake(w*64 + uint32(bits.TrailingZeros64(members)))
	}
}

// Ring rings every session in the set. The caller has published and then called Fence.
func (s WaitSet) Ring() {
	for words := s.words.Load64(0); words != 0; words &= words - 1 {
		w := uint32(bits.TrailingZeros64(words))
		members := s.members.And64(uint64(w)*8, 0)
		s.tidy(w)
		s.wake(w, members)
	}
}

// RingOne rings one session of the set, if there is any: the one whose turn it is behind
// the last one, which it notes. The caller has published and then called Fence.
func (s WaitSet) RingOne(last *uint32) {
	words := s.words.Load64(0)
	if words == 0 {
		return
	}
	// From the word of the last one on, and round to its begin.
	first := *last / 64 % protocol.BitmapWords
	behind := ^uint64(1<<(*last%64+1) - 1)
	if *last%64 == 63 {
		behind = 0
	}
	for k := uint32(0); k <= protocol.BitmapWords; k++ {
		w := (first + k) % protocol.BitmapWords
		if words>>w&1 == 0 {
			continue
		}
		members := s.members.Load64(uint64(w) * 8)
		if k == 0 {
			members &= behind
		}
		for ; members != 0; members &= members - 1 {
			if slot := w*64 + uint32(bits.TrailingZeros64(members)); s.claim(slot) {
				*last = slot
				s.wake(w, 1<<(slot%64)) // MODEL waits:ring-one
				return
			}
		}
		if k > 0 && s.members.Load64(uint64(w)*8) == 0 {
			s.tidy(w)
		}
	}
}
