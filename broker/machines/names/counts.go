package names

import (
	"time"

	"github.com/baton-ipc/baton/protocol"
)

// TookBounds are the upper bounds of [Counts.Took], in seconds: an answer of one server, of a cluster, and an election.
var TookBounds = []float64{.001, .004, .016, .064, .25, 1, 4, 16}

// Counts are what is counted of the names of a namespace since this broker began.
type Counts struct {
	// Sets of programs here, by how they were answered.
	SetsAgreed      uint64 `json:"sets_agreed"`
	SetsConflict    uint64 `json:"sets_conflict"`
	SetsUnreachable uint64 `json:"sets_unreachable"`
	SetsRefused     uint64 `json:"sets_refused"` // by any other error
	// Took are the sets that were agreed on within each of TookBounds, TookSeconds what all of them took.
	Took        []uint64 `json:"took"`
	TookSeconds float64  `json:"took_seconds"`
	// CameAhead are revisions of other hosts that came before a program asked for them, CameAsked those that it waited for.
	CameAhead uint64 `json:"came_ahead"`
	CameAsked uint64 `json:"came_asked"`
	// EvictedRoom are revisions that were let go for the room of others, EvictedReplaced those that another host has replaced.
	EvictedRoom     uint64 `json:"evicted_room"`
	EvictedReplaced uint64 `json:"evicted_replaced"`
}

// Add adds the counts of another namespace.
func (c *Counts) Add(o *Counts) {
	for i, n := range o.Took {
		if i == len(c.Took) {
			c.Took = append(c.Took, 0)
		}
		c.Took[i] += n
	}
	c.TookSeconds += o.TookSeconds
	for to, n := range map[*uint64]uint64{&c.SetsAgreed: o.SetsAgreed, &c.SetsConflict: o.SetsConflict, &c.SetsUnreachable: o.SetsUnreachable, &c.SetsRefused: o.SetsRefused,
		&c.CameAhead: o.CameAhead, &c.CameAsked: o.CameAsked, &c.EvictedRoom: o.EvictedRoom, &c.EvictedReplaced: o.EvictedReplaced} {
		*to += n
	}
}

func (s *space) count(change func(*Counts)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.counts)
}

// answered counts a set. One that is left to the next broker is not answered here.
func (s *space) answered(began time.Time, err error) {
	took := time.Since(began).Seconds()
	s.count(func(c *Counts) {
		switch code := protocol.CodeOf(err); {
		case err == ErrEnds:
		case err == nil:
			c.SetsAgreed++
			c.TookSeconds += took
			for i, bound := range TookBounds {
				if took <= bound {
					c.Took[i]++
				}
			}
		case code == protocol.CodeConflict:
			c.SetsConflict++
		case code == protocol.CodeUnreachable:
			c.SetsUnreachable++
		default:
			c.SetsRefused++
		}
	})
}

// tried notes a revision that has come.
func (s *space) tried(name string, err error) {
	if err != nil {
		return
	}
	s.count(func(c *Counts) {
		k := s.names[name]
		if k.ahead, k.came = s.waiting[name] == 0, time.Now(); k.ahead {
			c.CameAhead++
		} else {
			c.CameAsked++
		}
	})
}

// evict lets a revision go that no session here has open, and counts it.
func (s *space) evict(name string, replaced bool) uint64 {
	n := s.n.cfg.Local.Evict(s.ns, name, replaced)
	if n > 0 {
		s.count(func(c *Counts) {
			if replaced {
				c.EvictedReplaced++
			} else {
				c.EvictedRoom++
			}
		})
	}
	return n
}
