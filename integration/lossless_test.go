package integration

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

func TestLosslessTopicDeliversAllToEveryReader(t *testing.T) {
	b := testkit.StartBroker(t)
	const count = 1000
	k := channel{Topic: "ranks", Depth: 4, Lossless: true}
	c := b.Connect()
	topic, err := k.openTopic(testkit.Context(t), c)
	require.NoError(t, err)
	var in, out []*testkit.Process
	for range 3 {
		in = append(in, join(b, receiveConfig{channel: k}))
	}
	for i := range 2 {
		out = append(out, ready(b, sendConfig{channel: k, From: fmt.Sprint("s", i), Count: count, Words: 128, Stay: true}))
	}
	for _, p := range out {
		p.Tell("go")
	}
	for _, p := range out {
		p.Next(new(int))
	}
	require.NoError(t, topic.End(testkit.Context(t)))
	for _, p := range in {
		var sum received
		p.Next(&sum)
		require.Equal(t, map[string]int{"s0": count, "s1": count}, sum.By)
		require.Equal(t, map[string]int{"s0": 0, "s1": 0}, sum.Missed)
		p.Done()
	}
	for _, p := range out {
		p.Done()
	}
	testkit.AuditKept(t, b)
}

func TestSenderOfALosslessTopicWaitsForTheSlowestReader(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c, d := b.Connect(), b.Connect()
	topic, err := c.Topic(ctx, "slow", client.Depth(4), client.Overwrite(false))
	require.NoError(t, err)
	in, err := d.Topic(ctx, "slow")
	require.NoError(t, err)
	quick, err := in.Reader(ctx)
	require.NoError(t, err)
	slow, err := in.Reader(ctx)
	require.NoError(t, err)
	for id := range 4 {
		require.NoError(t, sendNoted(ctx, c, topicSender{topic}, 16, newNote("me", id)))
		m, err := quick.Receive(ctx)
		require.NoError(t, err)
		m.Release()
	}
	x, err := filled(ctx, c, 16, 1)
	require.NoError(t, err)
	require.ErrorIs(t, topic.Send(expired(t), x), protocol.ErrFull)

	sent := make(chan error)
	go func() { sent <- sendNoted(ctx, c, topicSender{topic}, 16, newNote("me", 4)) }()
	m, err := slow.Receive(ctx)
	require.NoError(t, err)
	m.Release()
	require.NoError(t, <-sent)
	// A reader that leaves holds no sender up.
	require.ErrorIs(t, topic.Send(expired(t), x), protocol.ErrFull)
	require.NoError(t, slow.Close())
	for range 8 {
		m, err := quick.TryReceive(ctx)
		require.NoError(t, err)
		if m != nil {
			m.Release()
		}
		require.NoError(t, topic.Send(ctx, x))
	}
	x.Release()
	require.NoError(t, quick.Close())
	require.NoError(t, in.Close())
	require.NoError(t, topic.Close())
}

func TestDeadReaderOfALosslessTopicHoldsNobodyUp(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	k := channel{Topic: "left", Depth: 2, Lossless: true}
	c := b.Connect()
	topic, err := k.openTopic(ctx, c)
	require.NoError(t, err)
	r := join(b, receiveConfig{channel: k, Each: true})
	r.Stop()
	for id := range 2 {
		require.NoError(t, sendNoted(ctx, c, topicSender{topic}, 16, newNote("me", id)))
	}
	x, err := filled(ctx, c, 16, 1)
	require.NoError(t, err)
	require.ErrorIs(t, topic.Send(expired(t), x), protocol.ErrFull)
	sent := make(chan error)
	go func() { sent <- topic.Send(ctx, x) }()
	r.Kill()
	require.NoError(t, <-sent)
	x.Release()
	require.NoError(t, topic.Close())
	testkit.Audit(t, b)
}

// What a group is promised begins with its making: a reader that joins later is
// given everything from then on, and its sender waits for it.
func TestLateGroupGetsEverythingFromItsMakingOn(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	const before, after = 50, 500
	k := channel{Topic: "promise", Depth: 4, Lossless: true}
	c := b.Connect()
	topic, err := k.openTopic(ctx, c)
	require.NoError(t, err)
	s := ready(b, sendConfig{channel: k, From: "s", Count: before, Words: 16, Stay: true})
	s.Tell("go")
	s.Next(new(int))
	var in []*testkit.Process
	for range 2 {
		in = append(in, join(b, receiveConfig{channel: k}))
	}
	for id := range after {
		require.NoError(t, sendNoted(ctx, c, topicSender{topic}, 16, newNote("me", id)))
	}
	require.NoError(t, topic.End(ctx))
	for _, p := range in {
		var sum received
		p.Next(&sum)
		require.Equal(t, after, sum.By["me"])
		require.Zero(t, sum.Missed["me"])
		p.Done()
	}
	s.Done()
}

func TestGroupSharesALosslessTopic(t *testing.T) {
	b := testkit.StartBroker(t)
	const count = 1000
	k := channel{Topic: "shared", Depth: 8, Lossless: true}
	c := b.Connect()
	topic, err := k.openTopic(testkit.Context(t), c)
	require.NoError(t, err)
	var group []*testkit.Process
	for range 3 {
		group = append(group, join(b, receiveConfig{channel: k, Group: "workers"}))
	}
	alone := join(b, receiveConfig{channel: k})
	s := ready(b, sendConfig{channel: k, From: "s", Count: count, Words: 64, Stay: true})
	s.Tell("go")
	s.Next(new(int))
	require.NoError(t, topic.End(testkit.Context(t)))
	sum := 0
	for _, p := range group {
		var got received
		p.Next(&got)
		sum += got.Count
		p.Done()
	}
	require.Equal(t, count, sum)
	var got received
	alone.Next(&got)
	require.Equal(t, count, got.Count)
	alone.Done()
	s.Done()
}

func TestGroupOfATopicThatOverwritesIsRefused(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	topic, err := c.Topic(ctx, "plain")
	require.NoError(t, err)
	_, err = topic.Reader(ctx, client.Group("workers"))
	require.ErrorIs(t, err, protocol.ErrInvalid)
	require.NoError(t, topic.Close())
}
