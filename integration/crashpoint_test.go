package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// TestCrashAtEveryPoint kills a client between two instructions, at each point of
// the list, while it does all that a client can do with a partner in another
// process, and looks at what is left: nothing that was the dead one's, nothing
// that the partner holds has changed, what the dead had sent can be received, and
// the partner goes on in every topic and queue that they shared.
func TestCrashAtEveryPoint(t *testing.T) {
	program := testkit.CrashBinary(t)
	for _, p := range crashpoint.Points {
		for _, times := range []int{1, 4} {
			t.Run(fmt.Sprintf("%s:%d", p.Name, times), func(t *testing.T) {
				crashAt(t, program, p, times)
			})
		}
	}
}

// partner is what the test process does beside the one that dies.
type partner struct {
	t       *testing.T
	ctx     context.Context
	b       *testkit.Broker
	c       *client.Client
	news    *client.Topic // overwrites; the partner sends
	answers *client.Topic // overwrites; the dying one sends
	r       *client.Reader
	work    *client.Queue // with redelivery, filled by the partner
	plain   *client.Queue // without
	full    *client.Queue // depth 1, filled
	share   *client.Topic // lossless, the partner reads
	sharer  *client.Reader
	handle  protocol.Handle
	lent    *client.Tensor
}

const crashItems = 6

func newPartner(t *testing.T) *partner {
	b := testkit.StartBroker(t)
	p := &partner{t: t, ctx: testkit.Context(t), b: b, c: b.Connect(client.WithName("partner"))}
	brief := client.Linger(time.Millisecond)
	topic := func(name string, opts ...client.TopicOption) *client.Topic {
		x, err := p.c.Topic(p.ctx, name, append(opts, brief)...)
		require.NoError(t, err)
		return x
	}
	queue := func(name string, opts ...client.QueueOption) *client.Queue {
		x, err := p.c.Queue(p.ctx, name, append(opts, brief)...)
		require.NoError(t, err)
		return x
	}
	p.news, p.answers = topic("news", client.Depth(8)), topic("answers", client.Depth(4))
	p.share = topic("share", client.Overwrite(false), client.Depth(2))
	p.work, p.plain = queue("work", client.Depth(16), client.Redeliver(true)), queue("plain", client.Depth(16))
	p.full = queue("full", client.Depth(1))
	var err error
	p.r, err = p.answers.Reader(p.ctx)
	require.NoError(t, err)
	p.sharer, err = p.share.Reader(p.ctx)
	require.NoError(t, err)
	p.send()
	p.lent, err = filled(p.ctx, p.c, 64, 1)
	require.NoError(t, err)
	p.handle, err = p.lent.Handle(p.ctx)
	require.NoError(t, err)
	_, err = publish(p.ctx, p.c, "weights/partner", 5)
	require.NoError(t, err)
	return p
}

// send puts messages of every kind where the dying one takes them: of one
// storage, of two, and spilled.
func (p *partner) send() {
	for id := range 6 {
		require.NoError(p.t, sendWide(p.ctx, p.c, topicSender{p.news}, 1+id%3, newNote("partner", id)))
	}
	for id := range crashItems {
		for _, q := range []*client.Queue{p.work, p.plain} {
			require.NoError(p.t, sendWide(p.ctx, p.c, queueSender{q}, 1+id%3, newNote("partner", id)))
		}
	}
	require.NoError(p.t, sendNoted(p.ctx, p.c, queueSender{p.full}, 16, newNote("partner", 0)))
}

// sendWide sends a message of several storages; from three on it is spilled.
func sendWide(ctx context.Context, c *client.Client, to sender, width int, k note) error {
	if width >= 3 {
		width = 60 // their refs do not fit in a slot
	}
	tensors := map[string]*client.Tensor{}
	for i := range width {
		x, err := filled(ctx, c, 16, k.Seed+uint64(i))
		if err != nil {
			return err
		}
		defer x.Release()
		tensors[fmt.Sprintf("t%03d", i)] = x
	}
	return to.send(ctx, tensors, client.Meta(k))
}

func crashAt(t *testing.T, program string, point crashpoint.Point, times int) {
	p := newPartner(t)
	cfg := repertoireConfig{Lent: p.handle, Room: time.Millisecond, Message: time.Millisecond}
	if times == 1 && point.InAWait() { // it dies there, however late it comes to it
		cfg.Message = testkit.Patience
		if !point.ForMessages() {
			cfg.Room = testkit.Patience
		}
	}
	dying := p.b.Start("repertoire", cfg, testkit.Program(program), testkit.Env(crashpoint.Env, fmt.Sprintf("%s:%d", point.Name, times)))
	// While it lives its answers are received, so that it has a caller to wake.
	over := make(chan struct{})
	received := make(chan error, 2)
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	for _, r := range []*client.Reader{p.r, p.sharer} {
		go func() { received <- receiveAll(ctx, r, over) }()
	}
	if times == 1 {
		dying.Killed()
	} else if dying.Wait(); !dying.WasKilled() {
		// It does not come by so often.
		require.NoError(t, dying.Result(), dying.Log())
	}
	testkit.Gone(t, p.b, dying.PID())
	close(over)
	cancel()
	for range 2 {
		require.NoError(t, <-received)
	}
	testkit.Audit(t, p.b)
	p.goOn()
	p.end()
}

// receiveAll verifies what comes until the dying one is dead and nothing is left.
func receiveAll(ctx context.Context, r *client.Reader, over chan struct{}) error {
	for {
		m, err := r.Receive(ctx)
		select {
		case <-over:
			if err != nil {
				if m, err = r.TryReceive(context.Background()); err == nil && m == nil {
					return nil
				}
			}
		default:
		}
		if err != nil {
			return err
		}
		_, err = verifyMessage(m)
		m.Release()
		if err != nil {
			return err
		}
	}
}

// goOn uses everything that was shared with the dead one.
func (p *partner) goOn() {
	t := p.t
	words, err := client.Slice[uint64](p.lent)
	require.NoError(t, err)
	require.NoError(t, verify(words, 1), "what the partner lent")
	// Whatever the dead one had claimed and not acknowledged comes again; what it
	// put there itself comes too.
	for _, q := range []*client.Queue{p.work, p.plain} {
		require.NoError(t, sendWide(p.ctx, p.c, queueSender{q}, 2, newNote("after", 0)))
		last := -1
		for {
			m, err := q.Get(p.ctx)
			require.NoError(t, err)
			k, err := verifyMessage(m)
			require.NoError(t, err)
			m.Release()
			if k.From == "after" {
				break
			}
			if k.From == "partner" {
				require.Greater(t, k.ID, last, "in order, none twice")
				last = k.ID
			}
		}
	}
	for id := range 20 {
		require.NoError(t, sendNoted(p.ctx, p.c, topicSender{p.answers}, 16, newNote("after", id)))
		m, err := p.r.Receive(p.ctx)
		require.NoError(t, err)
		m.Release()
		require.NoError(t, sendNoted(p.ctx, p.c, topicSender{p.share}, 16, newNote("after", id)))
		m, err = p.sharer.Receive(p.ctx)
		require.NoError(t, err)
		m.Release()
		require.NoError(t, sendNoted(p.ctx, p.c, topicSender{p.news}, 16, newNote("after", id)))
	}
	w, err := p.c.Get(p.ctx, "weights/partner")
	require.NoError(t, err)
	require.NoError(t, verifyBundle(w, 5))
	w.Release()
}

// end lets everything go: nothing may be left.
func (p *partner) end() {
	t := p.t
	p.lent.Release()
	require.NoError(t, p.c.ReleaseHandle(p.ctx, p.handle))
	require.NoError(t, p.c.Delete(p.ctx, "weights/partner"))
	if err := p.c.Delete(p.ctx, "weights/dying"); err != nil {
		require.ErrorIs(t, err, protocol.ErrNotFound)
	}
	for _, l := range testkit.Look(t, p.b).Leases {
		// The dead one's handle is held for its time, as promised.
		require.Equal(t, "dying", l.Maker)
	}
	require.NoError(t, p.r.Close())
	require.NoError(t, p.sharer.Close())
	for _, x := range []interface{ Close() error }{p.news, p.answers, p.share, p.work, p.plain, p.full} {
		require.NoError(t, x.Close())
	}
	testkit.Until(t, "nothing is held but for the dead one's lease", func() (bool, string) {
		p.c.Collect()
		h := testkit.Look(t, p.b)
		leased := 0
		for _, l := range h.Leases {
			leased += len(l.Storages)
		}
		ofBroker, ofSessions := h.Counts()
		return ofSessions == 0 && ofBroker == uint64(leased) && len(h.Storages) == leased && len(h.Topics) == 0, h.String()
	})
}

func init() { roles["repertoire"] = repertoire }

// repertoireConfig is what the role repertoire is told.
type repertoireConfig struct {
	Lent protocol.Handle
	// How long it waits for room and for messages, which do not come.
	Room, Message time.Duration
}

// repertoire does all that a client can do, so that it comes by every point.
func repertoire(p *testkit.Child) error {
	var cfg repertoireConfig
	if err := p.Config(&cfg); err != nil {
		return err
	}
	ctx := p.Context()
	c, err := p.Connect(client.WithName("dying"))
	if err != nil {
		return err
	}
	// More storages than one chunk has indices, then none: memory is granted,
	// indices are added, all is recycled and given back.
	var many []*client.Tensor
	for i := range protocol.ChunkIndices + 8 {
		x, err := filled(ctx, c, 32, uint64(i))
		if err != nil {
			return err
		}
		many = append(many, x)
	}
	for _, x := range many {
		x.Release()
	}
	c.Collect()

	news, err := c.Topic(ctx, "news")
	if err != nil {
		return err
	}
	reader, err := news.Reader(ctx, client.StartAll)
	if err != nil {
		return err
	}
	answers, err := c.Topic(ctx, "answers")
	if err != nil {
		return err
	}
	share, err := c.Topic(ctx, "share", client.Overwrite(false))
	if err != nil {
		return err
	}
	var held []*client.Message
	for id := 0; ; id++ {
		m, err := reader.TryReceive(ctx)
		if err != nil {
			return err
		}
		if m == nil {
			break
		}
		if _, err := verifyMessage(m); err != nil {
			return err
		}
		if id%2 == 0 {
			held = append(held, m) // dies with them
		} else {
			m.Release()
		}
		for _, to := range []*client.Topic{answers, share} {
			if err := sendWide(ctx, c, topicSender{to}, 1+id%3, newNote("dying", id)); err != nil {
				return err
			}
		}
	}
	for id := range 12 {
		if err := sendWide(ctx, c, topicSender{answers}, 2, newNote("dying", 100+id)); err != nil {
			return err
		}
	}
	for _, name := range []string{"work", "plain"} {
		q, err := c.Queue(ctx, name)
		if err != nil {
			return err
		}
		for id := range crashItems {
			m, err := q.Get(ctx)
			if err != nil {
				return err
			}
			if _, err := verifyMessage(m); err != nil {
				return err
			}
			if id == 2 {
				held = append(held, m) // claimed, never acknowledged
			} else {
				m.Release()
			}
			if err := sendWide(ctx, c, queueSender{q}, 1+id%2, newNote("dying", id)); err != nil {
				return err
			}
		}
	}
	full, err := c.Queue(ctx, "full")
	if err != nil {
		return err
	}
	if err := sendNoted(ctx, c, queueSender{full}, 16, newNote("dying", 0)); err != nil {
		return err
	}
	for range 4 {
		x, err := filled(ctx, c, 16, 1)
		if err != nil {
			return err
		}
		room, cancel := context.WithTimeout(ctx, cfg.Room)
		defer cancel()
		err = full.Put(room, x)
		x.Release()
		if !errors.Is(err, protocol.ErrFull) {
			return fmt.Errorf("a full queue: %w", err)
		}
		message, cancel := context.WithTimeout(ctx, cfg.Message)
		defer cancel()
		if _, err = reader.Receive(message); !errors.Is(err, protocol.ErrTimeout) {
			return fmt.Errorf("an empty topic: %w", err)
		}
	}
	for range 4 {
		x, err := c.Open(ctx, cfg.Lent)
		if err != nil {
			return err
		}
		x.Release()
		w, err := weights(ctx, c, 9)
		if err != nil {
			return err
		}
		if _, err := c.Set(ctx, "weights/dying", w); err != nil {
			return err
		}
		if _, err := w.Tensors()[0].Handle(ctx); err != nil {
			return err
		}
		w.Release()
	}
	x, err := c.Alloc(ctx, dlpack.Uint8, []int64{6 << 20})
	if err != nil {
		return err
	}
	x.Release()
	c.Collect()
	if err := reader.Close(); err != nil {
		return err
	}
	if err := answers.Close(); err != nil {
		return err
	}
	_ = held
	return c.Close()
}
