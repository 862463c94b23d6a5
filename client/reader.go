package client

import (
	"context"

	"github.com/baton-ipc/baton/client/internal/lanes"
	"github.com/baton-ipc/baton/protocol"
)

// Start says which of the messages kept a new reader begins with. In a lossless topic a reader, or
// its group, has what is sent after its making, whatever Start says.
type Start int

// Where a reader starts.
const (
	StartNew  Start = iota // what is sent from now on
	StartLast              // the newest message kept, then what follows
	StartAll               // everything that is kept
)

// at is the same for lanes.
func (s Start) at() lanes.Start {
	return [...]lanes.Start{StartNew: lanes.StartNew, StartLast: lanes.StartLast, StartAll: lanes.StartAll}[s]
}

// Reader receives a topic's messages. In a topic that overwrites it sees each
// message that is still kept when it looks; in a lossless one, every message
// from its making on, alone or sharing the work with its group. One goroutine
// at a time.
type Reader struct {
	c     *Client
	t     *lanes.Topic
	r     *lanes.Reader
	spare *Message // for the next one: fresh
}

// Receive returns the next message, waiting for it until ctx ends (ErrTimeout at
// its deadline). ErrClosed: the topic was closed and everything was received.
// The caller releases the message.
func (r *Reader) Receive(ctx context.Context) (m *Message, err error) {
	for {
		if m, err = r.poll(ctx); m != nil {
			break
		}
		if err != nil {
			if r.t.LooksAgain(ctx, err) {
				continue
			}
			err = r.t.DeadlineError(ctx, err, protocol.CodeTimeout)
			break
		}
		if r.r.Await(ctx, r.r.Ready) != nil {
			err = r.t.Timeout(ctx, protocol.CodeTimeout, "no message")
			break
		}
	}
	if err != nil {
		r.r.PassOn()
	}
	return m, err
}

// TryReceive returns the next message if one is there, else nil. Errors are those of Receive, but
// for ErrTimeout; the caller releases the message.
func (r *Reader) TryReceive(ctx context.Context) (*Message, error) { return r.poll(ctx) }

// poll takes a message if there is one, else it returns nil.
func (r *Reader) poll(ctx context.Context) (*Message, error) {
	m := r.spare
	if m == nil {
		m = newMessage(r.c)
	}
	from, ok, err := r.r.Poll(ctx, &m.taken)
	if !ok {
		r.spare = m
		return nil, err
	}
	r.spare = nil
	return m.from(from), nil
}

// Lost counts the messages that went by unseen since the reader was made, less
// those that a later message has reported.
func (r *Reader) Lost() uint64 { return r.r.CountLost() }

// Close leaves the topic. Messages received stay valid until their Release. A second Close does
// nothing. Errors are those of Topic.Close.
func (r *Reader) Close() error { return r.r.Close() }
