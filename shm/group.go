package shm

import (
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/protocol"
)

// GroupLane is one lane's area in a group's file: the hint, the number that the
// group is promised from, and a claim word for each slot. The claim word is the
// truth; the hint says where to look first. Members write it, so a lying one
// can lose or block this group's messages, and nothing else.
type GroupLane struct {
	r    Region
	mask uint64
}

// NewGroupLane views lane number lane of a group file whose topic has slots.
func NewGroupLane(file Region, lane uint32, slots uint32) (GroupLane, error) {
	n := protocol.GroupAreaBytes(slots)
	at := protocol.GroupAreas + uint64(lane)*n
	if lane >= protocol.MaxLanes || slots == 0 || slots&(slots-1) != 0 || !file.Has(at, n) {
		return GroupLane{}, protocol.Errorf(protocol.CodeProtocol, "report this: broker and client disagree",
			"claims of lane %d with %d slots do not fit a group file of %d bytes", lane, slots, file.Len())
	}
	return GroupLane{file.Sub(at, n), uint64(slots - 1)}, nil
}

func (g GroupLane) claim(i uint64) uint64 { return protocol.GroupClaims + 8*(i&g.mask) }

// Start returns the first number that the group is promised.
func (g GroupLane) Start() uint64 { return g.r.Load64(protocol.GroupStart) }

// SetStart sets it; the broker's, when it makes a group or a lane.
func (g GroupLane) SetStart(i uint64) { g.r.Store64(protocol.GroupStart, i) }

// Reset forgets everything, for a lane number that is used anew. The broker's.
func (g GroupLane) Reset() {
	g.r.Store64(protocol.GroupStart, protocol.NoStart)
	g.r.Store64(protocol.GroupHint, 0)
	for i := uint64(0); i <= g.mask; i++ {
		g.r.Store64(g.claim(i), 0)
	}
}

// Hint returns the hint word; Next the number in it.
func (g GroupLane) Hint() (word, next uint64) {
	word = g.r.Load64(protocol.GroupHint)
	next, _ = protocol.SplitHint(word)
	return word, next
}

// Claim returns the claim word of message i.
func (g GroupLane) Claim(i uint64) uint64 { return g.r.Load64(g.claim(i)) }

// Open tells whether message i is there for this group to take: neither claimed
// nor done, nor its slot in use for a later one.
func (g GroupLane) Open(i uint64) bool {
	n, _, state := protocol.SplitClaim(g.Claim(i))
	return n < i || n == i && state == protocol.ClaimFree
}

// Next returns the first message at or after the hint, at most head, that is
// open, and the hint word to give to Take.
func (g GroupLane) Next(head uint64) (i, hint uint64, ok bool) {
	hint, i = g.Hint()
	if s := g.Start(); s != protocol.NoStart {
		i = max(i, s)
	}
	// A hint far behind, or a liar's, costs at most one turn of the ring: older
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

// Take claims message i for a member, who holds its references already, and
// moves the hint. It fails when another was first.
//
// SYNC claim: a successful swap is the hand-over; whoever sees DONE here may
// reuse the slot, so the member's row was raised before.
func (g GroupLane) Take(i, hint uint64, member uint8, acknowledge bool) bool {
	old := g.Claim(i) // MODEL group:claim-read
	if n, _, state := protocol.SplitClaim(old); n > i || n == i && state != protocol.ClaimFree {
		return false
	}
	state := uint8(protocol.ClaimDone)
	if acknowledge {
		state = protocol.ClaimClaimed
	}
	if !g.r.CAS64(g.claim(i), old, protocol.ClaimWord(i, member, state)) { // MODEL group:claim-cas
		return false
	}
	crashpoint.At("claim-swapped")
	// The hint's version keeps this swap from undoing a rewind: failing is fine.
	_, version := protocol.SplitHint(hint)
	g.r.CAS64(protocol.GroupHint, hint, protocol.HintWord(i+1, version)) // MODEL group:hint-cas
	crashpoint.At("claim-hinted")
	return true
}

// Acknowledge marks a claimed message done. It fails when the claim was taken
// away, which happens to the dead only.
//
// SYNC claim: releases what the member did before; pairs with Done.
func (g GroupLane) Acknowledge(i uint64, member uint8) bool {
	return g.r.CAS64(g.claim(i), protocol.ClaimWord(i, member, protocol.ClaimClaimed),
		protocol.ClaimWord(i, member, protocol.ClaimDone))
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
	return n > i || n == i && state == protocol.ClaimDone
}

// Release frees every claim of a dead member, lowers the hint to the first of
// them and bumps its version. The broker's. It returns how many it freed.
func (g GroupLane) Release(member uint8) int {
	freed, first := 0, uint64(0)
	for k := uint64(0); k <= g.mask; k++ {
		w := g.Claim(k)
		n, m, state := protocol.SplitClaim(w)
		if m != member || state != protocol.ClaimClaimed {
			continue
		}
		// The slot is k whatever number stands in it: members may write rubbish.
		if g.r.CAS64(protocol.GroupClaims+8*k, w, protocol.ClaimWord(n, member, protocol.ClaimFree)) { // MODEL group:free-claims
			freed++
			if first == 0 || n < first {
				first = n
			}
		}
	}
	if freed > 0 {
		g.Rewind(first)
	}
	return freed
}

// Rewind lowers the hint to at most next and bumps its version, so that a late
// swap of the former one fails. The broker's.
func (g GroupLane) Rewind(next uint64) {
	n, v := protocol.SplitHint(g.r.Load64(protocol.GroupHint))
	// A swap that came in between is undone, which costs the next member a longer
	// look. Swapping here as well would be up to who writes on and on.
	g.r.Store64(protocol.GroupHint, protocol.HintWord(min(n, next), v+1))
}
