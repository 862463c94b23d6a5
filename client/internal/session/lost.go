package session

import (
	"errors"
	"time"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/handles"
)

// lose ends the session here because the broker said that it is over: every call
// fails from now on, those that wait too. What is mapped stays. The first call
// counts; a client that was closed is not lost.
func (s *Session) lose(why error) {
	if !s.Link.Lose(fault.Lost(s.Files.Instance, s.Files.Serial, why)) {
		return
	}
	s.Waits.WakeAll()
	go func() { // an allocation may wait for an answer of the broker with the pool's turn
		s.Memory.EndPools(s.Life.WhyLost())
		s.Link.End()
		s.goOn()
		s.Files.NoteLost()
		s.unmapOnce.Do(func() {
			go func() {
				if named := s.Topics.EmptyLanes(fault.IsUnknown(why)); named != nil {
					s.Memory.LeaveNamed(named)
				}
				s.unmapReleased()
			}()
		})
	}()
}

// acknowledge acknowledges the notice `stopped`: this client allocates, recycles and counts nothing from
// here on, and ends its side of the connection.
func (s *Session) acknowledge() {
	s.Life.Acknowledge(func() { // an allocation may wait for an answer of the broker with the pool's turn
		s.Memory.EachPool((*handles.Pool).Pause)
		s.Link.EndWriting()
	})
}

// goOn ends that.
func (s *Session) goOn() {
	s.Life.GoOn(func() { s.Memory.EachPool((*handles.Pool).Resume) })
}

// unmapReleased unmaps the memory of a session that is over piece by piece as it is
// released, and lets go of what C code deletes of a GPU's. The client is kept until then,
// though nothing else may refer to it: slices and C code have addresses only, and tensors
// whose counts a keeper has refer to their own client. What a broker has cleared the
// refcounts of stays mapped: it is not known here what is held.
func (s *Session) unmapReleased() {
	for {
		s.Memory.Reap()
		if (s.Memory.UnmapFree() || s.Files.RefcountsCleared()) && !s.hasExports() {
			return
		}
		time.Sleep(keeperLook)
	}
}

// errStopped is why a session is lost whose broker was stopped.
var errStopped = errors.New("the broker was stopped")

// errEvicted is why a session is lost that an operator has ended.
var errEvicted = errors.New("an operator evicted it")
