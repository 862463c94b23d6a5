package session

import (
	"time"
)

// compareEvery is how often a client that maps anything of others compares it with the
// broker's records, although no event asks for it: an event may be lost with a
// connection.
const compareEvery = 5 * time.Second

// Compare finds what the broker has taken back: segments that are mapped here and
// recorded no more, lanes that were left and are listed no more, and the files of
// sessions that are over. A broker that is away takes nothing back.
func (s *Session) Compare() {
	if s.Link.IsAway() {
		return
	}
	gone := s.Memory.GoneSegments()
	s.Files.Lanes.Compare(s.Files.Listed)
	s.Memory.Trim(gone)
	s.Memory.ForgetEnded()
	s.Memory.HandOverOwed()
	s.Topics.ForgetDeleted()
}
