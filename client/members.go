package client

import (
	"context"

	"github.com/baton-ipc/baton/client/internal/lanes"
	"github.com/baton-ipc/baton/protocol"
)

// Members are the sessions that take part in a topic or queue.
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

// Members tells which sessions take part. ErrNotFound: the topic is no more.
func (t *Topic) Members(ctx context.Context) (Members, error) { return membersOf(ctx, t.t) }

// Members tells which sessions take part. ErrNotFound: the queue is no more.
func (q *Queue) Members(ctx context.Context) (Members, error) { return membersOf(ctx, q.t) }

func membersOf(ctx context.Context, t *lanes.Topic) (m Members, err error) {
	all, err := t.Members(ctx)
	if err != nil {
		return m, err
	}
	for _, l := range all.Senders {
		m.Senders = append(m.Senders, Sender{l.Peer.Name, l.Peer.Serial, l.State != protocol.LaneLive})
	}
	m.Readers, m.LastLeft = all.Readers, all.LastLeft
	return m, nil
}
