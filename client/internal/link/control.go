package link

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/client/internal/turn"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

// Control is the connection to the broker: requests from any goroutine, replies
// and events read by one.
type Control struct {
	conn    *wire.Conn
	onEvent func(event string)
	// onOrphanedReply is notified of a request that was carried out for nothing: its caller had
	// given up, or could not be given the descriptors.
	onOrphanedReply func(op string, body any, ok []byte)

	writing turn.Turn  // guards unsent
	unsent  []byte     // the rest of a frame, to be sent before all else
	mu      sync.Mutex // guards what follows
	next    uint64
	pending map[uint64]asked
	refused error // said by the broker before it closes the connection
	err     error // why it ended
	done    chan struct{}
}

// asked is a request that was not answered yet.
type asked struct {
	op   string
	body any
	to   chan reply // nil: its caller gave up
}

type reply struct {
	ok  json.RawMessage
	fds []*sys.FD
	err error
}

func newControl(conn *wire.Conn, onEvent func(string), onOrphanedReply func(string, any, []byte)) *Control {
	return &Control{conn: conn, onEvent: onEvent, onOrphanedReply: onOrphanedReply, pending: map[uint64]asked{}, writing: turn.New(), done: make(chan struct{})}
}

// run reads until the connection ends, then fails all that wait.
func (k *Control) run() {
	defer k.conn.Discard()
	for {
		data, fds, err := k.conn.Read()
		noFDs := err == wire.ErrNoDescriptors
		if err != nil && !noFDs {
			k.fail(err)
			return
		}
		var e protocol.Envelope
		if err := json.Unmarshal(data, &e); err != nil {
			wire.CloseAll(fds)
			k.fail(err)
			return
		}
		if e.ID == 0 && e.Error != nil { // the broker refuses the connection, and closes it
			wire.CloseAll(fds)
			k.mu.Lock()
			k.refused = e.Error
			k.mu.Unlock()
			continue
		}
		if e.Event != "" {
			wire.CloseAll(fds)
			k.onEvent(e.Event)
			continue
		}
		k.mu.Lock()
		a := k.pending[e.ID]
		delete(k.pending, e.ID)
		k.mu.Unlock()
		if a.to == nil || noFDs {
			wire.CloseAll(fds)
			if a.to != nil {
				a.to <- reply{err: wire.ErrNoDescriptors}
			}
			if a.op != "" && e.Error == nil {
				k.onOrphanedReply(a.op, a.body, append([]byte(nil), e.OK...))
			}
			continue
		}
		r := reply{ok: append(json.RawMessage(nil), e.OK...), fds: append([]*sys.FD(nil), fds...)}
		if e.Error != nil {
			r.err = e.Error
		}
		a.to <- r
	}
}

func (k *Control) fail(err error) {
	k.conn.Close()
	k.mu.Lock()
	k.err = k.refused
	if k.err == nil {
		k.err = protocol.Errorf(protocol.CodeBrokerLost, "it reconnects by itself; try again", "the connection to the broker ended: %w", err)
	}
	for id, a := range k.pending {
		if a.to != nil {
			a.to <- reply{err: k.err}
		}
		delete(k.pending, id)
	}
	k.mu.Unlock()
	close(k.done)
}

// over tells whether no request is sent any more.
func (k *Control) over() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err != nil
}

func (k *Control) close() { k.conn.Close() }

// leave ends a session that came to nothing, which would stay until this process
// ends.
func (k *Control) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	k.call(ctx, protocol.OpBye, nil, nil)
	k.close()
}

// call sends one request, whose fields beside id and op are those of body, and
// decodes the reply into ok. The caller owns the descriptors.
func (k *Control) call(ctx context.Context, op string, body, ok any, send ...*sys.FD) ([]*sys.FD, error) {
	to := make(chan reply, 1)
	k.mu.Lock()
	if k.err != nil {
		k.mu.Unlock()
		return nil, k.err
	}
	k.next++
	id := k.next
	k.pending[id] = asked{op, body, to}
	k.mu.Unlock()

	frame, err := wire.EncodeRequest(id, op, body, len(send))
	if err == nil {
		err = k.write(ctx, frame, send)
		if err != nil && ctx.Err() == nil {
			if sys.IsClosed(err) {
				k.conn.Close() // the program has closed the descriptor: no reader learns of it
			}
			// The broker has closed the connection: the reader learns why.
			select {
			case <-k.done:
				err = k.err
			case <-ctx.Done():
				err = protocol.Errorf(protocol.CodeBrokerLost, "it reconnects by itself; try again", "send to the broker: %w", err)
			}
		}
	}
	if err != nil {
		k.mu.Lock()
		delete(k.pending, id)
		k.mu.Unlock()
		return nil, err
	}
	select {
	case r := <-to:
		return finish(op, r, ok)
	case <-ctx.Done():
	}
	k.mu.Lock()
	_, waiting := k.pending[id]
	if waiting {
		k.pending[id] = asked{op, body, nil}
	}
	k.mu.Unlock()
	if !waiting { // the reply came meanwhile and may carry descriptors
		return finish(op, <-to, ok)
	}
	return nil, fault.Context(ctx, "waiting for the broker to answer "+op)
}

// write sends a frame unless ctx ends before: an unresponsive broker leaves no
// room for it at some time. One that was sent in part counts as sent: the next
// write begins with its rest.
func (k *Control) write(ctx context.Context, frame []byte, fds []*sys.FD) error {
	if err := k.writing.Take(ctx); err != nil {
		return err
	}
	defer k.writing.End()
	over := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		k.conn.SetWriteDeadline(time.Unix(1, 0)) // ends the write
		close(over)
	})
	var err error
	if len(k.unsent) > 0 {
		k.unsent, err = k.conn.WriteSome(k.unsent, nil)
	}
	if err == nil {
		var rest []byte
		rest, err = k.conn.WriteSome(frame, fds)
		if err != nil && ctx.Err() != nil && len(rest) < len(frame) {
			k.unsent, err = rest, nil
		}
	}
	if !stop() {
		<-over
		k.conn.SetWriteDeadline(time.Time{})
	}
	if err != nil && ctx.Err() != nil {
		return fault.Context(ctx, "waiting for the broker to read")
	}
	return err
}

func finish(op string, r reply, ok any) ([]*sys.FD, error) {
	if r.err == nil && ok != nil {
		if err := json.Unmarshal(r.ok, ok); err != nil {
			r.err = protocol.Errorf(protocol.CodeProtocol, "stop the broker and start one of this client's version", "reply to %s: %w", op, err)
		}
	}
	if r.err != nil {
		wire.CloseAll(r.fds)
		return nil, r.err
	}
	return r.fds, nil
}
