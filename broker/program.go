package broker

import (
	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// A pidfd does not show an exec: the process goes on, with another program that knows
// nothing of the session. So a client sends a memory file that its program alone has
// mapped for writing. The kernel refuses to seal it while that mapping lives; closed
// descriptors, a suspended process or a spawned child do not change that.

// keepAlive takes that file out of what came with a hello: the last descriptor.
func (c *conn) keepAlive(h *protocol.Hello, fds []*sys.FD) ([]*sys.FD, error) {
	if !h.Alive {
		return fds, nil
	}
	if len(fds) == 0 {
		return nil, protocol.Errorf(protocol.CodeProtocol, "send its descriptor with hello", "hello says that it brings a memory file, and brings none")
	}
	fd, err := fds[len(fds)-1].Dup()
	if err != nil {
		return nil, err
	}
	c.alive.Close()
	c.alive = fd
	return fds[:len(fds)-1], nil
}

// takeAlive gives a session the file that came with its client's hello.
func (s *session) takeAlive(c *conn) {
	if c.alive != nil {
		s.alive.Close()
		s.alive, c.alive = c.alive, nil
	}
}

// endReplaced ends a disconnected session whose program was replaced by exec, or is ending:
// its memory goes a moment before its pidfd says so.
func (b *Broker) endReplaced(s *session) bool {
	if s.alive == nil || s.conn != nil {
		return false
	}
	sealed, err := s.alive.SealWrites()
	if err == nil && !sealed {
		return false
	}
	delete(b.away, s)
	if err != nil {
		s.alive.Close()
		s.alive = nil
		b.log.Warn("cannot find out whether a program was replaced by exec: what it holds stays until its process ends",
			"serial", s.Serial, "name", s.Name, "pid", s.PID, "error", err)
	} else {
		b.log.Info("program ended, or was replaced by exec", events.Of(events.Session), "slot", s.Slot, "serial", s.Serial, "name", s.Name, "pid", s.PID)
		b.processEnded(s)
	}
	return sealed
}
