package client

import (
	"context"
	"encoding/json"

	"github.com/baton-ipc/baton/protocol"
)

// onLate undoes a request that the broker carried out for nothing: its caller had given up,
// or could not be given the descriptors. It runs on the goroutine that reads replies.
//
// An opening and a lease have numbers that the caller chose, by which it has undone them
// itself. A lane that the broker listed late is found by the next send, which asks for it
// with the same offset.
func (c *Client) onLate(op string, body any, ok []byte) {
	switch op {
	case protocol.OpGrant:
		var r protocol.GrantReply
		if json.Unmarshal(ok, &r) == nil {
			c.undo(protocol.OpReturn, protocol.Return{Segment: r.Segment, Serial: r.SegmentSerial})
		}
	case protocol.OpTopicRead:
		if asked, is := body.(protocol.TopicRead); is {
			c.undo(protocol.OpTopicLeave, protocol.TopicLeave{TopicRef: asked.TopicRef, Role: protocol.RoleNameRead, Reader: asked.Reader})
		}
	}
}

// undo has the broker, or the next one, take back what a request may have made that nobody
// here knows of. Nobody waits for that.
func (c *Client) undo(op string, body any) {
	go c.callUntil(context.Background(), op, body, nil)
}
