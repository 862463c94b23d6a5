package client

import (
	"context"
	"encoding/hex"
	"sync"
	"time"

	"github.com/baton-ipc/baton/client/internal/lanes"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// replies are the topics for replies that this session has open as a provider, by number of the topic.
type replies struct {
	mu    sync.Mutex // guards what follows
	known map[uint64]*replyPlace
	doors map[string]*Function // of the sessions that have given functions as arguments, by token
	swept uint64               // when, ns
}

// replyPlace is one of them.
type replyPlace struct {
	t   *lanes.Topic
	out outgoing // for the use of whichever has the turn to send
}

// sweepEvery is how often it is looked for callers that have gone.
const sweepEvery = uint64(time.Second)

// knownPlace is the topic for replies with a number, if it is open here; else nil.
func (c *Client) knownPlace(id uint64) *replyPlace {
	c.calls.replies.mu.Lock()
	defer c.calls.replies.mu.Unlock()
	return c.calls.replies.known[id]
}

// replyPlace finds the topic in which the caller of a request waits.
func (c *Client) replyPlace(ctx context.Context, request *protocol.Call) (*replyPlace, error) {
	p := c.knownPlace(request.TopicID)
	if p != nil {
		return p, nil
	}
	c.sweepReplies(true)
	t, err := c.openNumbered(ctx, protocol.TopicOpenRequest{Token: hex.EncodeToString(request.Token[:]), Kind: protocol.KindTopic})
	if err != nil {
		return nil, err
	}
	if t.Info.Topic != request.Topic || t.Info.ID != request.TopicID || t.Info.Overwrite {
		go t.Close()
		return nil, malformed("a topic for replies that is another one")
	}
	t.Drain()
	// The lane and the groups, too: after this a reply needs no broker.
	if err := t.Begin(ctx, false); err != nil {
		go t.Close()
		return nil, err
	}
	_, err = t.ReserveSlot(ctx, t.Info.Depth)
	t.End()
	if err != nil {
		go t.Close()
		return nil, err
	}
	p = &replyPlace{t: t}
	r := &c.calls.replies
	r.mu.Lock()
	if r.known == nil {
		r.known = map[uint64]*replyPlace{}
	}
	other := r.known[request.TopicID]
	if other == nil {
		r.known[request.TopicID] = p
	}
	r.mu.Unlock()
	if other != nil {
		go t.Close()
		return other, nil
	}
	return p, nil
}

// canBegin tells whether the reply to a call has a place, which is opened with a broker alone, by the body of its message.
// What is no call is over when it is taken.
func (c *Client) canBegin(body []byte) bool {
	var call protocol.Call
	b, err := protocol.ParseBody(body)
	return err != nil || call.Parse(b.Meta) != nil || c.knownPlace(call.TopicID) != nil
}

// sweepDue tells whether it is time to look for callers that have gone.
func (r *replies) sweepDue() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.known)+len(r.doors) > 0 && sys.Monotonic()-r.swept >= sweepEvery
}

// sweepReplies leaves the topics that no session reads any more, and gives back what was taken.
func (c *Client) sweepReplies(now bool) {
	r := &c.calls.replies
	if !now && !r.sweepDue() {
		return
	}
	var all, gone []*replyPlace
	r.mu.Lock()
	r.swept = sys.Monotonic()
	for id, p := range r.known {
		if p.t.IsRead() {
			all = append(all, p)
			continue
		}
		gone = append(gone, p)
		delete(r.known, id)
	}
	var doors []*Function
	for token, f := range r.doors {
		if f.Providers() == 0 {
			doors = append(doors, f)
			delete(r.doors, token)
		}
	}
	r.mu.Unlock()
	for _, f := range doors {
		go f.Close()
	}
	for _, p := range all {
		p.t.WithdrawDone()
	}
	for _, p := range gone {
		go p.t.Close()
	}
}

// sendReply sends a reply and waits for no caller: one that has no room for it has broken the protocol. False: its
// caller gets none.
func (c *Client) sendReply(ctx context.Context, request *protocol.Call, m *callMessage) (bool, error) {
	p, err := c.replyPlace(ctx, request)
	if err != nil {
		return false, err
	}
	wait, err := p.attempt(ctx, c, m)
	return err == nil && wait == nil, err
}

// attempt sends a reply or a part, unless there is no room for it.
func (p *replyPlace) attempt(ctx context.Context, c *Client, m *callMessage) (*lanes.Backpressure, error) {
	return c.attempt(ctx, p.t, &p.out, false, m, protocol.SlotWritable, nil)
}
