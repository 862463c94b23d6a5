package broker

import (
	"slices"
	"time"

	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// ending is how a broker ends.
type ending int

const (
	// endFailed: it never served. It removes what it made; what it found stays.
	endFailed ending = iota
	// endUnserved: it is not to serve after all. As endFailed, unless it has taken over or has
	// a session: then as endLeave.
	endUnserved
	// endLeave: another broker may take over, as after a kill. All stays, and the
	// clients keep what they have.
	endLeave
	// endHanded: another broker has taken over and has everything; this one closes its files.
	endHanded
	// endStop: for good. The sessions are over. With --memory-dir the names and the items of
	// queues stay for the next broker.
	endStop
	// endDiscard: for good, and those are removed as well.
	endDiscard
)

// final tells whether the sessions end with the broker.
func (e ending) final() bool { return e == endStop || e == endDiscard }

// Stop makes Serve end the broker for good: its clients are notified that their sessions
// are over, and only what names and queues hold in files is left for a successor; with discard
// nothing is. It returns at once. Any goroutine.
func (b *Broker) Stop(discard bool) {
	if discard {
		b.stop(endDiscard, nil)
	} else {
		b.stop(endStop, nil)
	}
}

// Withdraw makes Serve end a broker that is not to serve after all. It leaves no trace of one that
// has nothing of another broker's and no session; else it leaves everything to the next broker.
// It returns at once. Any goroutine.
func (b *Broker) Withdraw() { b.stop(endUnserved, nil) }

// unserved is how a broker ends that is not to serve after all. The mutex is held.
func (b *Broker) unserved() ending {
	if b.anew && !slices.ContainsFunc(b.used(), func(s *session) bool { return s != nil }) {
		return endFailed
	}
	return endLeave
}

// stop makes Serve end the broker in a way, and return err. The first call counts.
func (b *Broker) stop(how ending, err error) {
	b.quitOnce.Do(func() {
		b.quitHow, b.quitErr = how, err
		close(b.quit)
	})
}

// stopBroker carries out the op stop, which needs no session: it works in any state of
// the broker and with any layout of the client. The connection ends when all is freed.
func (c *conn) stopBroker(id uint64, data []byte) {
	var r protocol.Stop
	err := decode(data, &r)
	if err == nil {
		err = c.owns(protocol.OpStop)
	}
	if err == nil {
		if err = c.abandoned(); err != nil {
			c.noteAbandoned(protocol.OpStop)
		}
	}
	if err != nil {
		c.refusedEarly(protocol.OpStop, err)
		c.reply(id, nil, nil, err)
		return
	}
	c.b.log.Info("ending: asked to stop", events.Of(events.Broker), "pid", c.cred.PID, "discard", r.Discard)
	c.b.mu.Lock()
	c.b.forgetConn(c) // end does not close it
	c.b.disconnected(c)
	c.b.mu.Unlock()
	c.reply(id, done{}, nil, nil)
	c.b.Stop(r.Discard)
	<-c.b.over
	if c.b.cfg.EndsProcess {
		select {}
	}
}

// awaitClients waits until the clients that were sent the event of the end have closed their
// side of the connection, as each does that has read it; its session is closed then. The
// session of a client that does not read it in time goes on in its memory, and the next broker
// takes it back.
func (b *Broker) awaitClients(open []*conn) {
	late := time.After(endAnswerTime)
	for _, c := range open {
		select {
		case <-c.ended:
			continue
		case <-late:
		}
		break
	}
	b.mu.Lock()
	b.awaitingEnd = false
	b.mu.Unlock()
}

// clientEnded closes a session whose client has read that the broker is being stopped. The
// client allocates nothing and takes part in nothing any more; what it holds stays until it
// drops that or ends. When the client finds the connection ended, the record alone shows
// whether the session is over. The mutex is held.
//
// SYNC instance-ended: the state is stored before the connection ends.
func (b *Broker) clientEnded(s *session) {
	if b.awaitingEnd && b.store.Record.Valid() {
		b.setState(s, protocol.SessionClosed)
	}
}

// goesOn tells whether a process goes on in a session: its client has not read the event of the end.
func (b *Broker) goesOn(s *session) bool {
	if s.ended || s.state == protocol.SessionClosed {
		return false
	}
	if b.foreign || s.start == 0 {
		return true // not known
	}
	pidfd, state := sys.FindProcess(s.PID, s.start)
	pidfd.Close()
	return state != sys.ProcessEnded
}

// keeps tells whether the shared files are of use when the broker ends in a way. The
// sessions whose clients have read the event are closed.
func (b *Broker) keeps(how ending) bool {
	switch how {
	case endFailed:
		return !b.fresh
	case endLeave, endHanded:
		return true
	case endDiscard:
		return false
	}
	if !b.store.Record.Valid() || b.store.Files.Kind() == protocol.KindMemfd {
		return false // no client hands over memfds to a broker that finds no trace of this one
	}
	return b.topics.AnyName() || b.topics.AnyItem() || slices.ContainsFunc(b.slots[:], func(s *session) bool {
		return s != nil && b.goesOn(s)
	})
}
