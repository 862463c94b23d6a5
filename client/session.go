package client

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

// session is a session with a broker, from Connect until nothing of it is held any more: its
// parts, what is due off the hot path, and how it comes back or ends.
type session struct {
	life    life
	link    *link
	pages   *pages
	waits   *hub
	memory  *memory
	devices *deviceSet // nil without GPUs
	topics  *topics
	claims  claims
	jobs    *jobs

	up        atomic.Bool // the parts are there
	unmapOnce sync.Once   // see unmapReleased
}

// sessionOptions is what a session is opened with.
type sessionOptions struct {
	place   brokerPlace
	hello   protocol.Hello
	devices Devices // nil: none
	modest  bool    // it takes no more memory than its tensors need
	trace   bool    // it notes which line of the program asked for a tensor
}

// openSession opens a session.
func openSession(ctx context.Context, o sessionOptions) (*session, error) {
	s := &session{jobs: newJobs()}
	s.link = newLink(&s.life, o.place, o.hello, s.onEvent)
	hello, fds, err := s.link.open(ctx)
	if err != nil {
		return nil, err
	}
	err = protocol.This("client", o.hello.Client.Version).CheckPeer(
		protocol.Speaker{Role: "broker", Build: hello.Version, Speaks: hello.Protocol, Layout: hello.Layout})
	if err != nil {
		wire.CloseAll(fds)
		s.link.leave()
		return nil, err
	}
	if s.pages, err = openPages(hello, fds); err != nil {
		s.link.leave()
		return nil, err
	}
	s.waits = newHub(s.pages, &s.life)
	s.memory = newMemory(s.link, s.pages, &s.life, s.waits, s.jobs, hello.Limits, o.trace)
	if o.modest {
		s.memory.modest()
	}
	s.topics = newTopics(s.link, s.pages, &s.life, s.waits, s.memory)
	if o.devices == nil {
		s.memory.with(s.topics, nil)
	} else {
		s.devices = newDeviceSet(s.link, s.pages, &s.life, s.memory, o.devices)
		s.memory.with(s.topics, s.devices)
	}
	go s.work()
	go s.keepConnected()
	s.up.Store(true)
	return s, nil
}

// claimed has the broker hear of a lease that was opened here.
func (s *session) claimed(lease uint64) {
	s.claims.add(lease)
	s.jobs.post(nil)
}

// hasExports tells whether C code has tensors on GPUs from this session.
func (s *session) hasExports() bool { return s.devices != nil && s.devices.hasExports() }

func (s *session) onEvent(event string) {
	if !s.up.Load() {
		return // nothing is here yet that it could be about
	}
	switch event {
	case protocol.EventTrim:
		s.jobs.post(func(d *due) { d.compare = true })
	case protocol.EventEvicted:
		s.life.evict()
	case protocol.EventStopped:
		s.hear()
	case protocol.EventRoom:
		s.memory.tellRoom()
	case protocol.EventCustody:
		s.jobs.post(func(d *due) { d.custody = true })
	case protocol.EventCollect:
		s.jobs.post(func(d *due) { d.collect = true })
	}
}
