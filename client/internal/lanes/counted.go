package lanes

import (
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// counted is the record in the session file in which a reader says what it took and lost, for
// the broker's listings. Of two readers of a session that would have the same one, the
// first has it.
type counted struct {
	set         *Topics
	file        shm.Region
	at          uint64 // 0: none
	taken, lost uint64
}

// countedBy makes the record of a reader, where the broker has made sure of its memory.
func (s *Topics) countedBy(number uint64, ready bool) (k counted) {
	at := protocol.ReaderRecordAt(number)
	if !ready || number == 0 || !s.takeRecord(at) {
		return k
	}
	k = counted{set: s, file: s.files.Session.Region, at: at}
	k.file.Store64(at+protocol.ReaderTaken, 0)
	k.file.Store64(at+protocol.ReaderLost, 0)
	k.file.Store64(at+protocol.ReaderNumber, number)
	return k
}

// took notes a message, and how many were lost before it.
func (k *counted) took(lost uint64) {
	if k.at == 0 {
		return
	}
	k.taken++
	k.file.StoreRelease64(k.at+protocol.ReaderTaken, k.taken)
	if lost != 0 {
		k.lost += lost
		k.file.StoreRelease64(k.at+protocol.ReaderLost, k.lost)
	}
}

// end gives the record to another reader. It says what it said until then: the broker may not
// know yet that this one has left.
func (k *counted) end() {
	if k.at == 0 {
		return
	}
	k.set.giveRecord(k.at)
	k.at = 0
}

// takeRecord takes the record at a place of the session file; false where another has it.
func (s *Topics) takeRecord(at uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, used := s.counting[at]
	s.counting[at] = struct{}{}
	return !used
}

// giveRecord gives the record at a place to another.
func (s *Topics) giveRecord(at uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.counting, at)
}
