package client

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"

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
	of    uint64 // topic of the function that was called last: its provider has this one open for its replies
	last  uint64 // number of the last call
	parts bool   // the last call takes parts
	next  uint32 // number of the next one
}

// begins notes that a call begins, and gives its number.
func (e *endpoint) begins(parts bool) uint64 {
	e.last++
	e.parts, e.next = parts, 0
	return e.last
}

const (
	// replyDepth is more replies than one call has, of each provider.
	replyDepth = 8
	// mostSpare bounds the endpoints that stay for the next calls.
	mostSpare = 64
	// mostSpareStreams bounds those for streams.
	mostSpareStreams = 8
)

// endpoint takes one that is free for a call of the function of a topic, or makes one; for a stream one with room for the
// parts ahead, and its end.
func (c *Client) endpoint(ctx context.Context, of uint64, ahead uint32) (*endpoint, error) {
	if e := c.spareEndpoint(of, ahead); e != nil {
		e.of = of
		return e, nil
	}
	depth, overwrite, linger := uint32(replyDepth), false, 0.0
	if ahead > 0 {
		depth = max(ahead, defaultAhead) + 1
	}
	t, err := c.openNumbered(ctx, protocol.TopicOpenRequest{Kind: protocol.KindTopic, Create: true, Depth: &depth, Overwrite: &overwrite, Linger: &linger})
	if err != nil {
		return nil, err
	}
	e := &endpoint{t: t, of: of}
	token, err := hex.DecodeString(t.Info.Token)
	if err == nil && len(token) == len(e.token) {
		copy(e.token[:], token)
		var r *lanes.Reader
		if r, err = t.Read(ctx, lanes.StartNew, nil); err == nil {
			if ahead == 0 {
				r.Quiet()
			}
			e.r = &Reader{c: c, t: t, r: r}
			return e, nil
		}
	} else {
		err = protocol.Errorf(protocol.CodeProtocol, "stop the broker and start one of this client's version", "a private topic came with the token %q", t.Info.Token)
	}
	go t.Close()
	return nil, err
}

// spareEndpoint takes one that is free, rather one that the provider of the function has replied to before, which needs no
// broker then.
func (c *Client) spareEndpoint(of uint64, ahead uint32) *endpoint {
	spare := &c.calls.spare
	if ahead > 0 {
		spare = &c.calls.spareStreams
	}
	c.calls.mu.Lock()
	defer c.calls.mu.Unlock()
	found := -1
	for i := len(*spare) - 1; i >= 0; i-- {
		e := (*spare)[i]
		if e.t.Info.Depth <= ahead {
			continue
		}
		if e.of == of {
			found = i
			break
		}
		if found < 0 {
			found = i
		}
	}
	if found < 0 {
		return nil
	}
	e := (*spare)[found]
	*spare = slices.Delete(*spare, found, found+1)
	return e
}

// giveBack keeps an endpoint for the next call.
func (c *Client) giveBack(e *endpoint) {
	spare, most := &c.calls.spare, mostSpare
	if e.parts {
		spare, most = &c.calls.spareStreams, mostSpareStreams
	}
	c.calls.mu.Lock()
	keep := len(*spare) < most && !e.t.IsClosed()
	if keep {
		*spare = append(*spare, e)
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

// reply takes the reply of the last call if it is there, or its next part. Replies of calls that have ended, parts that
// came before, and what is none, are let go; one of the last call that cannot be read is an error.
func (e *endpoint) reply(ctx context.Context) (*received, error) {
	for {
		m, err := e.r.poll(ctx)
		if m == nil || err != nil {
			return nil, err
		}
		r, err := receive(m)
		if err == nil && r.record.Kind == protocol.CallReply && r.record.Number == e.last {
			part := r.record.Flags&protocol.CallPart != 0
			switch n := r.record.Topic; {
			case !part:
				return r, nil
			case e.parts && r.record.Flags&protocol.CallFailed != 0:
				err = malformed("a part that is an error")
			case e.parts && n == e.next:
				e.next++
				return r, nil
			case e.parts && n > e.next:
				err = malformed(fmt.Sprintf("part %d where part %d is due", n, e.next))
			}
		}
		m.Release()
		if err != nil {
			return nil, err
		}
	}
}

// abandon waits in the background until the provider of a call that ended here is done with it, lets go of what it
// replied, and has done run: only then another call may have the endpoint. Where the call was ended without a reply, that
// may still come: no other call has the endpoint.
func (c *Client) abandon(e *endpoint, k lanes.Call, done func()) {
	go func() {
		defer done()
		over := func() bool { _, state := k.State(); return state == shm.CallDone }
		until := func() bool { return over() || e.r.r.Ready() }
		replied := false
		for !over() {
			var err error
			if replied, err = e.drop(); replied {
				break
			}
			if c.s.Life.Ended() != nil {
				return
			}
			if err != nil { // what has come cannot be taken now
				c.s.Topics.AwaitMoment(context.Background(), over)
				continue
			}
			e.r.r.AwaitBeside(context.Background(), until)
		}
		late, _ := e.drop()
		if e.parts || !replied && !late { // parts may still be under way, or the reply
			e.close()
			return
		}
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
