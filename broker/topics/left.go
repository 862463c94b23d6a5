package topics

import (
	"maps"
	"slices"
	"time"

	"github.com/baton-ipc/baton/broker/memory"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/protocol"
)

// An item of a queue with redelivery has one taker, which may write it. If the session of a taker
// ends while its process lives (it was closed or evicted), the process goes on with what it
// holds. The item goes to other takers only once the session's row does not count it any more.

// stillHeld tells whether the process of a member that is no more still holds the message that
// it has claimed. The owner of a claim from a former broker's time is not known: then the rows
// of all closed sessions count.
func (ts *Topics) stillHeld(g *group, l *Lane, i uint64, m uint16) bool {
	p := g.left[m]
	if p == nil && g.members[m] != nil || !l.File.There() || i == 0 || !l.View.Has(i) {
		return false // a member whose process has died, or nothing is there
	}
	budget := 2 * protocol.MaxRefs
	indices, _ := ts.storagesOf(l, i, &budget)
	return slices.ContainsFunc(indices, func(index uint32) bool {
		return ts.memory.CountedBy(index, func(s *memory.Account) bool {
			return p != nil && s.SessionFile == p || p == nil && s.Closed
		}, l.File)
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

// Freed frees the claims of a session whose row is empty.
func (ts *Topics) Freed(p *sessionfiles.SessionFile) {
	for g := range ts.left {
		if slices.Contains(slices.Collect(maps.Values(g.left)), p) {
			ts.freeLeft(g)
		}
	}
}

func (ts *Topics) freeLeft(g *group) bool {
	freed := ts.release(g, func(m uint16) bool { return g.left[m] != nil })
	for m := range g.left {
		if !ts.claims(g, m) {
			delete(g.left, m)
		}
	}
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
	g.left = nil
	delete(ts.left, g)
}

// claims tells whether a member has claimed anything that it has not acknowledged.
func (ts *Topics) claims(g *group, m uint16) bool {
	for n, l := range g.topic.lanes {
		a, ok := g.area(n)
		for k := uint64(0); ok && l.File.There() && k < l.View.Slots(); k++ {
			if i := l.View.Seq(k); i != 0 && a.Claimant(i) == m {
				return true
			}
		}
	}
	return false
}
