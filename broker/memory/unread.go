package memory

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/baton-ipc/baton/protocol"
)

// Pickles are the handles that were handed over in pickles and were not read. free tells how many bytes of a storage are
// free if the broker's refcounts count it so often less.
type Pickles interface {
	// GiveUp ends the leases of old ones, oldest first, until so many bytes are free by that. It returns how many
	// it ended, and the storages that are free.
	GiveUp(bytes uint64, free func(index uint32, less uint64) uint64) (n int, freed []uint32)
	// Young tells how many bytes would be free without those that are too young to be given up, and how old the
	// oldest of these is and has to be.
	Young(free func(index uint32, less uint64) uint64) (bytes uint64, age, limit time.Duration)
}

// GiveUp sets what may be given up.
func (m *Memory) GiveUp(p Pickles) { m.pickles = p }

// unreadFor is for what a client may have pickles given up that were not read.
type unreadFor struct {
	bytes uint64
	helps func(*segment) bool // whether memory that comes free in it is of use; nil: none is given up
}

// unreadForGrant is for a grant, if its client asks no more after a refusal.
func (m *Memory) unreadForGrant(s *Account, r *protocol.Grant, bytes uint64) unreadFor {
	if r.Fallback {
		return unreadFor{}
	}
	return unreadFor{bytes, func(g *segment) bool {
		switch {
		case g.device != nil:
			return false
		case m.isBeyondOwn(s, bytes):
			return g.holder == s
		case m.isBeyondAll(bytes):
			return true
		}
		return (g.kind == protocol.KindHugePages) == (r.PageBytes != 0)
	}}
}

// unreadForDevice is for a grant on a device.
func (m *Memory) unreadForDevice(s *Account, d *device, r *protocol.Grant, bytes uint64) unreadFor {
	if r.Fallback {
		return unreadFor{}
	}
	return unreadFor{bytes, func(g *segment) bool {
		return g.device == d && !g.isBorrowed() && (g.holder == s || !m.isBeyondOwnOn(s, d, bytes))
	}}
}

// unreadForLane is for a lane, whose client does not ask again: what the broker frees at once.
func (m *Memory) unreadForLane(bytes uint64) unreadFor {
	return unreadFor{bytes, func(g *segment) bool { return g.holder == nil && g.device == nil }}
}

// freedWithout tells how many bytes of a storage are free, in a segment that helps, if the broker's
// refcounts count it so often less: none where any other holder counts it, or the broker's for another
// reason.
//
// SYNC refcount: a reader that counts it up from now on looks at the generation after that, and holds what it
// found; its owner recycles nothing that a holder counts.
func (m *Memory) freedWithout(helps func(*segment) bool) func(index uint32, less uint64) uint64 {
	return func(index uint32, less uint64) uint64 {
		c := m.chunkOf[index/protocol.ChunkIndices]
		if c == nil || !c.segment.owner.There() || !helps(c.segment) {
			return 0
		}
		held := false
		m.chunks.EachAttached(c.index, func(slot uint32) bool {
			most := uint64(0)
			if slot == protocol.BrokerSlot {
				most = less
			}
			refcounts, ok := m.refcountsOf(slot)
			held = !ok || refcounts.Count(index) > most
			return !held
		})
		if held {
			return 0
		}
		// The owner wrote it: at most the segment's size counts.
		return min(c.segment.owner.Entries.Load(index).Bytes, c.segment.bytes)
	}
}

// giveUpFor gives pickles up for a client whose grant is refused, and asks check again. A refusal after that says
// that pickles were given up, and that the client is to ask once more: what was freed is its owners' to
// recycle. elsewhere tells whether these are others, which are asked for what they do not use.
func (m *Memory) giveUpFor(s *Account, want unreadFor, refusal error, check func() error) error {
	if want.helps == nil || m.pickles == nil {
		return refusal
	}
	free := m.freedWithout(want.helps)
	n, freed := m.pickles.GiveUp(missing(refusal, want.bytes), free)
	if n == 0 {
		return m.withYoung(refusal, free)
	}
	elsewhere := slices.ContainsFunc(freed, func(index uint32) bool {
		c := m.chunkOf[index/protocol.ChunkIndices]
		return c.segment.holder != nil && c.segment.holder != s
	})
	m.ReclaimOrphans(reclaimTime)
	if refusal = check(); refusal == nil {
		return nil
	}
	var e *protocol.Error
	if !errors.As(refusal, &e) {
		return refusal
	}
	e.With(protocol.DetailGivenUp, n)
	if elsewhere {
		e.With(protocol.DetailElsewhere, true)
	}
	return refusal
}

// missing is how much would have to come free for what was refused, at most as much as was asked for.
func missing(refusal error, asked uint64) uint64 {
	var e *protocol.Error
	if errors.As(refusal, &e) {
		if n, is := e.Detail[detailMissing].(uint64); is {
			return min(n, asked)
		}
	}
	return asked
}

// withYoung adds to a refusal what handles keep that may be given up later.
func (m *Memory) withYoung(refusal error, free func(index uint32, less uint64) uint64) error {
	bytes, age, limit := m.pickles.Young(free)
	var e *protocol.Error
	if bytes == 0 || !errors.As(refusal, &e) {
		return refusal
	}
	e.Message += fmt.Sprintf("; %d bytes are kept by handles in pickles that were not read, until 30 s after the end of the session that made them, or where memory is refused until they are %s old (--unread-pickles): the oldest is %s old",
		bytes, limit, age.Round(time.Second/10))
	e.Remedy = "end those that no process is to read (baton ls leases, baton revoke LEASE), " + e.Remedy
	e.With("unread", bytes).With("unread_age_seconds", age.Seconds()).With("unread_limit_seconds", limit.Seconds())
	return refusal
}
