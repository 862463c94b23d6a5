package client

import (
	"context"

	"github.com/baton-ipc/baton/client/internal/lanes"
	"github.com/baton-ipc/baton/protocol"
)

// send publishes a value in the session's own lane of a topic, waiting for room in a lossless one. While
// it waits the turn is others'. o is for the use of whichever has the turn.
func (c *Client) send(ctx context.Context, t *lanes.Topic, o *outgoing, v any, flags uint32, opts []SendOption) error {
	for waited := false; ; waited = true {
		wait, err := c.attempt(ctx, t, o, waited, v, flags, opts)
		if wait == nil {
			return err
		}
		if err := t.Await(ctx, wait); err != nil {
			return err
		}
	}
}

// attempt is one turn of a send, which ends with a wait if there is no room.
func (c *Client) attempt(ctx context.Context, t *lanes.Topic, o *outgoing, waited bool, v any, flags uint32, opts []SendOption) (wait *lanes.Backpressure, err error) {
	if err := t.Begin(ctx, waited); err != nil {
		return nil, err
	}
	defer t.End()
	o.reset(flags)
	defer o.finish()
	if err := c.compose(o, v, opts); err != nil {
		return nil, err
	}
	within := t.Info.Depth
	if m, is := v.(*callMessage); is && m.window > 0 {
		within = max(1, min(within-1, m.window)) // the end needs room
	}
	if wait, err := t.ReserveSlot(ctx, within); wait != nil || err != nil {
		return wait, err
	}
	if o.devices != nil {
		if o.order, err = c.s.Devices.OrderSend(ctx, o.devices, o.options.after()); err != nil {
			return nil, err
		}
	}
	words, head, err := c.place(ctx, o, t.SlotCapacity())
	if err != nil {
		return nil, err
	}
	sent, err := t.Publish(&head, words, o.counted)
	if sent {
		c.sent(o)
		if m, is := v.(*callMessage); is && m.record.Kind == protocol.CallRequest {
			k, wrong := t.SentCall()
			if wrong != nil {
				return nil, wrong
			}
			m.sent = &k
		}
	}
	return nil, err
}

// sent counts a message that was handed over.
func (c *Client) sent(o *outgoing) {
	c.handovers.Add(1)
	c.bytesSent.Add(o.bytes)
}
