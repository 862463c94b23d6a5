package client

import (
	"time"
)

// compareEvery is how often a client that maps anything of others compares it with the
// broker's records, although no event asks for it: an event may be lost with a
// connection.
const compareEvery = 5 * time.Second

// compare finds what the broker has taken back: segments that are mapped here and
// recorded no more, lanes that were left and are listed no more, and the files of
// sessions that are over. A broker that is away takes nothing back.
func (s *session) compare() {
	if s.link.IsAway() {
		return
	}
	gone := s.memory.goneSegments()
	s.pages.lanes.compare(s.pages.listed)
	s.memory.trim(gone)
	s.memory.forgetEnded()
	s.memory.handOverOwed()
	s.topics.forgetDeleted()
}
