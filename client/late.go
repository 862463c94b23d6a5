package client

import (
	"context"
	"encoding/json"

	"github.com/baton-ipc/baton/protocol"
)

// onLate undoes a request that the broker carried out for nothing, after its
// caller had given up: nobody knows of what it made. It runs on the goroutine
// that reads replies.
func (c *Client) onLate(op string, body any, ok []byte) {
	undo := func(op string, body any) {
		go c.callUntil(context.Background(), op, body, nil)
	}
	switch op {
	case protocol.OpGrant:
		var r protocol.GrantReply
		if json.Unmarshal(ok, &r) == nil {
			undo(protocol.OpReturn, protocol.Return{Segment: r.Segment, Serial: r.SegmentSerial})
		}
	case protocol.OpTopicOpen, protocol.OpNameOpen:
		var r protocol.TopicInfo
		if json.Unmarshal(ok, &r) == nil {
			undo(protocol.OpTopicLeave, protocol.TopicLeave{TopicRef: protocol.TopicRef{Topic: r.Topic, ID: r.ID}, Role: protocol.RoleNameOpen, Opening: r.Opening})
		}
	case protocol.OpTopicRead:
		var r protocol.TopicReadReply
		if asked, is := body.(protocol.TopicRead); is && json.Unmarshal(ok, &r) == nil {
			undo(protocol.OpTopicLeave, protocol.TopicLeave{TopicRef: asked.TopicRef, Role: protocol.RoleNameRead, Reader: r.Reader})
		}
	case protocol.OpLease:
		var r protocol.LeaseReply
		if json.Unmarshal(ok, &r) == nil {
			undo(protocol.OpLeaseRelease, protocol.LeaseRef{Lease: r.Lease})
		}
	}
	// A lane that the broker listed late is found by the next send, which asks
	// for it with the same offset.
}
