package integration

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/testkit"
)

func init() { roles["sends when told"] = sendsWhenTold }

// sendsWhenTold sends one message at each line that it hears.
func sendsWhenTold(p *testkit.Child) error {
	ctx := p.Context()
	c, t, x, err := readyToSend(p)
	if err != nil {
		return err
	}
	for p.Hear(new(string)) == nil {
		if err := t.Send(ctx, x); err != nil {
			return err
		}
		if err := p.Say("sent"); err != nil {
			return err
		}
	}
	x.Release()
	return c.Close()
}

// readyToSend opens a session and its topic t, and allocates what is to be sent there.
func readyToSend(p *testkit.Child) (*client.Client, *client.Topic, *client.Tensor, error) {
	c, err := p.Connect()
	if err != nil {
		return nil, nil, nil, err
	}
	t, err := c.Topic(p.Context(), "t")
	if err != nil {
		return nil, nil, nil, err
	}
	x, err := c.Alloc(p.Context(), dlpack.Uint8, []int64{64})
	return c, t, x, err
}

// A writer that is suspended over a restart of the broker, and whose pages no other process had
// mapped, keeps no other session from the topic. What it sent is received when it is back.
func TestWriterThatStandsStillHoldsUpNoOtherInItsTopic(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	open := func(c *client.Client) *client.Topic {
		topic, err := c.Topic(ctx, "t")
		require.NoError(t, err)
		return topic
	}
	join := func(topic *client.Topic) *client.Reader {
		r, err := topic.Reader(ctx)
		require.NoError(t, err)
		return r
	}
	c, s := b.Connect(client.WithName("reads")), b.Connect(client.WithName("sends"))
	reader, sender := join(open(c)), open(s)
	x, err := s.Alloc(ctx, dlpack.Uint8, []int64{1})
	require.NoError(t, err)
	receive := func(r *client.Reader) (from string) {
		t.Helper()
		m, err := r.Receive(ctx)
		require.NoError(t, err)
		defer m.Release()
		return m.Sender
	}
	send := func() string {
		t.Helper()
		require.NoError(t, sender.Send(ctx, x))
		return receive(reader)
	}
	mine := send()

	p := b.Start("sends when told", nil)
	p.Tell("one")
	p.Next(new(string))
	p.Stop()
	b.Kill()
	testkit.Elsewhere(t, b.Socket) // else the broker has its pages from the kernel
	b.Restart()
	other := b.Connect(client.WithName("comes later"))
	late := join(open(other))
	require.Equal(t, mine, send())
	require.Equal(t, mine, receive(late))
	y, err := other.Alloc(ctx, dlpack.Uint8, []int64{1})
	require.NoError(t, err)
	require.NoError(t, open(other).Send(ctx, y), "a new writer")
	require.Equal(t, receive(reader), receive(late))

	p.Cont()
	theirs := receive(reader)
	require.NotEqual(t, mine, theirs)
	require.Equal(t, theirs, receive(late), "what it had sent")
	p.Tell("two")
	p.Next(new(string))
	require.Equal(t, theirs, receive(reader))
	require.Equal(t, theirs, receive(late))
	p.Done()
	x.Release()
	y.Release()
}
