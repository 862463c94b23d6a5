package integration

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

func init() { roles["shortsender"] = shortSender }

// shortSender sends at each line that it hears, with no file left that it could open.
func shortSender(p *testkit.Child) error {
	ctx := p.Context()
	c, t, x, err := readyToSend(p)
	if err != nil {
		return err
	}
	if err := t.Send(ctx, x); err != nil {
		return err
	}
	files := openAll()
	if err := p.Say("full"); err != nil {
		return err
	}
	for range 5 {
		if err := p.Hear(new(string)); err != nil {
			return err
		}
		if err := t.Send(ctx, x); err != nil {
			return fmt.Errorf("send: %w", err)
		}
		if err := p.Say("sent"); err != nil {
			return err
		}
	}
	for _, f := range files {
		f.Close()
	}
	x.Release()
	return c.Close()
}

// A reader that a sender cannot wake, for lack of files, is woken by the broker, which
// counts it.
func TestReaderOfASenderWithoutDescriptorsIsWoken(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	p := b.Start("shortsender", nil, testkit.OpenFiles(64))
	p.Next(new(string))
	c := b.Connect()
	topic, err := c.Topic(ctx, "t")
	require.NoError(t, err)
	r, err := topic.Reader(ctx, client.StartNew)
	require.NoError(t, err)
	for range 5 {
		p.Tell("send")
		p.Next(new(string))
		m, err := r.Receive(ctx)
		require.NoError(t, err)
		m.Release()
	}
	testkit.Until(t, "the broker has rung for each message", func() (bool, string) {
		var s broker.Status
		require.NoError(t, c.Broker(ctx, protocol.OpStatus, nil, &s))
		return s.Counts.Rung >= 1, fmt.Sprint(s.Counts)
	})
	p.Ended()
	require.NoError(t, topic.Close())
}
