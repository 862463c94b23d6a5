package integration

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

func init() {
	// open hears handles as JSON, opens each, says whether its words are those
	// of the seed 1 and whether it may write, and holds it until the next line.
	roles["open"] = func(p *testkit.Child) error {
		c, err := p.Connect()
		if err != nil {
			return err
		}
		for {
			var h protocol.Handle
			if err := p.Hear(&h); err != nil {
				return c.Close()
			}
			t, err := c.Open(p.Context(), h)
			if err != nil {
				if err := p.Say(opened{Error: err.Error()}); err != nil {
					return err
				}
				continue
			}
			got := opened{ReadOnly: t.ReadOnly()}
			words, err := client.Slice[uint64](t)
			if err == nil {
				err = verify(words, 1)
			}
			if err != nil {
				got.Error = err.Error()
			}
			if err := p.Say(got); err != nil {
				return err
			}
			var line string
			if err := p.Hear(&line); err != nil {
				return err
			}
			t.Release()
			if err := p.Say("released"); err != nil {
				return err
			}
		}
	}
}

type opened struct {
	Error    string
	ReadOnly bool
}

func TestHandleIsCarriedAsJSONToAnotherProcess(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	x, err := filled(ctx, c, 512, 1)
	require.NoError(t, err)
	h, err := x.Handle(ctx)
	require.NoError(t, err)
	x.Release() // the lease holds it on the way
	p := b.Start("open", nil)
	p.Tell(h)
	var got opened
	p.Next(&got)
	require.Equal(t, opened{}, got, "the handle of a writable tensor opens writable")
	require.NoError(t, c.ReleaseHandle(ctx, h))
	p.Tell("release it")
	p.Next(new(string))
	testkit.AuditEmpty(t, b, c)
	testkit.Until(t, "its owner has recycled it", func() (bool, string) {
		c.Collect() // it learns beside which session has opened it
		live := c.Stats().Live
		return live == 0, fmt.Sprint(live, " storages")
	})
	p.Tell(h)
	p.Next(&got)
	require.Contains(t, got.Error, "no longer kept")
	p.Done()
}

func TestReadOnlyStaysReadOnlyOnTheWay(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c, d := b.Connect(), b.Connect()
	x, err := filled(ctx, c, 16, 1)
	require.NoError(t, err)
	h, err := x.AsReadOnly().Handle(ctx)
	require.NoError(t, err)
	y, err := d.Open(ctx, h)
	require.NoError(t, err)
	require.True(t, y.ReadOnly())
	y.Release()
	h, err = x.Handle(ctx)
	require.NoError(t, err)
	y, err = d.Open(ctx, h, client.OpenReadOnly())
	require.NoError(t, err)
	require.True(t, y.ReadOnly())
	y.Release()
	y, err = d.Open(ctx, h)
	require.NoError(t, err)
	require.False(t, y.ReadOnly())
	words, err := client.Slice[uint64](y)
	require.NoError(t, err)
	words[3] = 99
	mine, err := client.Slice[uint64](x)
	require.NoError(t, err)
	require.EqualValues(t, 99, mine[3], "both see one memory")
	y.Release()
	x.Release()
}

func TestLeaseThatRanOutIsExpired(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c, d := b.Connect(), b.Connect()
	x, err := filled(ctx, c, 16, 1)
	require.NoError(t, err)
	h, err := x.Handle(ctx, client.LeaseFor(time.Millisecond))
	require.NoError(t, err)
	x.Release()
	// The lease ends by itself; then the owner may recycle the storage.
	testkit.AuditEmpty(t, b, c)
	require.Eventually(t, func() bool {
		y, err := filled(ctx, c, 16, 2)
		require.NoError(t, err)
		defer y.Release()
		z, err := d.Open(ctx, h)
		if err == nil {
			z.Release()
			return false
		}
		require.ErrorIs(t, err, protocol.ErrExpired)
		return true
	}, testkit.Patience, time.Millisecond)
}

func TestLeaseOfASessionEndsWithIt(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	for _, k := range []struct {
		lease string
		stays bool
	}{{"session", false}, {"once", true}, {"hour", true}} {
		p := b.Start("lend", k.lease)
		var h protocol.Handle
		p.Next(&h)
		p.Kill()
		testkit.Gone(t, b, p.PID())
		if !k.stays {
			testkit.Until(t, "its memory is taken back", func() (bool, string) {
				rows := testkit.List[broker.SegmentRow](t, b, protocol.ListSegments)
				return len(rows) == 0, fmt.Sprint(rows)
			})
		}
		x, err := c.Open(ctx, h)
		if !k.stays {
			require.ErrorIs(t, err, protocol.ErrExpired, k.lease)
			continue
		}
		require.NoError(t, err, k.lease)
		words, err := client.Slice[uint64](x)
		require.NoError(t, err)
		require.NoError(t, verify(words, 1))
		x.Release()
	}
}

func init() {
	roles["lend"] = func(p *testkit.Child) error {
		var lease string
		if err := p.Config(&lease); err != nil {
			return err
		}
		c, err := p.Connect()
		if err != nil {
			return err
		}
		x, err := filled(p.Context(), c, 16, 1)
		if err != nil {
			return err
		}
		h, err := x.Handle(p.Context(), map[string]client.LeaseOption{
			"session": client.LeaseSession(), "once": client.LeaseOnce(), "hour": client.LeaseFor(time.Hour)}[lease])
		if err != nil {
			return err
		}
		if err := p.Say(h); err != nil {
			return err
		}
		<-p.Context().Done()
		return nil
	}
}

// A lease that is claimed once has done its work: nothing is held any more when
// the session that claimed it lets go.
func TestLeaseClaimedOnceIsOver(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c, d := b.Connect(), b.Connect()
	x, err := filled(ctx, c, 16, 1)
	require.NoError(t, err)
	h, err := x.Handle(ctx, client.LeaseOnce())
	require.NoError(t, err)
	x.Release()
	y, err := d.Open(ctx, h)
	require.NoError(t, err)
	y.Release()
	testkit.AuditEmpty(t, b, c, d)
}

// spoiled are handles that say something else than the broker's pages do.
func spoiled(h protocol.Handle) map[string]struct {
	handle protocol.Handle
	want   error
} {
	with := func(change func(*protocol.Handle)) protocol.Handle {
		k := h
		k.Shape = append([]int64(nil), h.Shape...)
		change(&k)
		return k
	}
	type one = struct {
		handle protocol.Handle
		want   error
	}
	return map[string]one{
		"another host":            {with(func(h *protocol.Handle) { h.Host = "00112233445566778899aabbccddeeff" }), protocol.ErrInvalidHandle},
		"an older generation":     {with(func(h *protocol.Handle) { h.Generation-- }), protocol.ErrExpired},
		"a later generation":      {with(func(h *protocol.Handle) { h.Generation++ }), protocol.ErrExpired},
		"an older grant":          {with(func(h *protocol.Handle) { h.Serial-- }), protocol.ErrExpired},
		"a later grant":           {with(func(h *protocol.Handle) { h.Serial += 1000 }), protocol.ErrExpired},
		"another index":           {with(func(h *protocol.Handle) { h.Index += 5 }), protocol.ErrExpired},
		"an index beyond all":     {with(func(h *protocol.Handle) { h.Index = protocol.MaxStorages }), protocol.ErrInvalidHandle},
		"another segment":         {with(func(h *protocol.Handle) { h.Segment++ }), protocol.ErrInvalidHandle},
		"another offset":          {with(func(h *protocol.Handle) { h.Offset += 256 }), protocol.ErrInvalidHandle},
		"more bytes":              {with(func(h *protocol.Handle) { h.Bytes += 8 }), protocol.ErrInvalidHandle},
		"past the segment":        {with(func(h *protocol.Handle) { h.Offset, h.Bytes = 1<<40, 1<<40 }), protocol.ErrInvalidHandle},
		"an overflowing range":    {with(func(h *protocol.Handle) { h.Offset, h.Bytes = 1<<53-256, 1<<53-8 }), protocol.ErrInvalidHandle},
		"a view past its storage": {with(func(h *protocol.Handle) { h.ByteOffset = 8 }), protocol.ErrInvalidHandle},
		"a longer shape":          {with(func(h *protocol.Handle) { h.Shape[0]++ }), protocol.ErrInvalidHandle},
		"a negative extent":       {with(func(h *protocol.Handle) { h.Shape[0] = -1 }), protocol.ErrInvalidHandle},
		"an overflowing shape":    {with(func(h *protocol.Handle) { h.Shape = []int64{1 << 62, 1 << 62} }), protocol.ErrInvalidHandle},
		"wild strides":            {with(func(h *protocol.Handle) { h.Strides = []int64{1 << 50} }), protocol.ErrInvalidHandle},
		"an unknown dtype":        {with(func(h *protocol.Handle) { h.DType = "float17" }), protocol.ErrInvalidHandle},
		"another device":          {with(func(h *protocol.Handle) { h.Device = "cuda:0" }), protocol.ErrUnsupported},
		"a wild view":             {with(func(h *protocol.Handle) { h.ByteOffset = 1<<53 - 1 }), protocol.ErrInvalidHandle},
	}
}

func TestSpoiledHandleIsRefused(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c, d := b.Connect(), b.Connect()
	// Generation 2 at least, so that an older one can be named.
	for range 2 {
		x, err := filled(ctx, c, 64, 1)
		require.NoError(t, err)
		x.Release()
	}
	x, err := filled(ctx, c, 64, 1)
	require.NoError(t, err)
	h, err := x.Handle(ctx)
	require.NoError(t, err)
	for what, k := range spoiled(h) {
		y, err := d.Open(ctx, k.handle)
		if err == nil {
			y.Release()
		}
		require.ErrorIs(t, err, k.want, what)
	}
	y, err := d.Open(ctx, h)
	require.NoError(t, err)
	y.Release()
	require.NoError(t, c.ReleaseHandle(ctx, h))
	x.Release()
	testkit.AuditEmpty(t, b, c, d)
}

// Every bit of a handle's JSON flipped: each is refused with a typed error, or
// opens memory that is the handle's own.
func TestHandleWithFlippedBitsIsRefusedOrHarmless(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c, d := b.Connect(), b.Connect()
	x, err := filled(ctx, c, 64, 1)
	require.NoError(t, err)
	h, err := x.Handle(ctx)
	require.NoError(t, err)
	text, err := json.Marshal(h)
	require.NoError(t, err)
	refused := 0
	for i := range text {
		for bit := range 8 {
			flipped := append([]byte(nil), text...)
			flipped[i] ^= 1 << bit
			var k protocol.Handle
			if json.Unmarshal(flipped, &k) != nil {
				refused++
				continue
			}
			y, err := d.Open(ctx, k)
			if err != nil {
				var e *protocol.Error
				require.ErrorAs(t, err, &e, "%s", flipped)
				require.NotEqual(t, protocol.CodeInternal, e.Code, "%s", flipped)
				refused++
				continue
			}
			require.LessOrEqual(t, y.NumBytes(), int64(512), "%s", flipped)
			y.Release()
		}
	}
	require.Greater(t, refused, 4*len(text))
	require.NoError(t, c.ReleaseHandle(ctx, h))
	x.Release()
	testkit.AuditEmpty(t, b, c, d)
}

func TestHandleOfAnotherBrokerIsRefused(t *testing.T) {
	a, b := testkit.StartBroker(t), testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c, d := a.Connect(), b.Connect()
	x, err := filled(ctx, c, 16, 1)
	require.NoError(t, err)
	h, err := x.Handle(ctx)
	require.NoError(t, err)
	_, err = d.Open(ctx, h)
	require.ErrorIs(t, err, protocol.ErrInvalidHandle)
	topic, err := d.Topic(ctx, "t")
	require.NoError(t, err)
	require.ErrorIs(t, topic.Send(ctx, x), protocol.ErrInvalid, "a tensor of another broker's client")
	x.Release()
}

func TestHandleOfATensorWithoutElementsNeedsNoMemory(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c, d := b.Connect(), b.Connect()
	x, err := c.Alloc(ctx, dlpack.Float32, []int64{3, 0, 5})
	require.NoError(t, err)
	h, err := x.Handle(ctx)
	require.NoError(t, err)
	x.Release()
	y, err := d.Open(ctx, h)
	require.NoError(t, err)
	require.Equal(t, []int64{3, 0, 5}, y.Shape())
	bytes, err := y.Bytes()
	require.NoError(t, err)
	require.Nil(t, bytes)
	y.Release()
	testkit.AuditEmpty(t, b, c, d)
}

// Such a stride leads nowhere and may be any number, of which JSON holds 53 bits.
func TestHandleOfAStrideThatLeadsNowhereIsOpened(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c, d := b.Connect(), b.Connect()
	x, err := filled(ctx, c, 3, 1)
	require.NoError(t, err)
	row, err := x.AsStrided([]int64{1, 3}, []int64{math.MaxInt64, 1}, 0)
	require.NoError(t, err)
	h, err := row.Handle(ctx)
	require.NoError(t, err)
	y, err := d.Open(ctx, h)
	require.NoError(t, err)
	require.Equal(t, []int64{1, 3}, y.Shape())
	require.Equal(t, []int64{math.MaxInt64, 1}, row.Strides(), "the view stays as it was made")
	for _, t := range []*client.Tensor{x, row, y} {
		t.Release()
	}
	require.NoError(t, c.ReleaseHandle(ctx, h))
	testkit.AuditEmpty(t, b, c, d)
}

// The broker learns of every handle that was opened, however many are at once and
// however soon their opener closes.
func TestEveryOpenedHandleIsClaimed(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c := b.Connect()
	x, err := filled(ctx, c, 64, 1)
	require.NoError(t, err)
	for _, n := range []int{1, 300} {
		var handles []protocol.Handle
		for range n {
			h, err := x.Handle(ctx, client.LeaseOnce())
			require.NoError(t, err)
			handles = append(handles, h)
		}
		d := b.Connect()
		for _, h := range handles {
			y, err := d.Open(ctx, h)
			require.NoError(t, err)
			y.Release()
		}
		require.NoError(t, d.Close())
		require.Empty(t, testkit.Look(t, b).Leases)
	}
	x.Release()
	testkit.AuditEmpty(t, b, c)
}
