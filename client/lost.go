package client

import (
	"errors"
	"time"

	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/protocol"
)

// lose ends the session here because the broker said that it is over: every call
// fails from now on, those that wait too. What is mapped stays. The first call
// counts; a client that was closed is not lost.
func (s *session) lose(why error) {
	if !s.link.lose(protocol.Errorf(protocol.CodeSessionLost, "open a new session, with Client.Reopen for one; what was received can still be read, copied and released",
		"session %d of broker %s is over: %s", s.pages.serial, s.pages.instance, messageOf(why))) {
		return
	}
	s.waits.wakeAll()
	go func() { // an allocation may wait for an answer of the broker with the pool's turn
		s.memory.endPools(s.life.whyLost())
		s.link.end()
		s.goOn()
		s.unmapOnce.Do(func() {
			go func() {
				if named := s.topics.emptyLanes(isFinal(why)); named != nil {
					s.memory.leaveNamed(named)
				}
				s.unmapReleased()
			}()
		})
	}()
}

// hear tells a broker that is being stopped that this client has heard so: it allocates,
// recycles and counts nothing from here on, and says nothing more.
func (s *session) hear() {
	s.life.hear(func() { // an allocation may wait for an answer of the broker with the pool's turn
		s.memory.eachPool((*handles.Pool).Pause)
		s.link.endWriting()
	})
}

// goOn ends that.
func (s *session) goOn() {
	s.life.goOn(func() { s.memory.eachPool((*handles.Pool).Resume) })
}

// unmapReleased unmaps the memory of a session that is over piece by piece as it is
// released, and lets go of what C code deletes of a GPU's. The client is kept until then,
// though nothing else may refer to it: slices and C code have addresses only, and tensors
// whose counts a keeper took over refer to their own client. What a broker has cleared the
// row of stays mapped: it is not known here what is held.
func (s *session) unmapReleased() {
	for {
		s.memory.reap()
		if (s.memory.unmapFree() || s.pages.rowCleared()) && !s.hasExports() {
			return
		}
		time.Sleep(keeperLook)
	}
}

// errStopped is why a session is lost whose broker was stopped.
var errStopped = errors.New("the broker was stopped")

// errEvicted is why a session is lost that an operator has ended.
var errEvicted = errors.New("an operator evicted it")
