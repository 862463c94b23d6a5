package integration

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
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

// A sender maps nothing of its readers: it wakes them also where it can have no more files.
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
	p.Ended()
	require.NoError(t, topic.Close())
}
