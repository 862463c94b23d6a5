package session

import "time"

// reconcileEvery is how often a client that maps anything of others compares it with the
// broker's records, although no event asks for it: an event may be lost with a
// connection.
const reconcileEvery = 5 * time.Second

// Reconcile finds what the broker has taken back: segments that are mapped here and
// recorded no more, lanes that were left and are listed no more, and the files of
// sessions that are over. A broker that is away takes nothing back.
func (s *Session) Reconcile() {
	if s.Link.IsAway() {
		return
	}
	gone := s.Memory.GoneSegments()
	s.Files.Lanes.Reconcile(s.Files.Listed)
	s.Memory.Trim(gone)
	s.Memory.ForgetEnded()
	s.Memory.HandOverOwed()
	s.Topics.ForgetDeleted()
}
