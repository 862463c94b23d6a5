package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

func TestTensorArrivesInAnotherProcess(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	topic, err := c.Topic(ctx, "batches")
	require.NoError(t, err)

	p := b.Start("receive", receiveConfig{Topic: "batches", Count: 1})
	var joined string
	p.Next(&joined)
	require.NoError(t, sendNoted(ctx, c, topicSender{topic}, 1024, newNote("test", 0)))
	var got received
	p.Next(&got)
	require.Equal(t, "test", got.From)
	require.EqualValues(t, 1, got.Sequence)
	require.Zero(t, got.Lost)
	p.Done()
	require.NoError(t, topic.Close())
}

// receiveConfig is what the role receive is told: it reads a topic, verifies
// every message, says who sent which, and ends after Count messages, or at the
// topic's end where Count is 0.
type receiveConfig struct {
	Topic string
	Lossy bool // messages may be lost
	Start client.Start
	Group string
	Count int
	Quiet bool // says only how many it received, at the end
}

type received struct {
	From     string
	ID       int
	Sequence uint64
	Lost     uint64
	Count    int
}

func init() { roles["receive"] = receive }

func receive(p *testkit.Child) error {
	var cfg receiveConfig
	if err := p.Config(&cfg); err != nil {
		return err
	}
	c, err := p.Connect()
	if err != nil {
		return err
	}
	defer c.Close()
	topic, err := c.Topic(p.Context(), cfg.Topic)
	if err != nil {
		return err
	}
	opts := []client.ReaderOption{cfg.Start}
	if cfg.Group != "" {
		opts = append(opts, client.Group(cfg.Group))
	}
	r, err := topic.Reader(p.Context(), opts...)
	if err != nil {
		return err
	}
	if err := p.Say("joined"); err != nil {
		return err
	}
	next := map[string]int{}
	n := 0
	for ; cfg.Count == 0 || n < cfg.Count; n++ {
		m, err := r.Receive(p.Context())
		if errors.Is(err, protocol.ErrClosed) || errors.Is(err, context.Canceled) {
			break
		}
		if err != nil {
			return err
		}
		k, err := verifyMessage(m)
		if err != nil {
			return err
		}
		// In order, and nothing missing that is not counted as lost.
		if first, seen := next[k.From]; k.ID < first || !cfg.Lossy && cfg.Group == "" && seen && k.ID != first {
			return fmt.Errorf("message %d of %s came where %d was due", k.ID, k.From, first)
		}
		next[k.From] = k.ID + 1
		got := received{From: k.From, ID: k.ID, Sequence: m.Sequence, Lost: m.Lost}
		m.Release()
		if !cfg.Quiet {
			if err := p.Say(got); err != nil {
				return err
			}
		}
	}
	return p.Say(received{Count: n})
}
