package client

import (
	"context"

	"github.com/baton-ipc/baton/protocol"
)

// Members is who takes part in a topic or queue.
type Members struct {
	Senders  []Sender
	Readers  int    // sessions
	LastLeft string // name of the session that left last, "" while none has
}

// Sender is a session that sends in a topic or queue.
type Sender struct {
	Name    string
	Session uint64 // its serial
	Ended   bool   // it has left, and the broker keeps what it sent
}

// Members tells who takes part.
func (t *Topic) Members(ctx context.Context) (Members, error) { return t.t.members(ctx) }

// Members tells who takes part.
func (q *Queue) Members(ctx context.Context) (Members, error) { return q.t.members(ctx) }

func (t *topic) members(ctx context.Context) (m Members, err error) {
	if err := t.c.life.ended(); err != nil {
		return m, err
	}
	v, err := t.lanesNow(ctx)
	if err != nil {
		return m, err
	}
	for _, l := range v.lanes {
		m.Senders = append(m.Senders, Sender{l.peer.name, l.peer.serial, l.state != protocol.LaneLive})
	}
	_, m.Readers, m.LastLeft = t.count()
	return m, t.listed()
}

// count tells how many take part, as the broker's page says: lanes of sessions that go on, and
// sessions that read.
func (t *topic) count() (writers, readers int, lastLeft string) {
	for _, l := range t.record.lanes() {
		if l.state == protocol.LaneLive {
			writers++
		}
	}
	return writers, t.record.readers(), t.record.lastLeft()
}
