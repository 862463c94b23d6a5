package integration

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// Goroutines of one process that wait for different topics share one bell: one
// of them sleeps, the others are woken through it, whichever leads.
func TestManyGoroutinesWaitEachForTheirOwnTopic(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	const readers, rounds = 24, 20
	c := b.Connect()
	echo := b.Start("echo", readers)
	echo.Next(new(string))
	var wg sync.WaitGroup
	errs := make(chan error, readers)
	for i := range readers {
		topic, err := c.Topic(ctx, echoName("back", i))
		require.NoError(t, err)
		out, err := c.Topic(ctx, echoName("out", i))
		require.NoError(t, err)
		r, err := topic.Reader(ctx)
		require.NoError(t, err)
		wg.Add(1)
		go func() {
			defer wg.Done()
			for id := range rounds {
				if err := sendNoted(ctx, c, topicSender{out}, 16, newNote("me", id)); err != nil {
					errs <- err
					return
				}
				m, err := r.Receive(ctx)
				if err != nil {
					errs <- err
					return
				}
				m.Release()
			}
		}()
	}
	wg.Wait()
	close(errs)
	require.NoError(t, <-errs)
	echo.Done()
}

func echoName(way string, i int) string {
	return way + "/" + string(rune('a'+i%26)) + string(rune('a'+i/26))
}

func init() {
	// echo answers each message of out/<i> with one on back/<i>, a goroutine each.
	roles["echo"] = func(p *testkit.Child) error {
		var n int
		if err := p.Config(&n); err != nil {
			return err
		}
		c, err := p.Connect()
		if err != nil {
			return err
		}
		ends := make(chan error, n)
		for i := range n {
			in, err := c.Topic(p.Context(), echoName("out", i))
			if err != nil {
				return err
			}
			back, err := c.Topic(p.Context(), echoName("back", i))
			if err != nil {
				return err
			}
			r, err := in.Reader(p.Context())
			if err != nil {
				return err
			}
			go func() {
				for {
					m, err := r.Receive(p.Context())
					if err != nil {
						ends <- err
						return
					}
					err = back.Send(p.Context(), m.Tensor())
					m.Release()
					if err != nil {
						ends <- err
						return
					}
				}
			}()
		}
		if err := p.Say("ready"); err != nil {
			return err
		}
		for range n {
			if err := <-ends; p.Context().Err() == nil {
				return err
			}
		}
		return c.Close()
	}
}

// parked waits until a session of the test process sleeps in its futex.
func parked(t *testing.T, b *testkit.Broker, c *client.Client) {
	t.Helper()
	word := testkit.ParkedWord(t, b, c.Session())
	testkit.Until(t, "the session sleeps", func() (bool, string) { return word()&1 == 1, "" })
}

func TestCancelledContextEndsEveryWait(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	topic, err := c.Topic(ctx, "t")
	require.NoError(t, err)
	r, err := topic.Reader(ctx)
	require.NoError(t, err)
	q, err := c.Queue(ctx, "q", client.Depth(1))
	require.NoError(t, err)
	full, err := c.Queue(ctx, "full", client.Depth(1))
	require.NoError(t, err)
	x, err := filled(ctx, c, 8, 1)
	require.NoError(t, err)
	require.NoError(t, full.Put(ctx, x))
	w, err := c.Watch(ctx, "w")
	require.NoError(t, err)
	waits := map[string]func(context.Context) error{
		"receive": func(ctx context.Context) error { _, err := r.Receive(ctx); return err },
		"get":     func(ctx context.Context) error { _, err := q.Get(ctx); return err },
		"put":     func(ctx context.Context) error { return full.Put(ctx, x) },
		"next":    func(ctx context.Context) error { _, err := w.Next(ctx); return err },
	}
	for what, wait := range waits {
		waiting, cancel := context.WithCancel(ctx)
		got := make(chan error)
		go func() { got <- wait(waiting) }()
		parked(t, b, c)
		cancel()
		err := <-got
		require.ErrorIs(t, err, context.Canceled, what)
		require.NotErrorIs(t, err, protocol.ErrTimeout, what)
	}
	// Two that wait on one queue: each ends by its own context.
	for what, wait := range waits {
		if what == "receive" || what == "next" { // for one goroutine at a time
			continue
		}
		forever, cancelForever := context.WithCancel(ctx)
		first := make(chan error)
		go func() { first <- wait(forever) }()
		parked(t, b, c)
		short, cancel := context.WithTimeout(ctx, time.Millisecond)
		require.ErrorIs(t, wait(short), protocol.ErrTimeout, what)
		cancel()
		select {
		case err := <-first:
			t.Fatalf("%s: the first to wait ended with the second one's context: %v", what, err)
		default:
		}
		cancelForever()
		require.ErrorIs(t, <-first, context.Canceled, what)
	}
	x.Release()
}

func TestClosedClientEndsEveryWait(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	for what, wait := range map[string]func(c *client.Client) (func() error, error){
		"receive": func(c *client.Client) (func() error, error) {
			topic, err := c.Topic(ctx, "t")
			if err != nil {
				return nil, err
			}
			r, err := topic.Reader(ctx)
			return func() error { _, err := r.Receive(ctx); return err }, err
		},
		"get": func(c *client.Client) (func() error, error) {
			q, err := c.Queue(ctx, "q")
			return func() error { _, err := q.Get(ctx); return err }, err
		},
		"put": func(c *client.Client) (func() error, error) {
			q, err := c.Queue(ctx, "full", client.Depth(1))
			if err != nil {
				return nil, err
			}
			x, err := filled(ctx, c, 8, 1)
			if err != nil {
				return nil, err
			}
			t.Cleanup(x.Release)
			return func() error {
				for {
					if err := q.Put(ctx, x); err != nil {
						return err
					}
				}
			}, err
		},
	} {
		c := b.Connect()
		f, err := wait(c)
		require.NoError(t, err)
		got := make(chan error)
		go func() { got <- f() }()
		parked(t, b, c)
		require.NoError(t, c.Close())
		require.ErrorIs(t, <-got, protocol.ErrClosed, what)
	}
	testkit.Audit(t, b)
}

// Calls that need a broker which does not answer end with their context, and
// hand-over goes on meanwhile.
func TestStoppedBrokerHoldsUpNothingButWhatNeedsIt(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c, d := b.Connect(), b.Connect()
	topic, err := c.Topic(ctx, "t", client.Depth(4))
	require.NoError(t, err)
	in, err := d.Topic(ctx, "t")
	require.NoError(t, err)
	r, err := in.Reader(ctx)
	require.NoError(t, err)
	exchange := func(id int) {
		require.NoError(t, sendNoted(ctx, c, topicSender{topic}, 64, newNote("me", id)))
		m, err := r.Receive(ctx)
		require.NoError(t, err)
		k, err := verifyMessage(m)
		require.NoError(t, err)
		require.Equal(t, id, k.ID)
		m.Release()
	}
	sent := 0
	for c.Stats().Recycled == 0 { // until the sender has the refcounts of its receiver
		exchange(sent)
		sent++
	}
	b.Process().Stop()
	for range 200 {
		exchange(sent)
		sent++
	}
	short := func() context.Context {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	_, err = c.Topic(short(), "new")
	require.ErrorIs(t, err, protocol.ErrTimeout)
	_, err = c.Alloc(short(), dlpack.Uint8, []int64{64 << 20})
	require.ErrorIs(t, err, protocol.ErrTimeout)
	require.ErrorIs(t, c.Delete(short(), "x"), protocol.ErrTimeout)
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	_, err = c.Topic(cancelled, "new")
	require.ErrorIs(t, err, context.Canceled)
	b.Process().Cont()
	exchange(sent)
}

// A sender that overwrites keeps no slot for a reader, so it need not know its readers; a
// lossless topic waits until it knows.
func TestSenderThatOverwritesNeedsNoAnswerOfWhoHasCome(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c, d := b.Connect(), b.Connect()
	topic, err := c.Topic(ctx, "t")
	require.NoError(t, err)
	lossless, err := c.Topic(ctx, "lossless", client.Overwrite(false))
	require.NoError(t, err)
	x, err := c.Alloc(ctx, dlpack.Uint8, []int64{1})
	require.NoError(t, err)
	defer x.Release()
	read := func(name string) *client.Reader {
		in, err := d.Topic(ctx, name)
		require.NoError(t, err)
		r, err := in.Reader(ctx)
		require.NoError(t, err)
		return r
	}
	receive := func(r *client.Reader, sequences ...int) {
		for _, i := range sequences {
			m, err := r.Receive(ctx)
			require.NoError(t, err)
			require.EqualValues(t, i, m.Sequence)
			m.Release()
		}
	}
	first := read("t")
	require.NoError(t, topic.Send(ctx, x))
	require.NoError(t, lossless.Send(ctx, x))
	receive(first, 1) // which maps the memory
	second := read("t")
	member := read("lossless")

	b.Process().Stop()
	patient := context.Background() // without a deadline
	require.NoError(t, topic.Send(patient, x))
	require.NoError(t, topic.Send(patient, x))
	receive(first, 2, 3)
	receive(second, 2, 3)
	short, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	require.ErrorIs(t, lossless.Send(short, x), protocol.ErrFull)
	b.Process().Cont()

	third := read("t")
	require.NoError(t, topic.Send(ctx, x))
	receive(first, 4)
	receive(third, 4)
	require.NoError(t, lossless.Send(ctx, x))
	receive(member, 2)
}

// A call's deadline holds beside calls without one that wait for a stopped broker,
// and when nothing more can be written to it.
func TestDeadlinesHoldWhileTheBrokerIsStopped(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c, d := b.Connect(), b.Connect()
	topic, err := c.Topic(ctx, "t", client.Overwrite(false))
	require.NoError(t, err)
	in, err := d.Topic(ctx, "t")
	require.NoError(t, err)
	x, err := c.Alloc(ctx, dlpack.Uint8, []int64{1})
	require.NoError(t, err)
	require.NoError(t, topic.Send(ctx, x))
	r, err := in.Reader(ctx) // whose claims c has to ask for
	require.NoError(t, err)
	b.Process().Stop()
	patient := make(chan error, 1)
	go func() { patient <- topic.Send(ctx, x) }()
	short := func(call func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		return call(ctx)
	}
	for range 2000 { // the socket has room for the requests of some hundred
		require.ErrorIs(t, short(func(ctx context.Context) error { return topic.Send(ctx, x) }), protocol.ErrFull)
		require.ErrorIs(t, short(func(ctx context.Context) error { _, err := c.Topic(ctx, "new"); return err }), protocol.ErrTimeout)
	}
	b.Process().Cont()
	require.NoError(t, <-patient)
	m, err := r.Receive(ctx)
	require.NoError(t, err)
	m.Release()
	m, err = r.TryReceive(ctx)
	require.NoError(t, err)
	require.Nil(t, m, "what was given up was not sent")
	x.Release()
}

// A stopped reader keeps what it holds and, where the topic overwrites, blocks
// no sender; when it goes on it counts what it lost, and what it held is unharmed.
func TestStoppedReaderKeepsWhatItHoldsAndBlocksNobody(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	const depth, count = 4, 5000
	c := b.Connect()
	k := channel{Topic: "t", Depth: depth}
	topic, err := k.openTopic(ctx, c)
	require.NoError(t, err)
	p := b.Start("hold", k)
	p.Next(new(string))
	require.NoError(t, sendNoted(ctx, c, topicSender{topic}, 256, newNote("me", 0)))
	p.Next(new(string)) // it holds message 0
	p.Stop()
	for id := 1; id <= count; id++ {
		require.NoError(t, sendNoted(ctx, c, topicSender{topic}, 256, newNote("me", id)))
	}
	h := testkit.Audit(t, b)
	held := 0
	for _, s := range h.Storages {
		for _, holder := range s.Holders {
			if holder.PID == p.PID() {
				held++
			}
		}
	}
	require.Equal(t, 1, held, "it holds the one message that it had taken")
	p.Cont()
	p.Tell("look")
	var got received
	p.Next(&got)
	require.EqualValues(t, got.ID-1, got.Lost, "all between what it held and what it took next")
	require.GreaterOrEqual(t, got.ID, count-depth+1)
	p.Done()
	require.NoError(t, topic.Close())
}

func init() {
	// hold receives a message and holds it until it is told to look: then it
	// verifies it again, and says what the next one was.
	roles["hold"] = func(p *testkit.Child) error {
		var k channel
		if err := p.Config(&k); err != nil {
			return err
		}
		c, err := p.Connect()
		if err != nil {
			return err
		}
		defer c.Close()
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
		m, err := r.Receive(p.Context())
		if err != nil {
			return err
		}
		if err := p.Say("holding"); err != nil {
			return err
		}
		var line string
		if err := p.Hear(&line); err != nil {
			return err
		}
		if _, err := verifyMessage(m); err != nil {
			return err
		}
		m.Release()
		m, err = r.Receive(p.Context())
		if err != nil {
			return err
		}
		defer m.Release()
		got, err := verifyMessage(m)
		if err != nil {
			return err
		}
		return p.Say(received{From: got.From, ID: got.ID, Lost: m.Lost})
	}
}

// A stopped taker of a queue with redelivery keeps its claim: its item goes to
// no other taker while it lives, and others take the rest.
func TestStoppedTakerKeepsItsItem(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	k := channel{Queue: "q", Depth: 8, Redeliver: true}
	c := b.Connect()
	q, err := k.openQueue(ctx, c)
	require.NoError(t, err)
	p := take(b, takeConfig{channel: k, Ask: true})
	for id := range 4 {
		require.NoError(t, sendNoted(ctx, c, queueSender{q}, 64, newNote("me", id)))
	}
	var item taken
	p.Next(&item)
	p.Stop()
	got := map[int]bool{item.ID: true}
	for range 3 {
		m, err := q.Get(ctx)
		require.NoError(t, err)
		k, err := verifyMessage(m)
		require.NoError(t, err)
		require.False(t, got[k.ID])
		got[k.ID] = true
		m.Release()
	}
	m, err := q.TryGet(ctx)
	require.NoError(t, err)
	require.Nil(t, m)
	p.Cont()
	p.Tell("go on")
	require.NoError(t, q.End(ctx))
	p.Ended()
	require.NoError(t, q.Close())
	testkit.AuditEmpty(t, b, c)
}
