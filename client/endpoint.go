package client

import (
	"context"
	"encoding/hex"

	"github.com/baton-ipc/baton/client/internal/lanes"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// endpoint is where a call waits for its reply: a private topic that this session reads alone. One call at a
// time has it.
type endpoint struct {
	t     *lanes.Topic
	r     *Reader
	token [16]byte
	last  uint64 // number of the last call
}

const (
	// replyDepth is more replies than one call has, of each provider.
	replyDepth = 8
	// mostSpare bounds the endpoints that stay for the next calls.
	mostSpare = 64
)

// endpoint takes one that is free, or makes one.
func (c *Client) endpoint(ctx context.Context) (*endpoint, error) {
	c.calls.mu.Lock()
	if n := len(c.calls.spare); n > 0 {
		e := c.calls.spare[n-1]
		c.calls.spare = c.calls.spare[:n-1]
		c.calls.mu.Unlock()
		return e, nil
	}
	c.calls.mu.Unlock()
	depth, overwrite, linger := uint32(replyDepth), false, 0.0
	t, err := c.openNumbered(ctx, protocol.TopicOpenRequest{Kind: protocol.KindTopic, Create: true, Depth: &depth, Overwrite: &overwrite, Linger: &linger})
	if err != nil {
		return nil, err
	}
	e := &endpoint{t: t}
	token, err := hex.DecodeString(t.Info.Token)
	if err == nil && len(token) == len(e.token) {
		copy(e.token[:], token)
		var r *lanes.Reader
		if r, err = t.Read(ctx, lanes.StartNew, nil); err == nil {
			r.Quiet()
			e.r = &Reader{c: c, t: t, r: r}
			return e, nil
		}
	} else {
		err = protocol.Errorf(protocol.CodeProtocol, "use a broker of this version", "a private topic came with the token %q", t.Info.Token)
	}
	go t.Close()
	return nil, err
}

// giveBack keeps an endpoint for the next call.
func (c *Client) giveBack(e *endpoint) {
	c.calls.mu.Lock()
	keep := len(c.calls.spare) < mostSpare && !e.t.IsClosed()
	if keep {
		c.calls.spare = append(c.calls.spare, e)
	}
	c.calls.mu.Unlock()
	if !keep {
		go e.close()
	}
}

func (e *endpoint) close() {
	e.r.Close()
	e.t.Close()
}

// reply takes the reply of the last call if it is there. Replies of calls that have ended, and what is none, are
// let go; one of the last call that cannot be read is an error.
func (e *endpoint) reply(ctx context.Context) (*received, error) {
	for {
		m, err := e.r.poll(ctx)
		if m == nil || err != nil {
			return nil, err
		}
		r, err := receive(m)
		if err == nil && r.record.Kind == protocol.CallReply && r.record.Number == e.last && r.record.Flags&protocol.CallPart == 0 {
			return r, nil
		}
		m.Release()
		if err != nil {
			return nil, err
		}
	}
}

// abandon waits in the background until the provider of a call that ended here is done with it, lets go of what it
// replied, and has done run: only then another call may have the endpoint.
func (c *Client) abandon(e *endpoint, k lanes.Call, done func()) {
	go func() {
		defer done()
		over := func() bool { _, state := k.State(); return state == shm.CallDone }
		until := func() bool { return over() || e.r.r.Ready() }
		for !over() {
			replied, err := e.drop()
			if replied {
				break
			}
			if c.s.Life.Ended() != nil {
				return
			}
			if err != nil { // what has come cannot be taken now
				soon, cancel := context.WithTimeout(context.Background(), notNow)
				c.s.Topics.AwaitAny(soon, over)
				cancel()
				continue
			}
			e.r.r.AwaitBeside(context.Background(), until)
		}
		e.drop()
		c.giveBack(e)
	}()
}

// drop lets go of all that has come, and tells whether the reply of the last call was there: nothing follows it.
func (e *endpoint) drop() (replied bool, err error) {
	for {
		m, err := e.r.poll(context.Background())
		if m == nil || err != nil {
			return replied, err
		}
		r, err := receive(m)
		replied = replied || err == nil && r.record.Number == e.last && r.record.Flags&protocol.CallPart == 0
		m.Release()
	}
}
