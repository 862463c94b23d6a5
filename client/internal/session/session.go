package session

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/baton-ipc/baton/client/internal/devices"
	"github.com/baton-ipc/baton/client/internal/gpu"
	"github.com/baton-ipc/baton/client/internal/lanes"
	"github.com/baton-ipc/baton/client/internal/life"
	"github.com/baton-ipc/baton/client/internal/link"
	"github.com/baton-ipc/baton/client/internal/memory"
	"github.com/baton-ipc/baton/client/internal/sessionfiles"
	"github.com/baton-ipc/baton/client/internal/waits"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

// Session is a session with a broker, from Connect until nothing of it is held any more: its
// parts, what is due off the hot path, and how it comes back or ends.
type Session struct {
	Life    life.Life
	Link    *link.Link
	Files   *sessionfiles.Files
	Waits   *waits.Hub
	Memory  *memory.Memory
	Devices *devices.Set // nil without GPUs
	Topics  *lanes.Topics
	claims  claims
	jobs    *jobs

	Up        atomic.Bool // the parts are there
	unmapOnce sync.Once   // see unmapReleased
}

// Options is what a session is opened with.
type Options struct {
	Place   link.Place
	Hello   protocol.Hello
	Devices gpu.Devices // nil: none
	Modest  bool        // it takes no more memory than its tensors need
	Trace   bool        // it notes which line of the program asked for a tensor
}

// Open opens a session.
func Open(ctx context.Context, o Options) (*Session, error) {
	s := &Session{jobs: newJobs()}
	s.Link = link.New(&s.Life, o.Place, o.Hello, s.onEvent)
	hello, fds, err := s.Link.Open(ctx)
	if err != nil {
		return nil, err
	}
	err = protocol.This(protocol.SpeakerClient, o.Hello.Client.Version).CheckPeer(
		protocol.Speaker{Role: protocol.SpeakerBroker, Build: hello.Version, Speaks: hello.Protocol, Layout: hello.Layout})
	if err != nil {
		wire.CloseAll(fds)
		s.Link.Leave()
		return nil, err
	}
	if s.Files, err = sessionfiles.Open(hello, fds); err != nil {
		s.Link.Leave()
		return nil, err
	}
	s.Waits = waits.New(s.Files, &s.Life)
	s.Memory = memory.New(s.Link, s.Files, &s.Life, s.Waits, s.jobs, hello.Limits, o.Trace)
	if o.Modest {
		s.Memory.Modest()
	}
	s.Topics = lanes.New(s.Link, s.Files, &s.Life, s.Waits, s.Memory)
	if o.Devices == nil {
		s.Memory.With(s.Topics, nil)
	} else {
		s.Devices = devices.New(s.Link, s.Files, &s.Life, s.Memory, o.Devices)
		s.Memory.With(s.Topics, s.Devices)
	}
	go s.work()
	go s.keepConnected()
	s.Up.Store(true)
	return s, nil
}

// Claimed notifies the broker of a lease that was opened here.
func (s *Session) Claimed(lease uint64) {
	s.claims.add(lease)
	s.jobs.post(nil)
}

// hasExports tells whether C code has tensors on GPUs from this session.
func (s *Session) hasExports() bool { return s.Devices != nil && s.Devices.HasExports() }

func (s *Session) onEvent(event string) {
	if !s.Up.Load() {
		return // nothing is here yet that it could be about
	}
	switch event {
	case protocol.EventTrim:
		s.jobs.post(func(d *due) { d.reconcile = true })
	case protocol.EventEvicted:
		s.Life.Evict()
	case protocol.EventStopped:
		s.acknowledge()
	case protocol.EventRoom:
		s.Memory.MemoryFreed()
	case protocol.EventCustody:
		s.jobs.post(func(d *due) { d.custody = true })
	case protocol.EventCollect:
		s.jobs.post(func(d *due) { d.reclaim = true })
	case protocol.EventReclaim:
		s.jobs.post(func(d *due) { d.giveBack = true })
	}
}
