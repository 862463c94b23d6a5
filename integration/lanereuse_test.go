package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// laneOf returns where a session's lane in a topic lies in its file, 0 where the broker
// lists none.
func laneOf(b *testkit.Broker, topic, writer string) uint64 {
	page := b.Raw().Broker
	text := func(at, n uint64) string {
		s := page.Bytes(at, n)
		for i, c := range s {
			if c == 0 {
				return string(s[:i])
			}
		}
		return ""
	}
	for i := range uint64(page.Load32(protocol.BrokerTopicsEnd)) {
		at := protocol.BrokerTopics + i*protocol.TopicRecordSize
		if page.Load64(at+protocol.TopicID) == 0 || text(at+protocol.TopicName, protocol.TopicNameBytes) != topic {
			continue
		}
		for n := range uint64(protocol.MaxLanes) {
			lane := at + protocol.TopicLanes + n*protocol.LaneRecordSize
			slot := uint64(page.Load32(lane + protocol.LaneRecordSlot))
			session := protocol.BrokerSessions + slot*protocol.SessionRecordSize
			if serial := page.Load64(lane + protocol.LaneRecordSerial); serial != 0 && page.Load64(lane+protocol.LaneRecordIncarnation) != 0 &&
				serial == page.Load64(session+protocol.SessionSerial) && text(session+protocol.SessionName, protocol.SessionNameBytes) == writer {
				return page.Load64(lane + protocol.LaneRecordOffset)
			}
		}
	}
	return 0
}

// ends are the two ends of a topic or queue, as the tests of lanes use them.
type ends struct {
	send    func(ctx context.Context, v any, opts ...client.SendOption) error
	receive func(ctx context.Context) (*client.Message, error)
	close   func() error
}

type lanesOf struct {
	name string
	open func(ctx context.Context, t *testing.T, c *client.Client, name string, reads bool) ends
}

func queueEnds(opts ...client.QueueOption) func(context.Context, *testing.T, *client.Client, string, bool) ends {
	return func(ctx context.Context, t *testing.T, c *client.Client, name string, _ bool) ends {
		q, err := c.Queue(ctx, name, opts...)
		require.NoError(t, err)
		return ends{q.Put, q.Get, q.Close}
	}
}

func topicEnds(group string, opts ...client.TopicOption) func(context.Context, *testing.T, *client.Client, string, bool) ends {
	return func(ctx context.Context, t *testing.T, c *client.Client, name string, reads bool) ends {
		topic, err := c.Topic(ctx, name, opts...)
		require.NoError(t, err)
		e := ends{send: topic.Send, close: topic.Close}
		if reads {
			var as []client.ReaderOption
			if group != "" {
				as = append(as, client.Group(group))
			}
			r, err := topic.Reader(ctx, as...)
			require.NoError(t, err)
			e.receive = r.Receive
		}
		return e
	}
}

// A reader that has an old view receives nothing of the lane that has got the place of
// one which it read: of another queue or topic, of the same or another shape, while the
// broker is there, was killed, or is suspended. That one's readers miss nothing.
func TestReaderReceivesNothingOfTheNextLaneInAPlace(t *testing.T) {
	// 16 slots of 1088 bytes, or 8 of 2176.
	flat, tall := []client.TopicOption{client.Depth(8)}, []client.TopicOption{client.Depth(7), client.Description(2136)}
	with := func(o []client.TopicOption, more ...client.TopicOption) []client.TopicOption {
		return append(o[:len(o):len(o)], more...)
	}
	kinds := map[string][2]lanesOf{
		"queues":            {{"a", queueEnds(client.Depth(8))}, {"b", queueEnds(client.Depth(8))}},
		"with redelivery":   {{"a", queueEnds(client.Depth(8), client.Redeliver(true))}, {"b", queueEnds(client.Depth(8), client.Redeliver(true))}},
		"topics":            {{"a", topicEnds("", flat...)}, {"b", topicEnds("", flat...)}},
		"of other shape":    {{"a", topicEnds("", flat...)}, {"b", topicEnds("", tall...)}},
		"groups":            {{"a", topicEnds("g", with(flat, client.Overwrite(false))...)}, {"b", topicEnds("g", with(flat, client.Overwrite(false))...)}},
		"a queue's, before": {{"a", queueEnds(client.Depth(8))}, {"b", topicEnds("", tall...)}},
	}
	for kind, k := range kinds {
		for _, broker := range []string{"there", "killed", "stopped"} {
			// Where the shapes differ, slots of the same message coincide at number 16.
			first := 5
			if kind == "of other shape" {
				first = 15
			}
			t.Run(kind+", broker "+broker, func(t *testing.T) { lanePlaceIsUsedAnew(t, k[0], k[1], first, broker) })
		}
	}
}

func lanePlaceIsUsedAnew(t *testing.T, a, b lanesOf, first int, state string) {
	s := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	w, other := s.Connect(client.WithName("writer")), s.Connect(client.WithName("other"))
	r, rb := s.Connect(client.WithName("reader")), s.Connect(client.WithName("reader of b"))
	say := func(e ends, c *client.Client, text string) {
		t.Helper()
		x, err := filled(ctx, c, 8, 1)
		require.NoError(t, err)
		require.NoError(t, e.send(ctx, x, client.Meta(text)))
		x.Release()
	}
	hear := func(m *client.Message, err error) string {
		t.Helper()
		require.NoError(t, err)
		defer m.Release()
		var text string
		require.NoError(t, m.Meta(&text))
		return text
	}
	in := a.open(ctx, t, r, "a", true)
	out := a.open(ctx, t, w, "a", false)
	for i := range first {
		say(out, w, fmt.Sprint("w", i))
		require.Equal(t, fmt.Sprint("w", i), hear(in.receive(ctx)))
	}
	place := laneOf(s, "a", "writer")
	require.NotZero(t, place)
	require.NoError(t, out.close())
	// The reader sleeps from here on. What the writer left is no more once there are as
	// many newer messages as a topic keeps.
	more := a.open(ctx, t, other, "a", false)
	for i := range 8 {
		say(more, other, fmt.Sprint("more", i))
	}
	testkit.Until(t, "the lane is no more", func() (bool, string) { return laneOf(s, "a", "writer") == 0, "it is listed" })
	var inB, outB ends
	tries := 0
	testkit.Until(t, "the lane's place is used anew", func() (bool, string) {
		name := fmt.Sprint("b", tries)
		tries++
		inB, outB = b.open(ctx, t, rb, name, true), b.open(ctx, t, w, name, false)
		say(outB, w, "b0")
		require.Equal(t, "b0", hear(inB.receive(ctx)))
		at := laneOf(s, name, "writer")
		return at == place, fmt.Sprintf("at %d, not %d", at, place)
	})
	for i := 1; i < first+2; i++ {
		say(outB, w, fmt.Sprint("b", i))
		if i < first-4 {
			require.Equal(t, fmt.Sprint("b", i), hear(inB.receive(ctx)))
		}
	}
	switch state {
	case "killed":
		s.Kill()
	case "stopped":
		s.Process().Stop()
	}
	heard := 0
	for {
		brief, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		m, err := in.receive(brief)
		cancel()
		if err != nil {
			require.True(t, errors.Is(err, protocol.ErrTimeout) || errors.Is(err, protocol.ErrBrokerLost), "%v", err)
			break
		}
		require.Equal(t, fmt.Sprint("more", heard), hear(m, nil))
		heard++
	}
	for i := first - 4; i < first+2; i++ {
		require.Equal(t, fmt.Sprint("b", i), hear(inB.receive(ctx)))
	}
	switch state {
	case "killed":
		s.Restart()
	case "stopped":
		s.Process().Cont()
	}
	for ; heard < 8; heard++ {
		require.Equal(t, fmt.Sprint("more", heard), hear(in.receive(ctx)))
	}
}
