package bench

import (
	"context"
	"time"

	"github.com/baton-ipc/baton/internal/sys"
)

func init() {
	roles["spin"] = spin
	roles["futex"] = futex
}

// spin hands a number to and fro through two words: the fastest that anything
// between two processes can be.
func spin(_ context.Context, s *seat) error {
	depart, arrive, back := s.series(seriesDepart), s.series(seriesArrive), s.series(seriesBack)
	s.meet()
	for i := range uint64(s.N) {
		s.turn(int(i))
		if s.Side == left {
			depart[i] = sys.Monotonic()
			s.store(linePing, i+1)
			s.awaitSpin(linePong, i+1)
			back[i] = sys.Monotonic()
		} else {
			s.awaitSpin(linePing, i+1)
			arrive[i] = sys.Monotonic()
			s.store(linePong, i+1)
		}
	}
	s.turn(s.N)
	return nil
}

// asleep is how long the sender waits after the receiver has announced that it
// goes to sleep: by then its processor is idle.
const asleep = 100 * time.Microsecond

// futex does the same with both sides asleep while they wait.
func futex(_ context.Context, s *seat) error {
	depart, arrive, back := s.series(seriesDepart), s.series(seriesArrive), s.series(seriesBack)
	s.meet()
	for i := range uint64(s.N) {
		s.turn(int(i))
		if s.Side == left {
			s.awaitSpin(lineAsks, i+1)
			linger(asleep)
			depart[i] = sys.Monotonic()
			s.store(linePing, i+1)
			sys.FutexWake(s.word32(linePing))
			s.awaitAsleep(linePong, i+1)
			back[i] = sys.Monotonic()
		} else {
			s.store(lineAsks, i+1)
			s.awaitAsleep(linePing, i+1)
			arrive[i] = sys.Monotonic()
			s.store(linePong, i+1)
			sys.FutexWake(s.word32(linePong))
		}
	}
	s.turn(s.N)
	return nil
}

// awaitAsleep sleeps until a line reaches v.
func (s *seat) awaitAsleep(line int, v uint64) {
	for {
		now := s.load(line)
		if now >= v {
			return
		}
		sys.FutexWait(s.word32(line), uint32(now), time.Second)
	}
}
