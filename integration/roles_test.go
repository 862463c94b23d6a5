package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

func init() {
	roles["send"] = playSend
	roles["receive"] = playReceive
	roles["take"] = playTake
}

// channel says which topic or queue a role uses, and how it is made.
type channel struct {
	Topic, Queue string
	Depth        int
	Lossless     bool
	Redeliver    bool
	Linger       time.Duration // 0: the default
}

func (k channel) openTopic(ctx context.Context, c *client.Client) (*client.Topic, error) {
	var opts []client.TopicOption
	if k.Depth > 0 {
		opts = append(opts, client.Depth(k.Depth))
	}
	if k.Lossless {
		opts = append(opts, client.Overwrite(false))
	}
	if k.Linger > 0 {
		opts = append(opts, client.Linger(k.Linger))
	}
	return c.Topic(ctx, k.Topic, opts...)
}

func (k channel) openQueue(ctx context.Context, c *client.Client) (*client.Queue, error) {
	var opts []client.QueueOption
	if k.Depth > 0 {
		opts = append(opts, client.Depth(k.Depth))
	}
	if k.Redeliver {
		opts = append(opts, client.Redeliver(true))
	}
	if k.Linger > 0 {
		opts = append(opts, client.Linger(k.Linger))
	}
	return c.Queue(ctx, k.Queue, opts...)
}

func (k channel) openSender(ctx context.Context, c *client.Client) (sender, error) {
	if k.Queue != "" {
		q, err := k.openQueue(ctx, c)
		return queueSender{q}, err
	}
	t, err := k.openTopic(ctx, c)
	return topicSender{t}, err
}

// sendConfig is what the role send is told: it says "ready", waits for a line,
// sends Count noted tensors of Words words, and says how many it has sent. With
// Stay it then lives on until the test is done with it; otherwise it ends
// without closing anything.
type sendConfig struct {
	channel
	From  string
	Count int
	Words int
	Huge  bool // in huge pages of 2 MiB
	Stay  bool
}

func playSend(p *testkit.Child) error {
	var cfg sendConfig
	if err := p.Config(&cfg); err != nil {
		return err
	}
	c, err := p.Connect()
	if err != nil {
		return err
	}
	to, err := cfg.openSender(p.Context(), c)
	if err != nil {
		return err
	}
	if err := p.Say("ready"); err != nil {
		return err
	}
	var line string
	if err := p.Hear(&line); err != nil {
		return err
	}
	var opts []client.AllocOption
	if cfg.Huge {
		opts = append(opts, client.HugePages(hugePage))
	}
	for i := range cfg.Count {
		if err := sendNoted(p.Context(), c, to, cfg.Words, newNote(cfg.From, i), opts...); err != nil {
			return fmt.Errorf("send message %d: %w", i, err)
		}
	}
	if err := p.Say(cfg.Count); err != nil || !cfg.Stay {
		return err
	}
	if err := p.Hear(&line); err != io.EOF {
		return fmt.Errorf("heard %q: %v", line, err)
	}
	return c.Close()
}

// receiveConfig is what the role receive is told: it reads a topic, says
// "joined", verifies every message and their order, and reports until it has
// Count messages, or until the topic is closed.
type receiveConfig struct {
	channel
	Start client.Start
	Group string
	Count int
	Each  bool // report every message, not only the sum
}

// received is a report of one message, or at the end of all.
type received struct {
	From     string
	ID       int
	Sequence uint64
	Lost     uint64
	Count    int
	By       map[string]int // messages received, by sender
	Missed   map[string]int // messages counted as lost, by sender
}

func playReceive(p *testkit.Child) error {
	var cfg receiveConfig
	if err := p.Config(&cfg); err != nil {
		return err
	}
	c, err := p.Connect()
	if err != nil {
		return err
	}
	topic, err := cfg.openTopic(p.Context(), c)
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
	sum := received{By: map[string]int{}, Missed: map[string]int{}}
	next := map[string]int{}
	for cfg.Count == 0 || sum.Count < cfg.Count {
		m, err := r.Receive(p.Context())
		if errors.Is(err, protocol.ErrClosed) {
			break
		}
		if err != nil {
			return err
		}
		k, err := verifyMessage(m)
		if err != nil {
			return err
		}
		// Whatever is missing between two messages of a sender must have been
		// counted as lost, unless others of the group have it.
		due, seen := next[k.From]
		if k.ID < due || cfg.Group == "" && seen && k.ID != due+int(m.Lost) {
			return fmt.Errorf("message %d of %s came where %d was due; %d were counted as lost", k.ID, k.From, due, m.Lost)
		}
		next[k.From] = k.ID + 1
		sum.Count++
		sum.By[k.From]++
		sum.Missed[k.From] += int(m.Lost)
		if cfg.Each {
			if err := p.Say(received{From: k.From, ID: k.ID, Sequence: m.Sequence, Lost: m.Lost}); err != nil {
				return err
			}
		}
		m.Release()
	}
	if err := p.Say(sum); err != nil {
		return err
	}
	var line string
	if err := p.Hear(&line); err != io.EOF {
		return fmt.Errorf("heard %q: %v", line, err)
	}
	if err := r.Close(); err != nil {
		return err
	}
	if err := topic.Close(); err != nil {
		return err
	}
	return c.Close()
}

// takeConfig is what the role take is told: it takes items of a queue, says of
// each whose and which it is, and lets it go, until the queue is closed. With
// Ask it waits for a line before it lets an item go.
type takeConfig struct {
	channel
	Ask bool
}

type taken struct {
	From string
	ID   int
}

func playTake(p *testkit.Child) error {
	var cfg takeConfig
	if err := p.Config(&cfg); err != nil {
		return err
	}
	c, err := p.Connect()
	if err != nil {
		return err
	}
	q, err := cfg.openQueue(p.Context(), c)
	if err != nil {
		return err
	}
	if err := p.Say(taken{From: "ready"}); err != nil {
		return err
	}
	for {
		m, err := q.Get(p.Context())
		if errors.Is(err, protocol.ErrClosed) {
			if err := q.Close(); err != nil {
				return err
			}
			return c.Close()
		}
		if err != nil {
			return err
		}
		k, err := verifyMessage(m)
		if err != nil {
			return err
		}
		if m.Tensor().ReadOnly() {
			return errors.New("an item of a queue is read-only")
		}
		if err := p.Say(taken{k.From, k.ID}); err != nil {
			return err
		}
		if cfg.Ask {
			var line string
			if err := p.Hear(&line); err != nil {
				return err
			}
		}
		m.Release()
	}
}
