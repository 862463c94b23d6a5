package client_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

const mark = 42.5

func marked(t *testing.T, ctx context.Context, c *client.Client, v float64) *client.Tensor {
	t.Helper()
	x, err := c.Alloc(ctx, dlpack.Float64, []int64{4})
	require.NoError(t, err)
	s, err := client.Slice[float64](x)
	require.NoError(t, err)
	for i := range s {
		s[i] = v
	}
	return x
}

// exported gives the handle of a tensor that stays until the test ends.
func exported(t *testing.T, ctx context.Context, c *client.Client) protocol.Handle {
	t.Helper()
	x := marked(t, ctx, c, 1)
	t.Cleanup(x.Release)
	h, err := x.Handle(ctx)
	require.NoError(t, err)
	return h
}

// opens reports whether some handle that is like a true one opens marked elements.
func opens(t *testing.T, ctx context.Context, c *client.Client, like protocol.Handle) bool {
	t.Helper()
	h, first := like, like.Index/protocol.ChunkIndices*protocol.ChunkIndices
	h.Lease = nil
	for h.Generation = 1; h.Generation < 4; h.Generation++ {
		for h.Offset = 0; h.Offset < 16*protocol.Alignment; h.Offset += protocol.Alignment {
			for h.Index = first; h.Index < first+protocol.ChunkIndices; h.Index++ {
				x, err := c.Open(ctx, h)
				if err != nil {
					continue
				}
				s, err := client.Slice[float64](x)
				found := err == nil && slices.Contains(s, mark)
				x.Release()
				if found {
					return true
				}
			}
		}
	}
	return false
}

func TestOpenRefusesATensorThatWasNeverGivenAway(t *testing.T) {
	for what, give := range map[string]func(ctx context.Context, c *client.Client, x *client.Tensor) error{
		"handle": func(ctx context.Context, c *client.Client, x *client.Tensor) error {
			_, err := x.Handle(ctx)
			return err
		},
		"message": func(ctx context.Context, c *client.Client, x *client.Tensor) error {
			topic, err := c.Topic(ctx, "t")
			if err == nil {
				err = topic.Send(ctx, x)
			}
			return err
		},
		"item": func(ctx context.Context, c *client.Client, x *client.Tensor) error {
			q, err := c.Queue(ctx, "q")
			if err == nil {
				err = q.Put(ctx, x)
			}
			return err
		},
		"name": func(ctx context.Context, c *client.Client, x *client.Tensor) error {
			_, err := c.Set(ctx, "n", x)
			return err
		},
		"spilled name": func(ctx context.Context, c *client.Client, x *client.Tensor) error {
			all := map[string]*client.Tensor{"x": x}
			for k := range 100 {
				y, err := c.Alloc(ctx, dlpack.Float64, []int64{4})
				if err != nil {
					return err
				}
				defer y.Release()
				all[fmt.Sprintf("%040d", k)] = y
			}
			_, err := c.Set(ctx, "n", all)
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			address, ctx := newBroker(t), limited(t)
			owner, other := connect(t, address), connect(t, address)
			like := exported(t, ctx, owner)
			there, err := other.Open(ctx, like)
			require.NoError(t, err)
			there.Release()
			x := marked(t, ctx, owner, mark)
			require.False(t, opens(t, ctx, owner, like))
			require.False(t, opens(t, ctx, other, like))
			require.NoError(t, give(ctx, owner, x))
			x.Release()
			require.True(t, opens(t, ctx, other, like), "once it was given away")
		})
	}
}

func TestOpenRefusesARecycledStorageThatIsPrivateAgain(t *testing.T) {
	address, ctx := newBroker(t), limited(t)
	owner, other := connect(t, address), connect(t, address)
	like := exported(t, ctx, owner)
	x := marked(t, ctx, owner, mark)
	_, err := owner.Set(ctx, "n", x)
	require.NoError(t, err)
	x.Release()
	require.True(t, opens(t, ctx, other, like))
	require.NoError(t, owner.Delete(ctx, "n"))
	before := owner.Stats().Recycled
	var all []*client.Tensor
	for owner.Stats().Recycled == before {
		all = append(all, marked(t, ctx, owner, mark))
	}
	for range 20 {
		all = append(all, marked(t, ctx, owner, mark))
	}
	require.False(t, opens(t, ctx, owner, like))
	require.False(t, opens(t, ctx, other, like))
	for _, y := range all {
		y.Release()
	}
}
