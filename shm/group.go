package shm

import (
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/protocol"
)

// GroupLane is one lane's area in a group's file: the hint, the number that the
// group is promised from, and a claim word for each slot. The claim word is the
// truth; the hint says where to look first. Members write it, so one that breaks the
// protocol can lose or block this group's messages, and nothing else.
//
// An area is used by one lane after the other. Hint and claim words have the
// area's own numbers, which never return: message i of a lane is number base+i,
// and the base of the next lane lies beyond all numbers of this one. So a member
// that still has the view of a former lane finds nothing open, and no swap of it
// can succeed, whenever it is carried out.
type GroupLane struct {
	r    Region
	mask uint64
	base uint64
}

// mostBase bounds a base, so that numbers fit a claim word.
const mostBase = 1<<50 - 1<<48

// blindJump is how far the next base lies away where the broker could not note how
// far the lane before came: more than a lane sends while its group's file is missing.
const blindJump = 1 << 40

// NewGroupLane views lane number lane of a group file whose topic has slots, for the lane that has
// the number now. A process that is neither its writer nor the broker looks at the lane's
// incarnation afterwards: it is still the one that the view is meant for, or the view is of no use.
// CodeProtocol: the area does not fit the file.
//
// SYNC claim-base: read before the incarnation; the broker sets it before it lists
// the lane, after it has cleared the incarnation of the one before.
func NewGroupLane(file Region, lane uint32, slots uint32) (GroupLane, error) {
	n := protocol.GroupAreaBytes(slots)
	at := protocol.GroupAreas + uint64(lane)*n
	if lane >= protocol.MaxLanes || slots == 0 || slots&(slots-1) != 0 || !file.Has(at, n) {
		return GroupLane{}, protocol.Errorf(protocol.CodeProtocol, "report this with the broker's log, see docs/support.md: broker and client disagree",
			"claims of lane %d with %d slots do not fit a group file of %d bytes", lane, slots, file.Len())
	}
	r := file.Sub(at, n)
	return GroupLane{r, uint64(slots - 1), min(r.Load64(protocol.GroupBase), mostBase)}, nil // MODEL reuse:base
}

func (g GroupLane) claim(i uint64) uint64 { return protocol.GroupClaims + 8*(i&g.mask) }

// Start returns the first number that the group is promised.
func (g GroupLane) Start() uint64 { return g.r.Load64(protocol.GroupStart) }

// SetStart sets it; the broker's, when it makes a group or a lane.
func (g GroupLane) SetStart(i uint64) { g.r.Store64(protocol.GroupStart, i) }

// Leave notes that the lane which has the area has ended, with head as its last
// message: the next one's numbers begin beyond. The broker's, before it clears the
// lane's incarnation; doing it again changes nothing.
//
// SYNC claim-base: until the incarnation is cleared the base stays what it is.
func (g GroupLane) Leave(head uint64) {
	if next := g.base + min(head, mostMessages) + g.mask + 2; next > g.r.Load64(protocol.GroupNext) {
		g.r.Store64(protocol.GroupNext, next)
	}
}

// Reset makes the area ready for a new lane: nothing claimed, promised from start.
// False: its numbers are used up. The broker's, while no lane is listed that has it.
//
// SYNC claim-base: a member that sees the incarnation of the new lane, which comes
// afterwards, sees this base and no claim of a former lane.
func (g GroupLane) Reset(start uint64) bool {
	base := g.next()
	if base > mostBase {
		return false
	}
	g.r.Store64(protocol.GroupBase, base) // MODEL reuse:reset
	g.r.Store64(protocol.GroupStart, start)
	g.r.Store64(protocol.GroupHint, protocol.HintWord(base, 0))
	for i := uint64(0); i <= g.mask; i++ {
		g.r.Store64(g.claim(i), protocol.ClaimWord(base, 0, protocol.ClaimFree))
	}
	return true
}

// next returns where the numbers of the next lane begin.
func (g GroupLane) next() uint64 {
	start := g.r.Load64(protocol.GroupStart)
	switch next := g.r.Load64(protocol.GroupNext); {
	case next > g.base:
		return next
	case start == 0: // never used
		return g.base
	case start == protocol.NoStart || !g.untouched():
		return g.base + blindJump
	}
	// Made ready for a lane that was not listed, or that nothing was taken of: its
	// writer could not come further than this.
	return g.base + min(start, mostMessages) + 2*(g.mask+1)
}

// untouched tells that nothing was claimed since the last Reset.
func (g GroupLane) untouched() bool {
	for i := uint64(0); i <= g.mask; i++ {
		if g.Claim(i) != protocol.ClaimWord(g.base, 0, protocol.ClaimFree) {
			return false
		}
	}
	return true
}

// number is message i's in the area; a head is bounded, so it fits.
func (g GroupLane) number(i uint64) uint64 { return g.base + min(i, mostMessages+1) }

// Hint returns the hint word, and the message in it.
func (g GroupLane) Hint() (word, next uint64) {
	word = g.r.Load64(protocol.GroupHint)
	n, _ := protocol.SplitHint(word)
	return word, n - min(n, g.base)
}

// Claim returns the claim word of message i.
func (g GroupLane) Claim(i uint64) uint64 { return g.r.Load64(g.claim(i)) }

// Open tells whether message i is there for this group to take: neither claimed
// nor done, nor its slot in use for a later one.
func (g GroupLane) Open(i uint64) bool { return isOpen(g.Claim(i), g.number(i)) }

func isOpen(claim, number uint64) bool {
	n, _, state := protocol.SplitClaim(claim)
	return n < number || n == number && state == protocol.ClaimFree
}

// Claimant returns the member that has claimed message i and has not acknowledged it; 0: none.
func (g GroupLane) Claimant(i uint64) uint16 {
	n, member, state := protocol.SplitClaim(g.Claim(i))
	if n == g.number(i) && (state == protocol.ClaimClaimed || state == protocol.ClaimBegun) {
		return member
	}
	return 0
}

// Next returns the first message at or after the hint, at most head, that is
// open, and the hint word to give to Take.
func (g GroupLane) Next(head uint64) (i, hint uint64, ok bool) {
	head = min(head, mostMessages)
	hint, i = g.Hint()
	if s := g.Start(); s != protocol.NoStart {
		i = max(i, s)
	}
	// A hint that is far behind, or false, costs at most one turn of the ring: older
	// messages have left their slots.
	if n := g.mask + 1; head > n {
		i = max(i, head-n+1)
	}
	for i = max(i, 1); i <= head; i++ {
		if g.Open(i) {
			return i, hint, true
		}
	}
	return 0, hint, false
}

// Take claims message i for a member, which holds its references already, and
// moves the hint. It fails when another was first.
//
// SYNC claim: a successful swap is the hand-over; a writer that sees DONE here may
// reuse the slot, so the member's refcounts were raised before.
func (g GroupLane) Take(i, hint uint64, member uint16, acknowledge bool) bool {
	old, number := g.Claim(i), g.number(i) // MODEL group:claim-read
	if !isOpen(old, number) {
		return false
	}
	state := uint8(protocol.ClaimDone)
	if acknowledge {
		state = protocol.ClaimClaimed
	}
	if !g.r.CAS64(g.claim(i), old, protocol.ClaimWord(number, member, state)) { // MODEL group:claim-cas reuse:claim
		return false
	}
	crashpoint.At("claim-swapped")
	// The hint's version keeps this swap from undoing a rewind: failing is fine.
	_, version := protocol.SplitHint(hint)
	g.r.CAS64(protocol.GroupHint, hint, protocol.HintWord(number+1, version)) // MODEL group:hint-cas
	crashpoint.At("claim-hinted")
	return true
}

// Acknowledge marks a claimed message done. It fails when the claim was taken
// away, which happens to the dead only.
//
// SYNC claim: releases what the member did before; pairs with Done.
func (g GroupLane) Acknowledge(i uint64, member uint16) bool {
	number := g.number(i)
	return g.r.CAS64(g.claim(i), protocol.ClaimWord(number, member, protocol.ClaimClaimed),
		protocol.ClaimWord(number, member, protocol.ClaimDone))
}

// Begin tells all that the function of a call runs, which the provider has claimed. It fails when the
// claim was taken away.
//
// SYNC claim: a broker that finds it begun gives it to no other provider, unless it may be run twice.
func (g GroupLane) Begin(i uint64, member uint16) bool {
	number := g.number(i)
	return g.r.CAS64(g.claim(i), protocol.ClaimWord(number, member, protocol.ClaimClaimed),
		protocol.ClaimWord(number, member, protocol.ClaimBegun))
}

// End marks a call done that was begun, after its reply. It fails when the claim was taken away.
//
// SYNC claim: as Acknowledge. A caller that sees it finds the reply, if there is one.
func (g GroupLane) End(i uint64, member uint16) bool {
	number := g.number(i)
	return g.r.CAS64(g.claim(i), protocol.ClaimWord(number, member, protocol.ClaimBegun),
		protocol.ClaimWord(number, member, protocol.ClaimDone))
}

// CallState is how a call stands.
type CallState uint8

// How it stands.
const (
	CallWaits   CallState = iota // no provider has it
	CallClaimed                  // a provider has it, and its function does not run yet
	CallBegun                    // the function runs
	CallDone                     // it is over
)

// Call tells how the call which message i is stands, and which member has it, or had it at the end.
//
// SYNC claim: pairs with End, and with a broker that ends the claims of the dead: a reply that was
// sent before is found after a state of CallDone.
func (g GroupLane) Call(i uint64) (uint16, CallState) {
	n, member, state := protocol.SplitClaim(g.Claim(i))
	switch number := g.number(i); {
	case n > number:
		return 0, CallDone
	case n < number || state == protocol.ClaimFree:
		return 0, CallWaits
	}
	switch state {
	case protocol.ClaimClaimed:
		return member, CallClaimed
	case protocol.ClaimBegun:
		return member, CallBegun
	}
	return member, CallDone
}

// BegunBefore tells how often a call that waits was begun by providers that have ended, at least.
func (g GroupLane) BegunBefore(i uint64) uint16 {
	if n, times, state := protocol.SplitClaim(g.Claim(i)); n == g.number(i) && state == protocol.ClaimFree {
		return times
	}
	return 0
}

// Done tells whether the group is finished with message i, or was never
// promised it, so that its slot may be reused.
//
// SYNC claim: pairs with Take and Acknowledge.
func (g GroupLane) Done(i uint64) bool {
	if i < g.Start() {
		return true
	}
	n, _, state := protocol.SplitClaim(g.Claim(i))
	number := g.number(i)
	return n > number || n == number && state == protocol.ClaimDone
}

// Drop marks message i done for the group, unless it is or a member has claimed it, and tells
// whether it did. The broker's; the caller of a function withdraws a call by it as well.
//
// SYNC claim: as Take, for no member; the slot may be used anew.
func (g GroupLane) Drop(i uint64) bool {
	if i < g.Start() {
		return false
	}
	old, number := g.Claim(i), g.number(i)
	return isOpen(old, number) && g.r.CAS64(g.claim(i), old, protocol.ClaimWord(number, 0, protocol.ClaimDone))
}

// Release frees every claim of members that are over, lowers the hint to the first of
// them and bumps its version. The broker's. over is asked with the message that was claimed,
// 0 where the number says of none. It returns how many it freed.
func (g GroupLane) Release(over func(i uint64, member uint16) bool) int {
	return g.changeClaimed(over, protocol.ClaimFree)
}

// Finish marks what such members have claimed done, where no other member is to take it: of a
// topic that was deleted. The broker's. It returns how many it marked.
//
// SYNC claim: as Acknowledge, in the place of the member.
func (g GroupLane) Finish(over func(i uint64, member uint16) bool) int {
	return g.changeClaimed(over, protocol.ClaimDone)
}

func (g GroupLane) changeClaimed(over func(i uint64, member uint16) bool, to uint8) int {
	return g.ReleaseCalls(func(i uint64, m uint16, state uint8) (uint8, uint16, bool) {
		return to, m, state == protocol.ClaimClaimed && over(i, m)
	}, func(uint64, uint8, uint16) {})
}

// ReleaseCalls gives claims of members another state, where end says so: of each that a member has,
// CLAIMED or BEGUN, the next state, and what its member bits say then. changed is called with those
// once they hold. What becomes free lowers the hint and bumps its version. The broker's. It returns how
// many have changed.
//
// SYNC claim: as Release; of a call that is over as Acknowledge, in the place of the member.
func (g GroupLane) ReleaseCalls(end func(i uint64, member uint16, state uint8) (to uint8, as uint16, ok bool), changed func(i uint64, to uint8, as uint16)) (n int) {
	freed, first := false, uint64(0)
	for k := uint64(0); k <= g.mask; k++ {
		w := g.Claim(k)
		number, m, state := protocol.SplitClaim(w)
		if state != protocol.ClaimClaimed && state != protocol.ClaimBegun {
			continue
		}
		i := number - min(number, g.base)
		to, as, ok := end(i, m, state)
		// The slot is k whatever number stands in it: members may write rubbish.
		if !ok || !g.r.CAS64(protocol.GroupClaims+8*k, w, protocol.ClaimWord(number, as, to)) { // MODEL group:free-claims
			continue
		}
		n++
		changed(i, to, as)
		if to == protocol.ClaimFree && (!freed || number < first) {
			freed, first = true, number
		}
	}
	if freed {
		g.rewind(first)
	}
	return n
}

// Rewind lowers the hint to the first message and bumps its version, so that a late
// swap of the former one fails. The broker's.
func (g GroupLane) Rewind() { g.rewind(g.number(1)) }

func (g GroupLane) rewind(next uint64) {
	n, v := protocol.SplitHint(g.r.Load64(protocol.GroupHint))
	// A swap that came in between is undone, which costs the next member a longer
	// look. A swap here could fail on and on while members swap.
	g.r.Store64(protocol.GroupHint, protocol.HintWord(min(n, next), v+1))
}
