package topics

import (
	"maps"
	"slices"
	"time"

	"github.com/baton-ipc/baton/broker/memory"
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/protocol"
)

// An item of a queue with redelivery has one taker, which may write it. If the session of a taker
// ends while its process lives (it was closed or evicted), the process goes on with what it
// holds. The item goes to other takers only once the session's refcounts do not count it any more.

// leftMember is a member of a group that is no more.
type leftMember struct {
	// file has the refcounts that count what it claimed. nil: it is not known, since no broker ran when the
	// member claimed or left.
	file   *sessionfiles.SessionFile
	joined bool // its join, of this holder, is in the record still
	join   uint32
	holder record.Holder
}

// noteLeft notes that a member of a group is no more, and whose refcounts may count what it has claimed.
func (ts *Topics) noteLeft(g *group, m uint16, l leftMember) {
	if g.left == nil {
		g.left = map[uint16]leftMember{}
	}
	g.left[m] = l
	ts.left[g] = struct{}{}
}

// overLeft ends the look after a member that is no more.
func (ts *Topics) overLeft(l leftMember) {
	if l.joined {
		ts.dropJoin(l.join, l.holder)
	}
}

// hasLeft tells whether a member is one that is no more, and whose process may hold what it has claimed.
func (g *group) hasLeft(m uint16) bool {
	_, is := g.left[m]
	return is
}

// stillHeld tells whether the process of a member that is no more still holds the message that
// it has claimed. The owner of a claim is not known where no broker ran when it was made or its member left: then all
// refcounts count. One of them may count the message for another reason, and the item waits for that one.
func (ts *Topics) stillHeld(g *group, l *Lane, i uint64, m uint16) bool {
	p := g.left[m].file
	if p == nil && g.members[m] != nil || !l.File.There() || i == 0 || !l.View.Has(i) {
		return false // a member whose process has died, or nothing is there
	}
	budget := 2 * protocol.MaxRefs
	indices, _ := ts.storagesOf(l, i, &budget)
	return slices.ContainsFunc(indices, func(index uint32) bool {
		return ts.memory.CountedBy(index, func(s *memory.Account) bool { return p == nil || s.SessionFile == p }, l.File)
	})
}

// storagesOf lists the storages that a message of a lane names: none if it has gone meanwhile or
// cannot be read. awaited: some stand in a file that was not handed over. budget bounds how
// many are read.
func (ts *Topics) storagesOf(l *Lane, i uint64, budget *int) (indices []uint32, awaited bool) {
	if l.state == protocol.LaneAdopted {
		return slices.Clone(l.kept[i]), false
	}
	h, data, ok := l.View.Read(i, nil)
	if !ok {
		return nil, false
	}
	refs, awaited, _ := ts.memory.NamedBy(h, data, budget)
	if !l.View.Has(i) {
		return nil, awaited // it may have been a mixture
	}
	for _, r := range refs {
		indices = append(indices, r.Index)
	}
	return indices, awaited
}

// Left tells how many groups have members that are no more and may hold what they claimed.
func (ts *Topics) Left() int { return len(ts.left) }

// FreeLeft frees the messages that such members have dropped, and tells whether there were any.
func (ts *Topics) FreeLeft(most time.Duration) (progress bool) {
	began := time.Now()
	for g := range ts.left {
		progress = ts.freeLeft(g) || progress
		if time.Since(began) > most {
			break
		}
	}
	return progress
}

// Freed frees the claims of a session whose refcounts are empty.
func (ts *Topics) Freed(p *sessionfiles.SessionFile) {
	for g := range ts.left {
		for _, whose := range g.left {
			if whose.file == p || whose.file == nil {
				ts.freeLeft(g)
				break
			}
		}
	}
}

func (ts *Topics) freeLeft(g *group) bool {
	freed := ts.release(g, g.hasLeft)
	claimants := ts.claimants(g)
	maps.DeleteFunc(g.left, func(m uint16, l leftMember) bool {
		_, claims := claimants[m]
		if !claims {
			ts.overLeft(l)
		}
		return !claims
	})
	if len(g.left) == 0 {
		ts.forgetLeft(g)
	}
	if freed {
		ts.ring(g.topic, g.topic.awaitsClaims)
	}
	return freed
}

// forgetLeft ends the look after members of a group that are no more.
func (ts *Topics) forgetLeft(g *group) {
	for _, l := range g.left {
		ts.overLeft(l)
	}
	g.left = nil
	delete(ts.left, g)
}

// KeptBy counts the items that a session had claimed which is no more, and that its process may still hold.
func (ts *Topics) KeptBy(p *sessionfiles.SessionFile) (items int) {
	for g := range ts.left {
		var claims map[uint16]int
		for m, whose := range g.left {
			if whose.file != p {
				continue
			}
			if claims == nil {
				claims = ts.claimants(g)
			}
			items += claims[m]
		}
	}
	return items
}

// claimants are the members that have claimed what they have not acknowledged, and how many items each has.
func (ts *Topics) claimants(g *group) map[uint16]int {
	all := map[uint16]int{}
	for n, l := range g.topic.lanes {
		a, ok := g.area(n)
		for k := uint64(0); ok && l.File.There() && k < l.View.Slots(); k++ {
			if i := l.View.Seq(k); i != 0 {
				if m := a.Claimant(i); m != 0 {
					all[m]++
				}
			}
		}
	}
	return all
}
