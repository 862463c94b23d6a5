package integration

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
)

// join starts a reader and waits until it has joined.
func join(b *testkit.Broker, cfg receiveConfig) *testkit.Process {
	p := b.Start("receive", cfg)
	p.Next(new(string))
	return p
}

// ready starts a sender and waits until it has opened its topic or queue.
func ready(b *testkit.Broker, cfg sendConfig) *testkit.Process {
	p := b.Start("send", cfg)
	p.Next(new(string))
	return p
}

func TestOneTensorArrivesInAnotherProcess(t *testing.T) {
	b := testkit.StartBroker(t)
	k := channel{Topic: "batches"}
	r := join(b, receiveConfig{channel: k, Count: 1, Each: true})
	s := ready(b, sendConfig{channel: k, From: "one", Count: 1, Words: 1 << 17, Stay: true})
	s.Tell("go")
	var got received
	r.Next(&got)
	require.Equal(t, "one", got.From)
	require.EqualValues(t, 1, got.Sequence)
	require.Zero(t, got.Lost)
	r.Next(&got)
	r.Done()
	s.Done()
	testkit.AuditKept(t, b)
}

// spread lets senders and readers of a topic that keeps all of it meet, and
// expects each reader to get everything in order.
func spread(t *testing.T, senders, readers int) {
	b := testkit.StartBroker(t)
	const count = 300
	k := channel{Topic: "spread", Depth: count}
	c := b.Connect()
	topic, err := k.openTopic(testkit.Context(t), c)
	require.NoError(t, err)
	var in, out []*testkit.Process
	for range readers {
		in = append(in, join(b, receiveConfig{channel: k}))
	}
	for i := range senders {
		out = append(out, ready(b, sendConfig{channel: k, From: fmt.Sprint("s", i), Count: count, Words: 64 + 200*i, Stay: true}))
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
		require.Equal(t, senders*count, sum.Count)
		for i := range senders {
			require.Equal(t, count, sum.By[fmt.Sprint("s", i)])
		}
		p.Done()
	}
	for _, p := range out {
		p.Done()
	}
	testkit.AuditKept(t, b)
}

func TestEveryReaderGetsAllOfOneSender(t *testing.T)             { spread(t, 1, 4) }
func TestOneReaderGetsAllOfEverySender(t *testing.T)             { spread(t, 4, 1) }
func TestEveryReaderGetsAllOfEverySender(t *testing.T)           { spread(t, 3, 3) }
func TestMoreSendersThanProcessorsReachTheirReader(t *testing.T) { spread(t, 8, 1) }

// A reader that is slower than its senders loses messages of a topic that
// overwrites, counts each of them, and sees no wrong byte (playReceive checks).
func TestLaggingReaderCountsEveryMessageThatItLost(t *testing.T) {
	b := testkit.StartBroker(t)
	const count = 20_000
	k := channel{Topic: "fast", Depth: 4}
	c := b.Connect()
	topic, err := k.openTopic(testkit.Context(t), c)
	require.NoError(t, err)
	r := join(b, receiveConfig{channel: k})
	var out []*testkit.Process
	for i := range 2 {
		// Large enough that a reader is overtaken while it verifies one.
		out = append(out, ready(b, sendConfig{channel: k, From: fmt.Sprint("s", i), Count: count, Words: 512, Stay: true}))
	}
	r.Stop()
	for _, p := range out {
		p.Tell("go")
	}
	r.Cont()
	for _, p := range out {
		p.Next(new(int))
	}
	require.NoError(t, topic.End(testkit.Context(t)))
	var sum received
	r.Next(&sum)
	for i := range out {
		from := fmt.Sprint("s", i)
		require.Equal(t, count, sum.By[from]+sum.Missed[from], "received and lost of %s", from)
	}
	r.Done()
	for _, p := range out {
		p.Done()
	}
	testkit.AuditKept(t, b)
}

// What a late reader begins with is what its Start says.
func TestLateReaderStartsWhereItAsks(t *testing.T) {
	b := testkit.StartBroker(t)
	k := channel{Topic: "late", Depth: 8}
	s := ready(b, sendConfig{channel: k, From: "early", Count: 20, Words: 32, Stay: true})
	s.Tell("go")
	s.Next(new(int))
	ctx := testkit.Context(t)
	c := b.Connect()
	topic, err := k.openTopic(ctx, c)
	require.NoError(t, err)

	last, err := topic.Reader(ctx, client.StartLast)
	require.NoError(t, err)
	m, err := last.Receive(ctx)
	require.NoError(t, err)
	got, err := verifyMessage(m)
	require.NoError(t, err)
	require.Equal(t, 19, got.ID)
	require.Zero(t, m.Lost)
	m.Release()
	m, err = last.TryReceive(ctx)
	require.NoError(t, err)
	require.Nil(t, m)

	all, err := topic.Reader(ctx, client.StartAll)
	require.NoError(t, err)
	for want := 12; want < 20; want++ {
		m, err := all.Receive(ctx)
		require.NoError(t, err)
		got, err := verifyMessage(m)
		require.NoError(t, err)
		require.Equal(t, want, got.ID)
		require.Zero(t, m.Lost)
		m.Release()
	}
	m, err = all.TryReceive(ctx)
	require.NoError(t, err)
	require.Nil(t, m)

	fresh, err := topic.Reader(ctx, client.StartNew)
	require.NoError(t, err)
	m, err = fresh.TryReceive(ctx)
	require.NoError(t, err)
	require.Nil(t, m)
	require.NoError(t, sendNoted(ctx, c, topicSender{topic}, 16, newNote("me", 0)))
	for _, r := range []*client.Reader{last, all, fresh} {
		m, err := r.Receive(ctx)
		require.NoError(t, err)
		got, err := verifyMessage(m)
		require.NoError(t, err)
		require.Equal(t, "me", got.From)
		m.Release()
		require.NoError(t, r.Close())
	}
	s.Done()
	testkit.Audit(t, b)
}

// A message that another one caused is never received before it.
func TestCauseIsReceivedBeforeItsEffect(t *testing.T) {
	b := testkit.StartBroker(t)
	k := channel{Topic: "chain", Depth: 512}
	const count = 400
	// The children answer each message of "first" with one of their own.
	answers := []*testkit.Process{b.Start("answer", k), b.Start("answer", k)}
	for _, p := range answers {
		p.Next(new(string))
	}
	r := join(b, receiveConfig{channel: k, Count: count * 3, Each: true})
	s := ready(b, sendConfig{channel: k, From: "first", Count: count, Words: 8, Stay: true})
	s.Tell("go")
	seen := map[int]bool{}
	for range count * 3 {
		var got received
		r.Next(&got)
		if got.From == "first" {
			seen[got.ID] = true
		} else {
			require.True(t, seen[got.ID], "answer %d of %s came before the question", got.ID, got.From)
		}
	}
	r.Next(new(received))
	r.Done()
	s.Next(new(int))
	s.Done()
	for _, p := range answers {
		p.Done()
	}
	testkit.AuditKept(t, b)
}

func init() {
	roles["answer"] = func(p *testkit.Child) error {
		var k channel
		if err := p.Config(&k); err != nil {
			return err
		}
		c, err := p.Connect()
		if err != nil {
			return err
		}
		topic, err := k.openTopic(p.Context(), c)
		if err != nil {
			return err
		}
		r, err := topic.Reader(p.Context())
		if err != nil {
			return err
		}
		if err := p.Say("joined"); err != nil {
			return err
		}
		self := fmt.Sprint("answer-", c.Session())
		for {
			m, err := r.Receive(p.Context())
			if p.Context().Err() != nil {
				return c.Close()
			}
			if err != nil {
				return err
			}
			got, err := verifyMessage(m)
			m.Release()
			if err != nil {
				return err
			}
			if got.From == "first" {
				if err := sendNoted(p.Context(), c, topicSender{topic}, 8, newNote(self, got.ID)); err != nil {
					return err
				}
			}
		}
	}
}
