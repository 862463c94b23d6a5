package integration

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// A writer whose stamps say that each of its messages is the oldest, and that always has
// another one ready, does not keep other writers' messages from a reader.
func TestReaderReceivesFromOthersBesideAWriterWithFalseStamps(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	honest, c := b.Connect(client.WithName("honest")), b.Connect()
	const depth = 8
	topic, err := c.Topic(ctx, "news", client.Depth(depth))
	require.NoError(t, err)
	r, err := topic.Reader(ctx)
	require.NoError(t, err)

	raw := b.Raw()
	var info protocol.TopicInfo
	_, err = raw.Call(protocol.OpTopicOpen, protocol.TopicOpenRequest{Name: "news", Kind: protocol.KindTopic}, &info)
	require.NoError(t, err)
	at := uint64(protocol.SessionLanes)
	require.NoError(t, raw.SessionFD.Reserve(int64(at), int64(protocol.LaneBytes(info.Slots, info.Stride))))
	lane, err := shm.NewLane(raw.Session, at, info.Slots, info.Stride)
	require.NoError(t, err)
	lane.Init(info.ID)
	_, err = raw.Call(protocol.OpTopicWrite, protocol.TopicWrite{TopicRef: protocol.TopicRef{Topic: info.Topic, ID: info.ID}, Offset: at}, nil)
	require.NoError(t, err)
	body, err := protocol.AppendBody(nil, &protocol.Body{Tree: []byte("1")})
	require.NoError(t, err)
	lie := func() {
		i := lane.Head() + 1
		if i > depth {
			lane.Unname(i - depth)
		}
		lane.Write(i, &shm.SlotHead{Body: uint32(len(body))}, shm.AppendBytes(nil, body))
		lane.Publish(i)
	}
	for range depth {
		lie()
	}
	sender, err := honest.Topic(ctx, "news")
	require.NoError(t, err)
	const count = 5
	for i := range count {
		require.NoError(t, sendNoted(ctx, honest, topicSender{sender}, 4, newNote("honest", i)))
	}
	seen := 0
	for lies := 0; seen < count; {
		m, err := r.Receive(ctx)
		require.NoError(t, err)
		if m.Sender == "honest" {
			seen++
			require.EqualValues(t, seen, m.Sequence)
			lies = 0
		} else {
			require.Zero(t, m.Stamp)
			lies++
			require.LessOrEqual(t, lies, 2*int(info.Slots), "a message waits behind those of a liar")
			lie()
		}
		m.Release()
	}
}
