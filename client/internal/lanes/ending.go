package lanes

import (
	"time"

	"github.com/baton-ipc/baton/client/internal/fault"
)

const (
	// emptyAfterClose is how long lanes of a lost session wait for a broker once the client is
	// closed.
	emptyAfterClose = 30 * time.Second
	emptyLook       = 2 * time.Second
)

// Quiesce ends what writes to lanes and groups: once the session is over for the
// broker, no reader would see a message, and a claim would stay. The channel gives how
// often the lanes name each storage, as soon as no send waits for an answer of the
// broker any more.
func (s *Topics) Quiesce() <-chan map[uint32]uint64 {
	s.claiming.Lock()
	s.life.Close()
	s.waits.WakeAll()
	s.claiming.Unlock()
	s.memory.EndPools(fault.Closed("client"))
	lanes := make(chan map[uint32]uint64, 1)
	if s.life.WhyLost() != nil {
		lanes <- nil // EmptyLanes sees to them
		return lanes
	}
	all := s.all()
	go func() { lanes <- endLanes(all) }()
	return lanes
}

// endLanes ends the writing of lanes, which are the broker's to read, and gives how often
// they name each storage.
func endLanes(of []*Topic) map[uint32]uint64 {
	n := map[uint32]uint64{}
	for _, t := range of {
		t.mu.Must()
		t.writing = false
		for _, kept := range t.kept {
			for _, index := range kept {
				n[index]++
			}
		}
		t.kept = nil
		t.mu.End()
	}
	return n
}

// EmptyLanes counts down what the lanes of a lost session name: once a broker that has come
// since counts for it, or at once where none comes or none that would know the session.
//
// For one that was closed it waits a while only: what its lanes name stays counted then, for
// readers, until the process ends.
func (s *Topics) EmptyLanes(unknown bool) (named map[uint32]uint64) {
	var closed time.Time
	for {
		if s.life.IsClosed() {
			if closed.IsZero() {
				closed = time.Now()
			}
			if time.Since(closed) > emptyAfterClose {
				return endLanes(s.all())
			}
		}
		left := false
		over := unknown || s.files.IsOver()
		for _, t := range s.all() {
			left = !t.empty(over) || left
		}
		if !left {
			return nil
		}
		time.Sleep(emptyLook)
	}
}

// empty counts down what the session's own lane names, unless a broker is still to count for that.
func (t *Topic) empty(over bool) (done bool) {
	t.mu.Must()
	defer t.mu.End()
	t.writing = false
	if !over && t.kept != nil && !t.set.files.IsTakenOver(t.Info.Topic, t.laneNo, t.laneInc) {
		return false
	}
	t.letGo()
	return true
}

// letGo counts down what the session's own lane names. Callers hold t.mu.
func (t *Topic) letGo() {
	for _, kept := range t.kept {
		for _, index := range kept {
			t.set.memory.Drop(index)
		}
	}
	t.kept = nil
}
