package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// weights is a bundle of two tensors, whose words follow from seed and seed+1.
func weights(ctx context.Context, c *client.Client, seed uint64) (*client.Bundle, error) {
	w, err := c.AllocBundle(ctx,
		client.Spec{Name: "w", DType: dlpack.Uint64, Shape: []int64{32, 16}},
		client.Spec{Name: "b", DType: dlpack.Uint64, Shape: []int64{16}})
	if err != nil {
		return nil, err
	}
	for i, t := range w.Tensors() {
		words, err := client.Slice[uint64](t)
		if err != nil {
			w.Release()
			return nil, err
		}
		fill(words, seed+uint64(i))
	}
	return w, nil
}

// verifyBundle checks a bundle that weights made.
func verifyBundle(w *client.Bundle, seed uint64) error {
	if got := fmt.Sprint(w.Names()); got != "[w b]" {
		return fmt.Errorf("the bundle has the tensors %s", got)
	}
	for i, t := range w.Tensors() {
		words, err := client.Slice[uint64](t)
		if err != nil {
			return err
		}
		if err := verify(words, seed+uint64(i)); err != nil {
			return fmt.Errorf("tensor %s of revision %d: %w", t.Name(), w.Revision, err)
		}
	}
	return nil
}

// publish sets a name to weights with a seed.
func publish(ctx context.Context, c *client.Client, name string, seed uint64, opts ...client.SetOption) (uint64, error) {
	w, err := weights(ctx, c, seed)
	if err != nil {
		return 0, err
	}
	defer w.Release()
	return c.Set(ctx, name, w, opts...)
}

func TestPublishedNameIsReadOnlyAndOutlivesItsSetter(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	setter := b.Start("publish", publishConfig{Name: "weights/actor", Revisions: 1})
	setter.Next(new(uint64))
	setter.Kill()
	testkit.Gone(t, b, setter.PID())
	c := b.Connect()
	w, err := c.Get(ctx, "weights/actor")
	require.NoError(t, err)
	require.EqualValues(t, 1, w.Revision)
	require.False(t, w.Live)
	require.True(t, w.Tensor("w").ReadOnly())
	require.NoError(t, verifyBundle(w, 1))
	testkit.Audit(t, b)
	require.NoError(t, c.Delete(ctx, "weights/actor"))
	require.NoError(t, verifyBundle(w, 1), "what was got stays with its holder")
	w.Release()
	_, err = c.Get(context.Background(), "weights/actor")
	require.ErrorIs(t, err, protocol.ErrNotFound)
	require.ErrorIs(t, c.Delete(ctx, "weights/actor"), protocol.ErrNotFound)
	testkit.AuditEmpty(t, b, c)
}

// publishConfig is what the role publish is told: it sets a name again and again,
// seed and revision counting from 1, says the last revision, and stays.
type publishConfig struct {
	Name      string
	Revisions int
	Ephemeral bool
	Paced     bool // waits for a line before each
	Warm      bool // has had a tensor, and keeps its segment for the next
}

func init() {
	roles["publish"] = func(p *testkit.Child) error {
		var cfg publishConfig
		if err := p.Config(&cfg); err != nil {
			return err
		}
		c, err := p.Connect()
		if err != nil {
			return err
		}
		var opts []client.SetOption
		if cfg.Ephemeral {
			opts = append(opts, client.Ephemeral())
		}
		var revision uint64
		for i := 1; i <= cfg.Revisions; i++ {
			if cfg.Paced {
				var line string
				if err := p.Hear(&line); err != nil {
					return err
				}
			}
			if revision, err = publish(p.Context(), c, cfg.Name, uint64(i), opts...); err != nil {
				return err
			}
			if revision != uint64(i) {
				return fmt.Errorf("revision %d where %d was due", revision, i)
			}
		}
		if cfg.Warm {
			x, err := c.Alloc(context.Background(), dlpack.Uint8, []int64{20 << 20})
			if err != nil {
				return err
			}
			x.Release()
		}
		if err := p.Say(revision); err != nil {
			return err
		}
		<-p.Context().Done()
		return c.Close()
	}
}

// Watchers in other processes see revisions in order, always whole, and the last
// one in the end.
func TestWatchSeesTheNewestRevisionWhole(t *testing.T) {
	b := testkit.StartBroker(t)
	const last = 2000
	var watchers []*testkit.Process
	for range 3 {
		p := b.Start("watch", watchConfig{Name: "weights/actor", Until: last})
		p.Next(new(string))
		watchers = append(watchers, p)
	}
	s := b.Start("publish", publishConfig{Name: "weights/actor", Revisions: last})
	var revision uint64
	s.Next(&revision)
	require.EqualValues(t, last, revision)
	for _, p := range watchers {
		var seen int
		p.Next(&seen)
		require.Positive(t, seen)
		p.Ended()
	}
	s.Done()
	testkit.AuditKept(t, b)
}

type watchConfig struct {
	Name  string
	Until uint64
}

func init() {
	roles["watch"] = func(p *testkit.Child) error {
		var cfg watchConfig
		if err := p.Config(&cfg); err != nil {
			return err
		}
		c, err := p.Connect()
		if err != nil {
			return err
		}
		defer c.Close()
		w, err := c.Watch(p.Context(), cfg.Name)
		if err != nil {
			return err
		}
		defer w.Close()
		if err := p.Say("watching"); err != nil {
			return err
		}
		n, before := 0, uint64(0)
		for {
			rev, err := w.Next(p.Context())
			if err != nil {
				return err
			}
			if rev.Revision <= before {
				return fmt.Errorf("revision %d after %d", rev.Revision, before)
			}
			before = rev.Revision
			if err := verifyBundle(rev, rev.Revision); err != nil {
				return err
			}
			rev.Release()
			n++
			if before == cfg.Until {
				return p.Say(n)
			}
		}
	}
}

func TestWatchGivesTheCurrentRevisionAtOnceThenWaits(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c, d := b.Connect(), b.Connect()
	_, err := publish(ctx, c, "w", 7)
	require.NoError(t, err)
	w, err := d.Watch(ctx, "w")
	require.NoError(t, err)
	rev, err := w.Next(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 1, rev.Revision)
	rev.Release()
	rev, err = w.TryNext(ctx)
	require.NoError(t, err)
	require.Nil(t, rev)
	for seed := uint64(8); seed < 12; seed++ {
		_, err = publish(ctx, c, "w", seed)
		require.NoError(t, err)
	}
	rev, err = w.Next(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 5, rev.Revision, "the newest, not the next")
	require.NoError(t, verifyBundle(rev, 11))
	rev.Release()
	require.NoError(t, w.Close())
	require.NoError(t, d.Delete(ctx, "w"))
	testkit.AuditEmpty(t, b, c, d)
}

func TestWatchGoesOnAfterDeleteAndSetAnew(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c, d := b.Connect(), b.Connect()
	w, err := d.Watch(ctx, "w")
	require.NoError(t, err, "a name that is not set can be watched")
	for seed := uint64(1); seed < 4; seed++ {
		_, err = publish(ctx, c, "w", seed)
		require.NoError(t, err)
		rev, err := w.Next(ctx)
		require.NoError(t, err)
		require.NoError(t, verifyBundle(rev, seed))
		rev.Release()
		require.NoError(t, c.Delete(ctx, "w"))
	}
	require.NoError(t, w.Close())
	testkit.AuditEmpty(t, b, c, d)
}

// A live name is one bundle that all processes write in place, without locks.
func TestLiveNameIsWrittenInPlaceByEveryProcess(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	live, err := c.AllocBundle(ctx, client.Spec{Name: "w", DType: dlpack.Uint64, Shape: []int64{8}})
	require.NoError(t, err)
	words, err := client.Slice[uint64](live.Tensor("w"))
	require.NoError(t, err)
	clear(words)
	_, err = c.Set(ctx, "weights/live", live, client.Live())
	require.NoError(t, err)
	var writers []*testkit.Process
	for i := range 4 {
		writers = append(writers, b.Start("hogwild", i))
	}
	for _, p := range writers {
		p.Next(new(string))
	}
	for i := range writers {
		require.EqualValues(t, 1000+i, words[i], "the write of process %d is seen here", i)
	}
	for i := range writers {
		words[i] = 7
	}
	for _, p := range writers {
		p.Tell("look")
		p.Next(new(string))
		p.Done()
	}
	live.Release()
	require.NoError(t, c.Delete(ctx, "weights/live"))
	testkit.AuditEmpty(t, b, c)
}

func init() {
	roles["hogwild"] = func(p *testkit.Child) error {
		var i int
		if err := p.Config(&i); err != nil {
			return err
		}
		c, err := p.Connect()
		if err != nil {
			return err
		}
		defer c.Close()
		live, err := c.Get(p.Context(), "weights/live")
		if err != nil {
			return err
		}
		defer live.Release()
		if !live.Live || live.Tensor("w").ReadOnly() {
			return errors.New("the live name came read-only")
		}
		words, err := client.Slice[uint64](live.Tensor("w"))
		if err != nil {
			return err
		}
		words[i] = uint64(1000 + i)
		if err := p.Say("written"); err != nil {
			return err
		}
		var line string
		if err := p.Hear(&line); err != nil {
			return err
		}
		if words[i] != 7 {
			return fmt.Errorf("the word is %d, and another process wrote 7", words[i])
		}
		return p.Say("seen")
	}
}

func TestEphemeralNameEndsWithItsSetter(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	s := b.Start("publish", publishConfig{Name: "here", Revisions: 1, Ephemeral: true})
	s.Next(new(uint64))
	w, err := c.Get(ctx, "here")
	require.NoError(t, err)
	s.Kill()
	testkit.Gone(t, b, s.PID())
	require.Empty(t, testkit.List[broker.NameRow](t, b, protocol.ListNames))
	require.NoError(t, verifyBundle(w, 1))
	w.Release()
	testkit.AuditEmpty(t, b, c)
}

func TestGetOfANameWaitsAsLongAsItIsToldTo(t *testing.T) {
	b := testkit.StartBroker(t)
	c := b.Connect()
	for _, wait := range []time.Duration{0, 1, time.Millisecond} {
		_, err := c.Get(testkit.Context(t), "nothing", client.WaitForName(wait))
		require.ErrorIs(t, err, protocol.ErrNotFound)
	}
	got := make(chan error)
	ctx := testkit.Context(t)
	go func() {
		w, err := c.Get(ctx, "later", client.WaitForName(testkit.Patience))
		if err == nil {
			w.Release()
		}
		got <- err
	}()
	d := b.Connect()
	_, err := publish(ctx, d, "later", 1)
	require.NoError(t, err)
	require.NoError(t, <-got)
	require.NoError(t, d.Delete(ctx, "later"))
	testkit.AuditEmpty(t, b, c, d)
}

func TestNamespacesDoNotSeeEachOther(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c, other := b.Connect(), b.Connect(client.WithNamespace("other"))
	_, err := publish(ctx, c, "w", 1)
	require.NoError(t, err)
	_, err = publish(ctx, other, "w", 2)
	require.NoError(t, err)
	for i, d := range []*client.Client{c, other} {
		w, err := d.Get(ctx, "w")
		require.NoError(t, err)
		require.EqualValues(t, 1, w.Revision)
		require.NoError(t, verifyBundle(w, uint64(i+1)))
		w.Release()
	}
	topic, err := c.Topic(ctx, "batches")
	require.NoError(t, err)
	_, err = other.Topic(ctx, "batches", client.MustExist())
	require.ErrorIs(t, err, protocol.ErrNotFound)
	private, err := c.Topic(ctx, "")
	require.NoError(t, err)
	_, err = other.OpenPrivate(ctx, private.Token())
	require.ErrorIs(t, err, protocol.ErrNotFound)
	apart, err := other.Topic(ctx, "batches", client.Depth(2))
	require.NoError(t, err, "options of another namespace's topic are no conflict")
	r, err := apart.Reader(ctx)
	require.NoError(t, err)
	require.NoError(t, sendNoted(ctx, c, topicSender{topic}, 16, newNote("me", 0)))
	m, err := r.TryReceive(ctx)
	require.NoError(t, err)
	require.Nil(t, m)
	require.ErrorIs(t, c.Delete(ctx, "nothing"), protocol.ErrNotFound)
	require.NoError(t, other.Delete(ctx, "w"))
	w, err := c.Get(ctx, "w")
	require.NoError(t, err)
	w.Release()
}
