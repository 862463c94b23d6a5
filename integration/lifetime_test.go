package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// How a sender ends makes no difference to what it had sent.
func TestWhatWasSentBeforeItsSenderEndedIsReceived(t *testing.T) {
	for _, end := range []string{"closed", "exited", "killed"} {
		for _, k := range []channel{{Topic: "t", Depth: 8}, {Topic: "t", Depth: 8, Lossless: true}, {Queue: "q", Depth: 8}} {
			t.Run(fmt.Sprintf("%s %+v", end, k), func(t *testing.T) {
				b := testkit.StartBroker(t)
				ctx := testkit.Context(t)
				c := b.Connect()
				s := ready(b, sendConfig{channel: k, From: "s", Count: 6, Words: 2048, Stay: end != "exited"})
				s.Tell("go")
				s.Next(new(int))
				switch end {
				case "killed":
					s.Kill()
				case "closed":
					s.Done()
				default:
					s.Ended()
				}
				testkit.Gone(t, b, s.PID())
				testkit.AuditKept(t, b)
				var receive func() (*client.Message, error)
				if k.Queue != "" {
					q, err := k.openQueue(ctx, c)
					require.NoError(t, err)
					receive = func() (*client.Message, error) { return q.TryGet(ctx) }
					defer q.Close()
				} else {
					topic, err := k.openTopic(ctx, c)
					require.NoError(t, err)
					r, err := topic.Reader(ctx, client.StartAll)
					require.NoError(t, err)
					receive = func() (*client.Message, error) { return r.TryReceive(ctx) }
				}
				if k.Lossless { // older messages are best effort for a late group
					return
				}
				for id := range 6 {
					m, err := receive()
					require.NoError(t, err)
					require.NotNil(t, m, "message %d", id)
					got, err := verifyMessage(m)
					require.NoError(t, err)
					require.Equal(t, id, got.ID)
					m.Release()
				}
				m, err := receive()
				require.NoError(t, err)
				require.Nil(t, m)
				if k.Queue != "" {
					testkit.AuditEmpty(t, b, c)
				}
			})
		}
	}
}

// Messages of ended senders leave a topic as newer ones come: depth in all.
func TestMessagesOfEndedSendersAreDropped(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	k := channel{Topic: "t", Depth: 4}
	c := b.Connect()
	topic, err := k.openTopic(ctx, c)
	require.NoError(t, err)
	for i := range 6 {
		s := ready(b, sendConfig{channel: k, From: fmt.Sprint("s", i), Count: 4, Words: 64})
		s.Tell("go")
		s.Next(new(int))
		s.Ended()
		testkit.Gone(t, b, s.PID())
	}
	testkit.Until(t, "only the newest are kept", func() (bool, string) {
		h := testkit.Look(t, b)
		_, dead := h.Kept()
		return dead == 4, h.String()
	})
	r, err := topic.Reader(ctx, client.StartAll)
	require.NoError(t, err)
	for id := range 4 {
		m, err := r.Receive(ctx)
		require.NoError(t, err)
		got, err := verifyMessage(m)
		require.NoError(t, err)
		require.Equal(t, note{"s5", id, seedOf("s5", id)}, got)
		m.Release()
	}
	for id := range 4 {
		require.NoError(t, sendNoted(ctx, c, topicSender{topic}, 64, newNote("me", id)))
	}
	testkit.Until(t, "none of the ended are kept", func() (bool, string) {
		h := testkit.Look(t, b)
		_, dead := h.Kept()
		return dead == 0, h.String()
	})
	require.NoError(t, topic.Close())
	testkit.AuditKept(t, b)
}

func TestTopicLingersWithItsMessages(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	long := channel{Topic: "long", Depth: 4, Linger: time.Hour}
	short := channel{Topic: "short", Depth: 4, Linger: time.Millisecond}
	for _, k := range []channel{long, short} {
		s := ready(b, sendConfig{channel: k, From: "s", Count: 4, Words: 64})
		s.Tell("go")
		s.Next(new(int))
		s.Ended()
		testkit.Gone(t, b, s.PID())
	}
	testkit.Until(t, "the one with a short linger has gone", func() (bool, string) {
		rows := testkit.List[broker.TopicRow](t, b, protocol.ListTopics)
		return len(rows) == 1, fmt.Sprint(rows)
	})
	c := b.Connect()
	_, err := c.Topic(ctx, "short", client.MustExist())
	require.ErrorIs(t, err, protocol.ErrNotFound)
	topic, err := c.Topic(ctx, "long", client.MustExist())
	require.NoError(t, err)
	r, err := topic.Reader(ctx, client.StartLast)
	require.NoError(t, err)
	m, err := r.Receive(ctx)
	require.NoError(t, err)
	got, err := verifyMessage(m)
	require.NoError(t, err)
	require.Equal(t, 3, got.ID)
	m.Release()
	require.NoError(t, topic.Close())
	testkit.AuditKept(t, b)
}

// A message that is held outlives its sender, its topic and its place in it.
func TestHeldMessageOutlivesEverythingThatNamedIt(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	k := channel{Topic: "t", Depth: 2, Linger: time.Millisecond}
	topic, err := k.openTopic(ctx, c)
	require.NoError(t, err)
	r, err := topic.Reader(ctx)
	require.NoError(t, err)
	s := ready(b, sendConfig{channel: k, From: "s", Count: 1, Words: 1 << 16, Stay: true})
	s.Tell("go")
	s.Next(new(int))
	m, err := r.Receive(ctx)
	require.NoError(t, err)
	s.Kill()
	require.NoError(t, r.Close())
	require.NoError(t, topic.Close())
	testkit.Gone(t, b, s.PID())
	testkit.Until(t, "the topic has gone", func() (bool, string) {
		rows := testkit.List[broker.TopicRow](t, b, protocol.ListTopics)
		return len(rows) == 0, fmt.Sprint(rows)
	})
	_, err = verifyMessage(m)
	require.NoError(t, err)
	m.Release()
	testkit.AuditEmpty(t, b, c)
}

// What a client has open does not grow with the peers, readers and topics that
// come and go.
func TestLongLivedClientKeepsNothingOfThoseThatCameAndWent(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	long := b.Start("longlived", nil)
	long.Next(new(string))
	c := b.Connect()
	round := func(i int) {
		// Each visitor sends to the long-lived one, reads what it sends, shares its
		// lossless topic, and leaves in its own way.
		p := b.Start("visitor", i)
		p.Next(new(string))
		if i%2 == 0 {
			p.Kill()
		} else {
			p.Done()
		}
		testkit.Gone(t, b, p.PID())
		long.Tell(order("rest"))
		long.Next(new(progress))
		long.Tell(order("go"))
	}
	for i := range 40 {
		round(i)
	}
	fds := testkit.SharedFDs(long.PID())
	for i := range 80 {
		round(i)
	}
	testkit.Until(t, "descriptors of those that came and went are closed", func() (bool, string) {
		round(120) // what the dead leave is looked after while others come and go
		now := testkit.SharedFDs(long.PID())
		return now <= fds+32, fmt.Sprintf("%d, then %d", fds, now)
	})
	long.Tell(order("stop"))
	long.Ended()
	require.NoError(t, c.Delete(ctx, "visited"))
	testkit.Audit(t, b)
}

func init() {
	roles["longlived"] = func(p *testkit.Child) error {
		c, err := p.Connect()
		if err != nil {
			return err
		}
		in, err := c.Topic(p.Context(), "in", client.Depth(2))
		if err != nil {
			return err
		}
		r, err := in.Reader(p.Context())
		if err != nil {
			return err
		}
		out, err := c.Topic(p.Context(), "out", client.Overwrite(false), client.Depth(2))
		if err != nil {
			return err
		}
		if err := p.Say("ready"); err != nil {
			return err
		}
		return shift(p, c, func(ctx context.Context) error {
			for {
				m, err := r.Receive(ctx)
				if err != nil {
					return err
				}
				k, err := verifyMessage(m)
				m.Release()
				if err != nil {
					return err
				}
				if err := sendNoted(p.Context(), c, topicSender{out}, 16, k); err != nil {
					return err
				}
			}
		})
	}
	roles["visitor"] = func(p *testkit.Child) error {
		var i int
		if err := p.Config(&i); err != nil {
			return err
		}
		c, err := p.Connect()
		if err != nil {
			return err
		}
		in, err := c.Topic(p.Context(), "in")
		if err != nil {
			return err
		}
		out, err := c.Topic(p.Context(), "out", client.Overwrite(false))
		if err != nil {
			return err
		}
		r, err := out.Reader(p.Context())
		if err != nil {
			return err
		}
		for id := range 3 {
			if err := sendNoted(p.Context(), c, topicSender{in}, 1024, newNote(fmt.Sprint("visitor", i), id)); err != nil {
				return err
			}
			m, err := r.Receive(p.Context())
			if err != nil {
				return err
			}
			m.Release()
		}
		if _, err := publish(p.Context(), c, "visited", uint64(i)); err != nil {
			return err
		}
		if err := p.Say("visited"); err != nil {
			return err
		}
		<-p.Context().Done()
		return c.Close()
	}
}
